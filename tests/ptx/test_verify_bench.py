"""The option --bench: where it is refused, and that nothing is timed whose two sides differ."""

from types import SimpleNamespace

import numpy as np
import pytest

from qsa.golden import device_records as evidence
from qsa.kernels.switches import switches
from qsa.parity import cli
from qsa.parity.bench import switch_table
from qsa.parity.checks import verify_batch
from qsa.parity.evidence import readers

verify_bench = pytest.importorskip("qsa.parity.bench.switches", reason="needs numba-cuda", exc_type=ImportError)


@pytest.fixture
def host(monkeypatch):
    """Arrays on the host in the place of a device's; a call is made once more and takes 5 µs, 3 with a switch at 1, 2
    with it unset."""

    def hot(call):
        call()
        return SimpleNamespace(median={False: 5.0, True: 3.0, None: 2.0}[switches().topk_scan])

    monkeypatch.setattr(verify_bench, "array_module", lambda: SimpleNamespace(asnumpy=np.asarray))
    monkeypatch.setattr(verify_bench.timing, "hot", hot)


def test_without_its_module_it_is_a_bad_argument(capsys):
    assert cli.main(["parity", "selection", "--bench"]) == 2
    assert "--bench: goes with the module verify-batch" in capsys.readouterr().err


def test_a_backend_without_timers_is_unsupported(capsys, monkeypatch):
    recipe = {"op": "draft", "pass": "standing", "context": 256, "seed": 1}
    monkeypatch.setattr(verify_batch, "cases", lambda *_: [recipe])
    assert cli.main(["parity", "verify-batch", "--backend", "cpu", "--bench"]) == 0
    assert "bench: unsupported: backend cpu has no timers of a device" in capsys.readouterr().out


def test_both_sides_are_timed_under_their_switch(host):
    out = np.zeros(3)
    before = switches()
    assert verify_bench._timed("topk_scan", lambda: None, lambda: None, out) == (5.0, 3.0, 2.0)
    # A switch without a table, with the others at 0.
    assert verify_bench._timed("merge_active", lambda: None, lambda: None, out) == (5.0, 5.0)
    assert verify_bench._timed("batch_qsa_attn", lambda: None, lambda: None, out) == (5.0, 5.0)
    assert switches() == before


def test_a_side_that_changes_the_bytes_is_not_reported(host):
    out = np.zeros(3)
    with pytest.raises(RuntimeError, match="merge_active: off and on give different bytes"):
        verify_bench._timed("merge_active", lambda: out.fill(1), lambda: out.fill(2), out)
    with pytest.raises(RuntimeError, match="topk_scan: off and on and unset give different bytes"):
        verify_bench._timed("topk_scan", *[lambda: out.fill(switches().topk_scan is None)] * 2, out)


def test_the_table_has_a_column_for_each_context_and_comes_back_from_a_record():
    row = switch_table.Row("topk_scan", "selection", (1024, 16384, 65536), ((2, 1), (30.04, 20), (9, 8)))
    head, line, contract = switch_table.lines([row])
    assert [word for word in head.split() if word.endswith("K:")] == ["1K:", "16K:", "64K:"]
    assert " ".join(line.split()) == "topk_scan selection 2.0 -> 1.0 30.0 -> 20.0 9.0 -> 8.0"
    assert "capacity 200,000" in contract
    assert switch_table.from_json(switch_table.as_json([row])) == [row]
    three = row._replace(unset=(1.5, 10, 7))
    assert list(switch_table.lines([three]))[1].split()[-4:] == ["9.0", "->", "8.0", "(7.0)"]
    assert switch_table.from_json(switch_table.as_json([three])) == [three]
    assert not list(switch_table.lines([]))


def test_the_program_writes_what_a_record_takes(tmp_path, monkeypatch):
    row = switch_table.Row("topk_scan", "selection", (1024,), ((2.00049, 1),), (1.5,))
    monkeypatch.setattr(verify_bench, "table", lambda: [row])
    assert verify_bench.main(["--json", str(tmp_path / "table.json")]) == 0
    status, reason, results = readers.read_switches(tmp_path / "table.json", SimpleNamespace(code=0))
    assert (status, reason) == ("passed", "")
    assert [evidence.check_switch(one, "here", "row") for one in results["switches"]] == results["switches"]
    assert results["switches"][0]["off_us"] == [2.0]
