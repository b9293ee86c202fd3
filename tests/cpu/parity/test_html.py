"""Reports as HTML and Markdown: what is in them, and what is not."""

import re

import msgspec
import pytest

from qsa.parity import report, suite
from qsa.parity.backend import Backend
from qsa.parity.compare.comparison import verdict
from qsa.parity.readable import document, html, markdown
from support.pages import Page, example

HOSTILE = '</script><script>alert("x")</script> & <b>'


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


def test_a_map_has_a_cell_for_each_figure_and_a_failed_ones_map_is_open():
    page = Page(html.text(example()))
    assert [rect[1]["class"] for rect in page.all("rect")] == [
        *["ok", "bad1", "none", "bad4", "bad4", "ok"],
        *["ok", "bad2", "bad4", *["ok"] * 120],
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
