"""Timing on a CUDA device: replays of captured graphs between events, hot or cold, and the row of a report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qsa.kernels.cuda.device import Graph
from qsa.kernels.cuda.toolchain import compiler

HOT_LAUNCHES, HOT_REPLAYS = 10, 50
COLD_REPLAYS = 40
WARM_UP = 3


@dataclass(frozen=True)
class Timing:
    """Median, 10th and 90th percentile in microseconds, and the contract: how they were measured."""

    median: float
    p10: float
    p90: float
    contract: str

    @classmethod
    def of(cls, times: Sequence[float], contract: str) -> "Timing":
        """Of a list of microseconds. Raises ValueError on an empty list or a time that is not above 0."""
        found = np.asarray(times, np.float64)
        if not found.size or not (found > 0).all():
            raise ValueError(f"times = {found.tolist()}: must be microseconds above 0")
        p10, median, p90 = (float(x) for x in np.percentile(found, (10, 50, 90)))
        return cls(median, p10, p90, contract)


def hot(call: Callable[[], Any], launches: int = HOT_LAUNCHES, replays: int = HOT_REPLAYS) -> Timing:
    """:class:`Timing` of ``call``, which launches on the current stream: a graph that holds it ``launches`` times,
    replayed; the data that it reads stays in the caches as far as it fits. Times are per launch."""
    graph = Graph(lambda: _repeated(call, launches))
    times = [_between(graph, lambda: None) / launches for _ in range(WARM_UP + replays)]
    return Timing.of(times[WARM_UP:], f"hot, graph of {launches} launches, median of {replays}")


def cold(call: Callable[[], Any], replays: int = COLD_REPLAYS) -> Timing:
    """:class:`Timing` of ``call``, once in a graph; before each replay twice the L2 cache is written, which leaves
    nothing of ``call``'s data there. Nothing is subtracted: the time holds a graph's launch."""
    cupy = compiler.array_module()
    flood = cupy.zeros(max(1, 2 * compiler.properties().l2 // 4), "int32")
    graph = Graph(call)

    def evict() -> None:
        with graph.stream:
            flood.fill(1)

    times = [_between(graph, evict) for _ in range(WARM_UP + replays)]
    return Timing.of(times[WARM_UP:], f"cold, graph of 1 launch, median of {replays}")


def _repeated(call: Callable[[], Any], launches: int) -> bool:
    """Call so many times; False at the first refusal."""
    return all(call() is not False for _ in range(launches))


def _between(graph: Graph, before: Callable[[], None]) -> float:
    """Microseconds on the device of one replay; ``before`` is enqueued in front of it and not timed."""
    cupy = compiler.array_module()
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    before()
    # On its own stream a replay waits for no other work, so only the replay is between the events.
    with graph.stream:
        start.record()
        graph.replay()
        end.record()
    end.synchronize()
    return cupy.cuda.get_elapsed_time(start, end) * 1e3


def row(case: str, timing: Timing, limit: str, limit_timing: Timing) -> dict[str, Any]:
    """The row of a case with a right result, with the fields of :class:`qsa.golden.device_records.Row`.

    timing        :class:`Timing` of the case; its contract is the row's
    limit         what the limit is, in words
    limit_timing  :class:`Timing` of the limit, under the same contract; ValueError under another
    """
    if limit_timing.contract != timing.contract:
        raise ValueError(f"{case}: limit timed {limit_timing.contract}, case {timing.contract}: must be the same")
    times = {
        "median_us": timing.median,
        "p10_us": timing.p10,
        "p90_us": timing.p90,
        "limit_us": limit_timing.median,
        "share": limit_timing.median / timing.median,
    }
    rounded = {key: round(value, 4) for key, value in times.items()}
    return {"case": case, "contract": timing.contract, "correct": True, "limit": limit, **rounded}


def wrong(case: str, limit: str) -> dict[str, Any]:
    """The row of a case with a wrong result: it was not timed."""
    times = dict.fromkeys(("median_us", "p10_us", "p90_us", "limit_us", "share"))
    return {"case": case, "contract": "not timed", "correct": False, "limit": limit, **times}
