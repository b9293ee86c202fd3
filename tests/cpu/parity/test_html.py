"""Reports as HTML and Markdown: the structure, and in a headless Chromium the script."""

import re
import shutil
import subprocess
from html.parser import HTMLParser

import msgspec
import pytest

from qsa.parity import report, suite
from qsa.parity.backend import Backend
from qsa.parity.compare.comparison import verdict
from qsa.parity.readable import document, html, markdown
from qsa.parity.readable.document import Document, Map, Row, Table

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
VOID = {"meta", "link", "input", "br", "wbr"}
HOSTILE = '</script><script>alert("x")</script> & <b>'


class Page(HTMLParser):
    """The elements of a page: (tag, attributes, text); every tag must be closed in its order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements = [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        element = [tag, dict(attributes), ""]
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for element in self.open:
            element[2] += data

    def all(self, tag, **attributes):
        return [e for e in self.elements if e[0] == tag and attributes.items() <= e[1].items()]


def made(statuses=("passed", "failed", "unsupported"), copies=4):
    """A report of cases of every status, with hostile text in it."""
    cases = suite.collect(["selection"], "exact")
    results = []
    for number in range(copies * len(statuses)):
        status = statuses[number % len(statuses)]
        comparison = verdict("ids <&>", 3.0 if status == "failed" else 0.0, 1.0, "because", kind="error", size=9)
        reason = HOSTILE if status == "unsupported" else ""
        results.append(suite.Result(cases[number], status, number / 10, (comparison,) if not reason else (), reason))
    return report.make(suite.Tally(results), {"cpu": "A <fast> one", "versions": {"numpy": "2.4", "numba": "0.61"}})


def test_the_page_has_the_verdict_first_and_nothing_from_elsewhere():
    page = Page(html.of(made(), "qsa parity", lambda text: f"qsa parity --case '{text}'"))
    heading = page.all("h1")[0]
    assert heading[2].strip() == "failed" and page.elements.index(heading) < page.elements.index(page.all("table")[0])
    assert page.all("meta", name="viewport") and page.all("meta", name="color-scheme", content="light dark")
    # One file: no address is fetched, and no text of a report becomes an element.
    addresses = [
        value for _, attributes, _ in page.elements for key, value in attributes.items() if key in ("src", "href")
    ]
    assert addresses == ["data:,"] and len(page.all("script")) == 1 and not page.all("b")
    assert "http" not in re.sub(r"http://www\.w3\.org/\S+", "", html.of(made(), "qsa parity"))
    assert HOSTILE in page.all("pre")[-1][2] or any(HOSTILE in pre[2] for pre in page.all("pre"))


def test_every_case_is_in_the_page_with_what_its_button_copies():
    found = made()
    page = Page(html.of(found, "qsa parity", lambda text: f"qsa parity --case '{text}'"))
    copies = [button[1]["data-copy"] for button in page.all("button", **{"class": "copy"})]
    assert sorted(copies) == sorted(f"qsa parity --case '{case.case}'" for case in found.cases)
    assert page.all("code")[0][2] == found.cases[1].case, "failures come first"
    toggles = [button[1]["data-status"] for button in page.all("button", **{"class": "toggle"})]
    assert sorted(toggles) == ["failed", "passed", "unsupported"]
    assert any("A <fast> one" in dd[2] for dd in page.all("dd"))
    assert "numpy 2.4, numba 0.61" in [dd[2] for dd in page.all("dd")]


@pytest.mark.parametrize(
    ("statuses", "interrupted", "word", "good"),
    [
        (("passed",), "", "passed", True),
        (("passed", "failed"), "", "failed", False),
        (("unsupported",), "", "nothing passed", False),
        (("passed",), "Ctrl-C", "interrupted", False),
        (("failed",), "Ctrl-C", "failed", False),
    ],
)
def test_the_verdict(statuses, interrupted, word, good):
    found = made(statuses)
    if interrupted:
        found = msgspec.structs.replace(found, interrupted=interrupted)
    text = document.of_report(found, "qsa parity")
    assert (text.verdict, text.good) == (word, good)
    assert any(interrupted in line for line in text.summary)


def test_reasons_are_grouped():
    (table,) = [each for each in document.of_report(made(), "x").tables if each.title == "Unsupported"]
    assert [row.cells for row in table.rows] == [("4", HOSTILE)]


def example():
    """A document of another command: a map of errors, a picture, a sortable table."""
    errors = Map("error of attend", ("row", "head"), ((1e-7, 3e-6, None), (2e-3, float("inf"), 0.9e-6)), 1e-6)
    shares = Map("explained", ("split", "block"), ((0.01, 0.3, 1.0),), None)
    rows = [Row(("failed", "m", "case:a=1,b=2", "2"), "failed", "why", "copy me", (errors, shares))]
    rows += [Row(("passed", "m", f"case:n={n}", str(n)), "passed", "", f"copy {n}") for n in range(10, 0, -1)]
    table = Table("Cases", ("status", "module", "case", "seconds"), tuple(rows), frozenset({"seconds"}))
    picture = "<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'><title>plot</title></svg>"
    return Document("qsa bench", "slower", False, ("1 slower",), (table,), {}, {"Time": picture})


def test_a_map_has_a_cell_for_each_figure_and_a_failed_ones_map_is_open():
    page = Page(html.text(example()))
    assert [rect[1]["class"] for rect in page.all("rect")] == [
        *["ok", "bad1", "none", "bad4", "bad4", "ok"],
        *["ok", "bad2", "bad4"],
    ]
    assert page.all("rect")[1][2] == "row 0, head 1: 3e-06" and page.all("rect")[2][2] == "row 0, head 2: none"
    assert "open" in page.all("details")[0][1]
    assert page.all("figcaption")[0][2].startswith("error of attend: row down, head across")
    assert any("plot" in svg[2] for svg in page.all("svg"))


def test_a_failing_cases_maps_are_in_its_page(tmp_path):
    kernel = tmp_path / "kernel.py"
    kernel.write_text(
        "import numpy as np\n\n\ndef attend(q, kv, ids, steps):\n    return np.zeros(q.shape, np.float32)\n"
    )
    case = suite.parse("accuracy:op=attend,format=int8,scores=ordinary,context=60,rows=2,tail=3,seed=1")
    tally = suite.run([case], Backend(str(kernel)))
    page = Page(html.of(report.make(tally, {}), "qsa parity"))
    captions = [figure[2] for figure in page.all("figcaption")]
    assert any("row down, head across" in text for text in captions), tally.results
    assert len(page.all("rect")) >= 2 * 24 and any(rect[1]["class"] == "bad4" for rect in page.all("rect"))
    assert "row 1, head 23: " in " ".join(rect[2] for rect in page.all("rect"))


def test_without_jinja2_the_option_says_what_to_install(monkeypatch):
    monkeypatch.setattr(html.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"--html: jinja2 is missing: pip install 'qsa-parity\[report\]'"):
        html.check_installed()


def test_markdown_has_tables_of_what_failed_and_no_text_that_it_would_obey():
    text = markdown.of(made(), "qsa parity")
    lines = text.splitlines()
    assert lines[0] == "# qsa parity: failed" and "4 passed, 4 failed, 4 unsupported" in lines[2]
    assert sum(line.startswith("| failed |") for line in lines) == 4
    assert not any(line.startswith("| passed |") for line in lines)
    assert "<script>" not in text and "</script>" not in text.replace("&lt;/script>", "")
    for line in lines:
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            assert len(cells) in (2, 5, 6), line
    assert len(markdown.of(made(("failed",), copies=80), "x").splitlines()) < 80 * 9


PROBE = """
<script>
window.addEventListener("load", async () => {
  const said = [];
  const say = text => said.push(text);
  navigator.clipboard.writeText = async text => say("clipboard " + text);
  const rows = () => [...document.querySelectorAll("tbody tr")].filter(row => !row.hidden);
  const seconds = () => rows().map(row => row.cells[3].textContent.trim()).join(" ");
  say("rows " + rows().length);
  const input = document.querySelector("input[type=search]");
  input.value = "n=1"; input.dispatchEvent(new Event("input"));
  say("filtered " + rows().length + ", " + document.querySelector(".count").textContent);
  input.value = ""; input.dispatchEvent(new Event("input"));
  document.querySelector(".toggle[data-status=passed]").click();
  say("failed alone " + rows().length);
  document.querySelector(".toggle[data-status=passed]").click();
  const heads = document.querySelectorAll("th");
  heads[3].querySelector("button").click(); say("up " + seconds());
  heads[3].querySelector("button").click(); say("down " + seconds());
  say("sorted " + heads[3].getAttribute("aria-sort"));
  const copy = document.querySelector("tr[data-status=failed] .copy");
  copy.click();
  await new Promise(resolve => setTimeout(resolve, 200));
  say("button " + copy.textContent);
  const map = document.querySelector("figure svg").getBoundingClientRect();
  say("map " + (map.width > 20 && map.height > 20));
  say("wide " + (document.documentElement.scrollWidth <= window.innerWidth));
  document.body.innerHTML = "<pre id=said>" + said.join("\\n") + "</pre>";
});
</script>
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
@pytest.mark.parametrize("size", ["1200,900", "500,900"])
def test_in_a_browser_filter_sorting_and_copying_work(tmp_path, size):
    (tmp_path / "page.html").write_text(html.text(example()).replace("</body>", f"{PROBE}</body>"), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    options += ["--enable-logging=stderr", "--v=0", "--virtual-time-budget=4000", f"--window-size={size}", "--dump-dom"]
    done = subprocess.run(
        [CHROMIUM, *options, f"file://{tmp_path}/page.html"], capture_output=True, text=True, timeout=120
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    (said,) = [element[2] for element in Page(done.stdout).all("pre", id="said")]
    ascending = "1 2 2 3 4 5 6 7 8 9 10"
    assert said.splitlines() == [
        "rows 11",
        "filtered 2, 2 of 11",
        "failed alone 1",
        f"up {ascending}",
        f"down {' '.join(reversed(ascending.split()))}",
        "sorted descending",
        "clipboard copy me",
        "button copied",
        "map true",
        "wide true",
    ]
