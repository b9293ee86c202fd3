"""What ``qsa bench`` measures, with timers of our own: who takes turns, what is wrong or impossible, verdicts."""

import random
import time

import numpy as np
import pytest

from qsa.parity.backend import Backend, UnsupportedError
from qsa.parity.contract import Kernel, declared
from qsa.parity.screen import cases, devices, measure, samplers
from qsa.parity.screen.calls import OUTPUTS, Call, Judge
from qsa.parity.screen.measure import Entry, Options, compared, measured, turns
from qsa.parity.screen.problems import make
from qsa.parity.screen.results import Limits, Rate, State
from support import timed_kernels
from support.float_kernel import FloatKernel

CASE = cases.make("attend", rows=2, context=64)
SLOW = Limits("a machine", 1 << 20, (Rate(1 << 16, 1.0, 1.0), Rate(1 << 28, 1.0, 1.0)), 0.5, 0.01, 1e15, "the test")
"""1 GB/s: the 169,056 bytes of the case take at least 169 us."""

FAST = Limits("a machine", 1 << 20, (Rate(1 << 16, 1e6, 1e6), Rate(1 << 28, 1e6, 1e6)), 0.5, 0.01, 1e15, "the test")


def entry(name, arithmetic="exact"):
    module = getattr(timed_kernels, name)()
    return Entry(name, Backend(name, arithmetic, Kernel(module, declared(module))))


def options(limits=FAST, again=None, seconds=0.02):
    return Options(seconds, {"cpu": limits}, {"cpu": lambda: again or limits}, {"cpu": State}, {}, random.Random(1))


class Fake:
    """A timer that makes the calls and gives the next of ``times`` seconds; ``log`` gets ``name`` at every sample."""

    contract = "made up"

    def __init__(self, kernel, noted, times, name="", log=None):
        self.calls, self.times, self.name, self.log = [Call(kernel, noted)], iter(times), name, log
        self.returned = None

    def sample(self, count):
        if self.log is not None:
            self.log.append(self.name)
        self.returned = self.calls[0].function()
        return next(self.times)

    def outputs(self):
        return [self.calls[0].result(self.returned)]

    def state(self, read):
        return read()


@pytest.fixture
def timed(monkeypatch):
    """Function of lists of seconds by name of the kernel's class: makes :class:`Fake` timers of them; returns a log."""

    def use(times):
        log = []

        def made(kernel, noted, count, right, found):
            name = type(kernel.module).__name__
            return Fake(kernel, noted, times[name], name, log)

        monkeypatch.setattr(measure, "sampler_of", made)
        return log

    return use


def forever(*values):
    while True:
        yield from values


def test_contestants_take_turns_there_and_back():
    assert [turns(number) for number in (1, 2, 3)] == [[0, 0], [0, 1, 1, 0], [0, 1, 2, 2, 1, 0]]


def test_samples_are_taken_in_that_order(timed):
    timed({"Right": forever(1e-3), "Raises": forever(2e-3)})
    first, second = measured(CASE, [entry("Right"), entry("Raises")], options())
    # The second one fails in the middle; what it gave before is no number.
    assert first.status == "timed" and second.status == "wrong" and "out of steam" in second.reason
    assert second.us is None and second.samples == ()
    log = timed({"Right": forever(1e-3), "OnDevice": forever(2e-3)})
    timings = measured(CASE, [entry("Right"), entry("OnDevice")], options(seconds=0.05))
    rounds = len(timings[0].samples) // 2
    assert rounds >= measure.ROUNDS and len(timings[1].samples) == 2 * rounds
    text = "".join("A" if name == "Right" else "B" for name in log)
    assert "ABBA" * rounds in text


def test_a_time_below_the_floor_is_no_number(timed):
    timed({"Right": forever(1e-5)})
    [found] = measured(CASE, [entry("Right")], options(SLOW))
    assert found.status == "impossible" and found.us is None and found.share is None and found.against is None
    assert "10 us is below the floor of 1" in found.reason and found.floor.us > 100


