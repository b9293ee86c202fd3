"""Reports in a headless Chromium: no console error, and filter, sorting, copying and maps work, wide and narrow."""

from dataclasses import asdict

import pytest

from qsa.parity import gate, gate_table, report, suite
from qsa.parity.backend import Backend
from qsa.parity.commands import prove
from qsa.parity.prove import tables
from qsa.parity.readable import html
from qsa.parity.speed import verdict as verdicts
from qsa.parity.speed.verdict import SAME, SLOWER
from support.pages import CHROMIUM, browsed, example

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
  const edge = document.querySelector(".wide").getBoundingClientRect().right + 1;
  const inside = each => each.getBoundingClientRect().right <= edge;
  say("cells " + [...document.querySelectorAll("tbody td, figure, pre")].every(inside));
  say("wide " + (document.documentElement.scrollWidth <= window.innerWidth));
  document.body.innerHTML = "<pre id=said>" + said.join("\\n") + "</pre>";
});
</script>
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
@pytest.mark.parametrize("size", ["1200,900", "500,900"])
def test_in_a_browser_filter_sorting_and_copying_work(tmp_path, size):
    said = browsed(html.text(example()), PROBE, size, tmp_path)
    ascending = "1 2 2 3 4 5 6 7 8 9 10"
    assert said == [
        "rows 11",
        "filtered 2, 2 of 11",
        "failed alone 1",
        f"up {ascending}",
        f"down {' '.join(reversed(ascending.split()))}",
        "sorted descending",
        "clipboard copy me",
        "button copied",
        "map true",
        "cells true",
        "wide true",
    ]


ANY_PAGE = """
<script>
window.addEventListener("load", async () => {
  const said = [];
  navigator.clipboard.writeText = async text => said.push("clipboard " + text);
  const edge = document.querySelector(".wide").getBoundingClientRect().right + 1;
  const inside = each => each.getBoundingClientRect().right <= edge;
  said.push("cells " + [...document.querySelectorAll("tbody td, figure, pre")].every(inside));
  said.push("maps " + [...document.querySelectorAll("details[open] figure svg")].filter(
    each => each.getBoundingClientRect().width > 20 && each.querySelector(".bad4")).length);
  for (const section of document.querySelectorAll("section")) {
    const input = section.querySelector("input[type=search]");
    if (!input) continue;
    const rows = [...section.querySelectorAll("tbody tr")];
    input.value = rows[0].textContent.split(/\\s+/).filter(Boolean).join(" ");
    input.dispatchEvent(new Event("input"));
    const shown = rows.filter(row => !row.hidden);
    said.push("filter " + (shown[0] === rows[0] && shown.length < rows.length));
    input.value = "no row has this"; input.dispatchEvent(new Event("input"));
    said.push("none " + rows.every(row => row.hidden));
    input.value = ""; input.dispatchEvent(new Event("input"));
  }
  const copy = document.querySelector(".copy");
  copy.click();
  await new Promise(resolve => setTimeout(resolve, 200));
  document.body.innerHTML = "<pre id=said>" + said.join("\\n") + "</pre>";
});
</script>
"""


def parity_page(folder):
    """Of a kernel one of whose heads is wrong."""
    kernel = folder / "kernel.py"
    kernel.write_text(
        "from qsa.parity.ports.numpy_float import append, cache, read, select\n"
        "from qsa.parity.ports import numpy_float\n\n"
        "declaration = numpy_float.declaration\n\n\n"
        "def attend(q, kv, ids, steps):\n    out = numpy_float.attend(q, kv, ids, steps)\n"
        "    out[:, 20] = 0\n    return out\n"
    )
    backend = Backend(str(kernel))
    cases = suite.collect(["accuracy"], "float", backend=backend)
    cases = [case for case in cases if case.recipe["op"] == "attend" and case.recipe["context"] <= 500][:9]
    found = report.make(suite.run(cases, backend), {})
    return html.of(found, "qsa parity", lambda text: suite.command(text, backend))


def gate_page(folder):
    """Of two checks, and times of which one is slower."""
    outcome = gate.Outcome(seconds={"ptx": 1.0, "speed": 60.0})
    judgements = {}
    for number in range(12):
        slower = number == 7
        text = f"attend:arithmetic=exact,format=int8,rows={number},schedule=batch"
        word = SLOWER if slower else SAME
        judgements[text] = verdicts.Judgement(word, 1.3 if slower else 1.0, 0.01, 0.05, 0.001, 10.0, 13.0, word)
        status = "failed" if slower else "passed"
        outcome.results.append(gate.verdict("speed", text, status, word, share=0.3 if slower else 0.0, floor=0.05))
        outcome.results.append(gate.verdict("ptx", f"test_{number}", "unsupported", "numba-cuda is missing"))
    notes = {"base": "0a1b", "backend": "cpu", "false_alarm_rate": 0.004}
    notes["judgements"] = {text: asdict(one) for text, one in judgements.items()}
    return html.text(gate_table.document(outcome, {"speed": notes}))


def prove_page(folder):
    """Of a table in which one kernel was not caught."""
    case = (
        "selection:op=cut,rule=blocks,scores=all_negative_zero,cells=13333,rows=65,unused=middle,schedule=spread,seed=1"
    )
    rows = [
        tables.Row(f"select: wrong for {number} rows", "row", number != 3, "select: cut", case, 1.0, 0.0, "why")
        for number in range(12)
    ]
    proof = tables.Proof(1, 2.0, {"cpu": "a processor"}, [tables.Table("kernels", "exact", 1.0, rows)])
    return html.text(prove.document(proof))


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
@pytest.mark.parametrize("size", ["1200,900", "500,900"])
@pytest.mark.parametrize(
    ("page", "maps", "tables", "copied"),
    [
        (parity_page, 5, 1, "qsa parity --backend "),
        (gate_page, 0, 2, "qsa gate --only speed"),
        (prove_page, 0, 1, "selection:op=cut,rule=blocks,"),
    ],
)
def test_in_a_browser_the_pages_of_the_commands_work(page, maps, tables, copied, size, tmp_path):
    cells, shown, *filters, clipboard = browsed(page(tmp_path), ANY_PAGE, size, tmp_path)
    assert (cells, shown) == ("cells true", f"maps {maps}")
    assert filters == ["filter true", "none true"] * tables
    assert clipboard.startswith(f"clipboard {copied}")
