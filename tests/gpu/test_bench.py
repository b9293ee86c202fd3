"""``qsa bench`` on the device: graphs, cold buffers, limits, a wrong kernel, another library's kernel beside ours."""

import random
import sys

import pytest

from qsa.parity.backend import Backend
from qsa.parity.screen import cases
from qsa.parity.screen.limits import nvml
from qsa.parity.screen.measure import Entry, Options, measured
from qsa.parity.screen.results import State

cuda = pytest.importorskip("qsa.parity.screen.limits.cuda", exc_type=ImportError)

pytestmark = pytest.mark.gpu

FOREIGN = """
import {library} as xp

declaration = {{"arrays": "{library}", "device": "cuda", "ties": "any"}}


def select(scores, steps, rule="blocks"):
    found = []
    for row, (_, n_kv, n_bid, width) in zip(scores, steps.tolist()):
        order = xp.argsort(-row[:n_bid])[:512]
        cells = (order[:, None] * 4 + xp.arange(4{where})).ravel()
        found.append(xp.concatenate([cells, xp.arange(n_bid * 4, n_kv{where})]))
    return found
"""
"""Selection by a sort; the host waits for the records, so it cannot be captured."""


@pytest.fixture(scope="module")
def options(needs_a_device):
    read = nvml.state_reader(cuda.bus_address())
    limits = cuda.measured_limits(read())
    return Options(0.05, {"cuda": limits}, {"cuda": lambda: limits}, {"cuda": read}, {}, random.Random(1))


def test_the_limits_are_plausible(options):
    limits = options.limits["cuda"]
    assert 0.2 < limits.small_us < 20 and limits.cache > 1 << 20
    assert 10 < limits.rates[-1].most < 20_000 and limits.rates[0].most >= 0.8 * limits.rates[-1].most
    state = options.state["cuda"]()
    assert isinstance(state, State) and state.clock_mhz and state.most_mhz >= state.clock_mhz


@pytest.mark.parametrize("cache", cases.CACHES)
@pytest.mark.parametrize("operation", ["attend", "block_scores", "select"])
def test_operations_are_timed_in_graphs(options, operation, cache):
    case = cases.make(operation, rows=4, context=65536, cache=cache)
    [found] = measured(case, [Entry("cuda", Backend("cuda", "exact"), "cuda")], options)
    assert found.status == "timed", found.reason
    assert found.contract.startswith("graph of ") and 0 < found.share < 1.25 and found.state.clock_mhz


@pytest.mark.parametrize("operation", ["append_kv", "append_index"])
def test_appends_are_timed_in_graphs(options, operation):
    [found] = measured(cases.make(operation, rows=4), [Entry("cuda", Backend("cuda", "exact"), "cuda")], options)
    assert found.status == "timed" and found.contract.startswith("graph of "), found.reason


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_another_library_stands_beside_ours(options, library, tmp_path):
    pytest.importorskip(library)
    path = tmp_path / f"theirs_{library}.py"
    path.write_text(FOREIGN.format(library=library, where="" if library == "cupy" else ", device='cuda'"))
    entries = [Entry("cuda", Backend("cuda", "exact"), "cuda"), Entry("theirs", Backend(str(path)), "cuda")]
    ours, theirs = measured(cases.make("select", rows=2, context=4096), entries, options)
    assert (ours.status, theirs.status) == ("timed", "timed"), theirs.reason
    assert "no graph" in theirs.contract and theirs.against.verdict == "FASTER" and theirs.against.ratio < 1


def test_a_kernel_that_computes_once_is_wrong(options, tmp_path):
    path = tmp_path / "once.py"
    path.write_text(
        "import sys\n"
        "from qsa.kernels.cuda import backend as ours\n"
        "from qsa.kernels.cuda.backend import declaration, to_device, to_host\n"
        "kept = {}\n"
        "def attend(q, kv, ids, steps):\n"
        "    key = q.data.ptr\n"
        "    if key not in kept:\n"
        "        kept[key] = ours.attend(q, kv, ids, steps, arithmetic='exact')\n"
        "    return kept[key]\n"
    )
    sys.modules.pop("once", None)
    entry = Entry("once", Backend(str(path), "exact"), "cuda")
    [found] = measured(cases.make("attend", rows=1, context=4096), [entry], options)
    assert found.status == "wrong" and found.us is None