def test_limits_are_measured_again_before_a_time_is_called_impossible(timed):
    timed({"Right": forever(1e-5)})
    given = options(SLOW, again=FAST)
    [found] = measured(CASE, [entry("Right")], given)
    assert found.status == "timed" and given.limits["cpu"].rates == FAST.rates and 0 < found.share < 1


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("Wrong", "wrong", "attend: FAILED"),
        ("KeptByAddress", "wrong", "after its inputs were changed in place"),
        ("Tires", "wrong", "a timed call is wrong, which was right before the timing"),
        ("Raises", "wrong", "RuntimeError: out of steam"),
    ],
)
def test_a_wrong_kernel_has_no_number(name, status, words):
    [found] = measured(CASE, [entry(name)], options(seconds=0.2))
    assert (found.status, found.us, found.samples) == (status, None, ())
    assert words in found.reason


def test_a_kernel_that_keeps_results_is_below_the_floor():
    case = cases.make("attend", rows=1, context=4096)
    slow = Limits("a machine", 1 << 20, (Rate(1 << 28, 10.0, 10.0),), 0.5, 0.01, 1e15, "the test")
    [found] = measured(case, [entry("KeptByContent")], options(slow))
    assert found.status == "impossible" and "work is left out" in found.reason


@pytest.mark.parametrize("operation", cases.AXES)
def test_every_operation_is_timed(operation):
    [found] = measured(cases.make(operation, rows=4, context=64), [entry("Right")], options())
    assert found.status == "timed" and found.us > 0 and found.p10_us <= found.us <= found.p90_us, found.reason
    assert found.floor.bytes > 0 and "clock of the host, hot; lower quartile of" in found.contract


@pytest.mark.parametrize(("operation", "keyword"), OUTPUTS.items())
def test_our_own_backends_are_given_an_array_for_the_result(operation, keyword):
    backend = Backend("cpu", "exact")
    judge = Judge(backend, make(backend, cases.make(operation, rows=2, context=64)))
    assert judge.before(operation) == ""
    call = Call(backend.kernel, judge.noted[0])
    assert call.function.keywords[keyword] is not None
    assert call.function() is call.function.keywords[keyword]
    [found] = measured(cases.make(operation, rows=2, context=64), [Entry("cpu", backend)], options())
    assert found.status == "timed", found.reason


def test_own_storage_stands_beside_any_format():
    one = Entry("FloatKernel", Backend("x", "float", Kernel(FloatKernel(), declared(FloatKernel()))))
    found = measured(cases.make("attend", rows=1, context=64, format="q4_0"), [entry("Right"), one], options())
    assert [each.status for each in found] == ["timed", "timed"]
    assert "K and V in the backend's own storage, float32" in found[1].contract and found[1].against is not None


def test_cold_calls_have_arguments_of_their_own():
    case = cases.make("attend", rows=2, context=64, cache="cold")
    [found] = measured(case, [entry("Right")], options())
    # 67 cells of K and V in two heads, codes and scales; queries and outputs of two rows.
    assert found.floor.bytes == 67 * 2 * 2 * (256 + 8) + 2 * 2 * 24 * 256 * 4 and found.status == "timed"
    # Twice the cache of 1 MiB.
    assert "cold: 13 calls with arguments of their own in turn" in found.contract


def test_cold_is_unsupported_where_it_would_take_too_many_copies():
    [found] = measured(cases.make("append_index", rows=1, cache="cold"), [entry("Right")], options())
    assert found.status == "unsupported" and "copies of the 512 bytes" in found.reason
    with pytest.raises(UnsupportedError, match=r"11 calls of 9 s"):
        samplers.copies("cold", 200_000, 1 << 20, 9.0)


def test_what_a_backend_has_not_is_unsupported():
    case = cases.make("attend", rows=2, context=64, schedule="split")
    [found] = measured(case, [entry("Right")], options())
    assert found.status == "unsupported" and "the function takes no schedule" in found.reason
    [found] = measured(cases.make("attend", rows=2, context=64, format="own"), [entry("Right")], options())
    assert found.status == "unsupported" and "no own storage" in found.reason


def sequence(*rounds):
    return [time for one in rounds for time in one]


