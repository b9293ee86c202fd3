"""Contestants take turns at one case: judged before, timed by turns, judged after, held to the floor."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ..backend import Backend, UnsupportedError
from ..contract.kernel import Kernel
from ..evidence.process import impersonal
from ..speed import verdict
from ..speed.verdict import Floors, Round
from .calls import Call, Judge, Noted
from .cases import BenchCase
from .devices import Device, sampler_of
from .limits import floors
from .problems import Problem, make
from .results import Against, Floor, Limits, State, Timing
from .samplers import Sampler, copies

SAMPLE_SECONDS = {"cpu": 0.002, "cuda": 0.001}
"""A sample is of as many calls as take so long, one at least."""

ROUNDS, FEWEST_ROUNDS = 7, 4
"""Rounds of a case; fewer where they would take several times the time of a case. Of three rounds no ranks are rare
enough for a verdict."""

MOST_ROUNDS = 60

FLOORS = {"cpu": Floors(relative=0.05, absolute=1.0), "cuda": Floors(relative=0.02, absolute=0.1)}
"""The smallest difference of two contestants that counts."""


@dataclass
class Entry:
    """A contestant: ``name`` in the table, ``backend``; ``kind`` is ``cpu`` or ``cuda``, where it computes."""

    name: str
    backend: Backend
    kind: str = "cpu"


@dataclass
class Options:
    """How cases are measured.

    seconds  of sampling a contestant of a case, about
    limits   kind -> the machine's :class:`Limits`
    again    kind -> function that measures them once more
    state    kind -> function that reads the :class:`State`
    devices  of ``devices.sampler_of``
    rng      draws how many calls a sample has: no kernel can know which one is looked at
    """

    seconds: float
    limits: dict[str, Limits]
    again: dict[str, Callable[[], Limits]]
    state: dict[str, Callable[[], State]]
    devices: dict[str, Device] = field(default_factory=dict)
    rng: random.Random = field(default_factory=lambda: random.Random(0))


@dataclass
class Racer:
    """A contestant that takes part: its samples (seconds of a call) in order, or ``fault``: (status, reason)."""

    entry: Entry
    problem: Problem | None = None
    judge: Judge | None = None
    sampler: Sampler | None = None
    count: int = 1
    samples: list[float] = field(default_factory=list)
    fault: tuple[str, str] | None = None
    state: State | None = None


def turns(number: int) -> list[int]:
    """The order of a round: A B B A, A B C C B A; of one contestant A A. A drift that is even cancels in it."""
    return [*range(number), *reversed(range(number))]


def measured(case: BenchCase, entries: Sequence[Entry], options: Options) -> list[Timing]:
    """The timings of one case, an entry each in their order; the first entry is the one that others stand against."""
    racers = [Racer(entry) for entry in entries]
    for racer in racers:
        _guarded(racer, partial(_prepare, racer, case, options))
    running = [racer for racer in racers if racer.fault is None]
    for _ in _rounds(running, options):
        order = [running[at] for at in turns(len(running))]
        for racer in order:
            if racer.fault is None:
                _guarded(racer, partial(_sample, racer, options))
    for racer in running:
        if racer.fault is None:
            _guarded(racer, partial(_after, racer, options))
    return [_timing(case, racer, racers, options) for racer in racers]


def _guarded(racer: Racer, act: Callable[[], None]) -> None:
    """Whatever a backend raises ends its own part alone."""
    try:
        act()
    except UnsupportedError as error:
        racer.fault = ("unsupported", str(error))
    except Exception as error:
        racer.fault = ("wrong", impersonal(f"{type(error).__name__}: {error}"))


def _prepare(racer: Racer, case: BenchCase, options: Options) -> None:
    """Judge the results, make the timer, find out how many calls a sample has."""
    backend, kind = racer.entry.backend, racer.entry.kind
    problem = racer.problem = make(backend, case)
    judge = racer.judge = Judge(backend, problem)
    wrong = judge.before(case.operation)
    if wrong:
        racer.fault = ("wrong", wrong)
        return
    assert isinstance(backend.kernel, Kernel)
    noted = judge.noted[0]
    count, cache = 1, case.get("cache")
    if cache == "cold":
        count = copies(cache, problem.touched, options.limits[kind].cache, _seconds(backend.kernel, noted))
    racer.sampler = sampler_of(backend.kernel, noted, count, lambda sampler: _follows(sampler, judge), options.devices)
    wrong = _follows(racer.sampler, judge)
    if wrong:
        racer.fault = ("wrong", wrong)
        return
    # The first sample may still load or compile something.
    taken = min(racer.sampler.sample(1) for _ in range(3))
    racer.count = max(1, round(SAMPLE_SECONDS[kind] / max(taken, 1e-8)))
    # Counts in the tens of thousands say no more, and each holds a result.
    racer.count = min(racer.count, 20000)


def _seconds(kernel: Kernel, noted: Noted) -> float:
    """Seconds of a second call, about."""
    call = Call(kernel, noted)
    call.first()
    begin = time.perf_counter()
    call.result(call.function())
    return time.perf_counter() - begin


def _follows(sampler: Sampler, judge: Judge) -> str:
    """Why a sampler's calls are wrong: with the first values, with the second ones written over them in place, and with
    the first ones again. Empty where they are right."""
    first, second = ({name: noted.arguments[name] for name in judge.problem.changed} for noted in judge.noted)
    for variant, values in ((0, first), (1, second), (0, first)):
        for call in sampler.calls:
            call.change(values)
        sampler.sample(max(1, len(sampler.calls)))
        for output in sampler.outputs():
            wrong = judge.wrong(output, variant)
            if wrong:
                when = "" if variant == 0 else " after its inputs were changed in place"
                return f"a call as it is timed is wrong{when}: {wrong}"
    return ""


def _rounds(running: Sequence[Racer], options: Options) -> Iterator[int]:
    """Round numbers: as many as the time of the case allows."""
    if not running:
        return
    # A sample has three quarters of ``count`` calls on average, and hot ones a call before them.
    each = max(0.75 * racer.count * _estimate(racer) for racer in running)
    wanted = round(options.seconds / max(2 * each, 1e-6))
    least = ROUNDS if 2 * ROUNDS * each <= 4 * options.seconds else FEWEST_ROUNDS
    yield from range(min(max(wanted, least), MOST_ROUNDS))


def _estimate(racer: Racer) -> float:
    assert racer.sampler is not None
    return racer.sampler.sample(1)


def _sample(racer: Racer, options: Options) -> None:
    """One sample, and a look at what its last call gave."""
    assert racer.sampler is not None and racer.judge is not None
    count = options.rng.randint(-(-racer.count // 2), racer.count)
    racer.samples.append(racer.sampler.sample(count))
    for output in racer.sampler.outputs():
        wrong = racer.judge.wrong(output)
        if wrong:
            racer.fault = ("wrong", f"a timed call is wrong, which was right before the timing: {wrong}")


def _after(racer: Racer, options: Options) -> None:
    """The state of the machine at work, and the comparison after the timing."""
    assert racer.sampler is not None and racer.judge is not None
    racer.state = racer.sampler.state(options.state[racer.entry.kind])
    wrong = _follows(racer.sampler, racer.judge)
    if wrong:
        racer.fault = ("wrong", f"after the timing {wrong}")


def figure(samples: Sequence[float], kind: str) -> tuple[float, float, float]:
    """(time, 10th, 90th percentile) of samples. On a CPU the time is their lower quartile: other work on the machine
    only adds time. On a device it is the median."""
    wanted = (25 if kind == "cpu" else 50, 10, 90)
    us, p10, p90 = (float(x) for x in np.percentile(np.asarray(samples), wanted))
    return us, p10, p90


def _timing(case: BenchCase, racer: Racer, racers: Sequence[Racer], options: Options) -> Timing:
    """The report's line of one contestant."""
    kind = racer.entry.kind
    known: dict[str, Any] = {
        "case": case.text,
        "operation": case.operation,
        "parameters": dict(case.parameters),
        "contestant": racer.entry.name,
    }
    if racer.problem is not None:
        known["floor"] = _floor(racer.problem, case, options.limits[kind])
    if racer.fault is not None:
        return Timing(**known, status=racer.fault[0], reason=racer.fault[1])  # type: ignore[arg-type]
    assert racer.sampler is not None
    samples = tuple(round(1e6 * sample, 4) for sample in racer.samples)
    us, p10, p90 = figure(samples, kind)
    statistic = "lower quartile" if kind == "cpu" else "median"
    contract = f"{racer.sampler.contract}; {statistic} of {len(samples)} samples of {racer.count} calls at most"
    if racer.problem is not None and racer.problem.note:
        contract += f"; {racer.problem.note}"
    known |= {"contract": contract, "state": racer.state}
    if floors.impossible(us, known["floor"]) and racer.problem is not None:
        # The limits may have been measured while other work ran.
        options.limits[kind] = floors.best(options.limits[kind], options.again[kind]())
        known["floor"] = _floor(racer.problem, case, options.limits[kind])
    reason = floors.impossible(us, known["floor"])
    if reason:
        return Timing(**known, status="impossible", reason=reason)
    against = None
    if racer is not racers[0] and racers[0].fault is None:
        against = compared(racer.samples, racers[0].samples, kind, _throttled(racer, racers[0]))
    return Timing(
        **known,
        status="timed",
        us=us,
        p10_us=p10,
        p90_us=p90,
        samples=samples,
        share=known["floor"].us / us,
        against=against,
    )


def _floor(problem: Problem, case: BenchCase, limits: Limits) -> Floor:
    return floors.floor(limits, problem.touched, problem.macs, case.get("cache"))


def _throttled(*racers: Racer) -> list[str]:
    return [reason for racer in racers if racer.state is not None for reason in racer.state.throttled]


def compared(base: Sequence[float], own: Sequence[float], kind: str, throttled: Sequence[str] = ()) -> Against:
    """How the backend itself, with samples ``own``, stands against another: pairs of samples are rounds."""
    rounds = [
        Round((base[at] * 1e6, base[at + 1] * 1e6), (own[at] * 1e6, own[at + 1] * 1e6))
        for at in range(0, min(len(base), len(own)) - 1, 2)
    ]
    effects = [verdict.effect(one) for one in rounds]
    difference = verdict.median(effects)
    # Beyond twenty rounds the exact distribution takes longer to compute than it is worth.
    judged = rounds[:20]
    p = verdict.rank_probability(judged if difference > 0 else [Round(one.change, one.base) for one in judged])
    floor = FLOORS[kind].share(verdict.median([time for one in rounds for time in one.base]))
    ratio = float(np.exp(difference))
    if throttled or (p > verdict.ALPHA and abs(difference) > np.log1p(floor)):
        return Against(ratio, p, verdict.AMBIGUOUS)
    if abs(difference) <= np.log1p(floor):
        return Against(ratio, p, verdict.SAME)
    return Against(ratio, p, verdict.SLOWER if difference > 0 else verdict.FASTER)