def test_verdicts_on_two_contestants():
    base = sequence(*[(1.0, 1.0)] * 7)
    slower = compared(base, sequence(*[(1.3, 1.31)] * 7), "cpu")
    assert slower.verdict == "SLOWER" and slower.ratio == pytest.approx(1.305, rel=1e-3) and slower.p < 0.004
    assert compared(base, sequence(*[(0.5, 0.5)] * 7), "cpu").verdict == "FASTER"
    assert compared(base, sequence(*[(1.01, 0.99)] * 7), "cpu").verdict == "SAME"
    assert compared(base, sequence(*[(1.3, 1.3)] * 7), "cpu", ["heat"]).verdict == "AMBIGUOUS"
    mixed = sequence((1.3, 0.9), (0.8, 1.5), (1.4, 1.3), (0.9, 1.4), (1.3, 0.9), (0.9, 1.3), (0.6, 1.5))
    assert compared(base, mixed, "cpu").verdict == "AMBIGUOUS"


def test_a_drift_over_the_run_is_no_difference():
    clock = np.cumprod([1.02] * 40)
    base = sequence(*[(clock[4 * n], clock[4 * n + 3]) for n in range(10)])
    own = sequence(*[(clock[4 * n + 1], clock[4 * n + 2]) for n in range(10)])
    assert compared(base, own, "cpu").verdict == "SAME"


def test_the_clock_of_the_host_divides_by_the_calls():
    kernel = entry("Right").backend.kernel
    judge = Judge(entry("Right").backend, make(entry("Right").backend, CASE))
    assert judge.before("attend") == ""
    ticks = iter([10.0, 16.0])
    sampler = samplers.HostSampler([Call(kernel, judge.noted[0])], clock=lambda: next(ticks))
    assert sampler.sample(3) == 2.0
    assert judge.wrong(sampler.outputs()[0]) == "" and judge.wrong(sampler.outputs()[0] * 2) != ""


class FakeDevice:
    """A device whose graphs carry out nothing (``stale``), or the calls themselves; events tell a made-up time."""

    def __init__(self, stale=False, captures=True, late=0.0, times=1 << 30):
        self.stale, self.captures, self.late, self.times = stale, captures, late, times
        self.waits = 0

    def synchronize(self):
        """A sample waits before it, for its last event, and for the device: late are the first ``times`` of those."""
        self.waits += 1
        if self.late and self.waits % 3 == 0 and self.waits <= 3 * self.times:
            time.sleep(self.late)

    def event(self):
        return self

    def record(self):
        pass

    def seconds(self, start, end):
        return 1e-4

    def capture(self, record):
        if not self.captures:
            raise RuntimeError("operation not permitted when stream is capturing")
        record()
        return record

    def timed_replays(self, graph, replays):
        if not self.stale:
            graph()
        return 1e-4 * replays

    def while_replaying(self, graph, read):
        return read()


@pytest.mark.parametrize(
    ("device", "contract"),
    [
        (FakeDevice(), "graph of 10 launches replayed between events, hot"),
        (FakeDevice(stale=True), "no graph: a replay does not follow its inputs"),
        (FakeDevice(captures=False), "no graph: RuntimeError: operation not permitted when stream is capturing"),
        (
            FakeDevice(captures=False, late=0.01),
            "clock of the host, synchronised, hot; no events: the device worked for",
        ),
        # Late twice: other work on the machine.
        (FakeDevice(captures=False, late=0.01, times=2), "events, hot, launches by the host included"),
    ],
)
def test_the_most_exact_timer_that_fits_is_taken(device, contract):
    one = entry("OnDevice")
    judge = Judge(one.backend, make(one.backend, CASE))
    assert judge.before("attend") == ""
    follows = measure._follows
    made = devices.sampler_of(one.backend.kernel, judge.noted[0], 1, lambda s: follows(s, judge), {"cupy": device})
    assert contract in made.contract
    assert follows(made, judge) == ""


def test_replays_that_do_nothing_are_wrong():
    one = entry("OnDevice")
    judge = Judge(one.backend, make(one.backend, CASE))
    assert judge.before("attend") == ""
    graph = samplers.GraphSampler(samplers.calls_of(one.backend.kernel, judge.noted[0], 1), FakeDevice(stale=True))
    assert "after its inputs were changed in place" in measure._follows(graph, judge)
