"""Times what a call of an operation costs the host on a CUDA device: direct, with a plan, and replayed from a graph.

    python -m qsa.parity.bench.cuda_host [--json PATH] [--rows 1 8]

Microseconds of the host from the call to its return, the median of batches of 50 calls between which the device is
waited for: no call waits for the device. ``direct``: the operation as it is called, which finds the plan of an earlier
call; ``plan``: with a plan; ``relaunch``: the plan's launches alone, with the arguments of the last call, as an engine
makes them; ``replay``: a graph of one call; ``new``: a call whose plan is made anew. Where Triton and PyTorch are
installed, a Triton kernel that does nothing is launched beside them, with 5 and with 40 arguments. int8 K/V of 65,535
cells, 2,051 of them selected; results are compared with ``reference.exact`` first, and a difference ends the run with
exit code 1.
"""

import copy
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import cupy
import numpy as np

from qsa.kernels.cuda import backend
from qsa.kernels.cuda.device import Graph, to_device
from qsa.reference import exact
from qsa.reference.geometry import REAL, step_records
from qsa.reference.index import Index

from . import script
from .cuda_attend import CELLS, WIDTH, random_slot, selections

CALLS, BATCHES, NEW_CALLS = 50, 21, 5

SLOTS = 64
"""Slots of the call of attention over many, whose pools come in a table."""


def host_us(call: Callable[[], Any], calls: int = CALLS, batches: int = BATCHES) -> float:
    """Microseconds of the host for one ``call``, the median of ``batches`` of ``calls``."""
    times = []
    for _ in range(batches):
        cupy.cuda.Device().synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - begin) / calls * 1e6)
    cupy.cuda.Device().synchronize()
    return statistics.median(times)


class Problem:
    """Arrays of one layer's step of ``rows`` rows, on the host and on the device."""

    def __init__(self, rows: int, rng: np.random.Generator) -> None:
        blocks = (CELLS // REAL.ratio + 4) // 4 * 4
        self.rows, self.blocks = rows, blocks
        self.kv, self.index = random_slot(rng, "int8"), Index(blocks, np.ones(REAL.idx_dim, np.float32), REAL)
        self.index.pooled[:] = rng.standard_normal(self.index.pooled.shape)
        self.steps = step_records(range(CELLS - rows, CELLS))
        self.ids = selections(rng, rows)
        shapes = {
            "q": (rows, REAL.n_head, REAL.head_dim),
            "q_idx": (rows, REAL.idx_heads, REAL.idx_dim),
            "k": (rows, REAL.n_head_kv, REAL.head_dim),
            "raw": (rows, REAL.idx_dim),
        }
        self.arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        self.there = {name: to_device(array) for name, array in self.arrays.items()}
        self.kv_there, self.index_there = to_device(self.kv), to_device(self.index)
        # What a slot costs the host does not depend on where its pool lies.
        self.many = [copy.copy(self.kv_there) for _ in range(SLOTS)]
        self.slots = cupy.arange(rows, dtype="int32")
        self.steps_there, self.ids_there = to_device(self.steps), to_device(self.ids)
        self.scores_there = cupy.zeros((rows, blocks), "float32")
        self.selected = cupy.zeros((rows, REAL.max_width + 1), "int32")
        self.out = cupy.zeros(self.arrays["q"].shape, "float32")

    def calls(self) -> dict[str, tuple[Callable[..., Any], Callable[[], Any]]]:
        """Operation -> (a call of it, which takes a plan or None; what makes the plan)."""
        x, steps = self.there, self.steps_there
        rows, width = self.rows, self.selected.shape[1]
        kv, index, scores, out = self.kv_there, self.index_there, self.scores_there, self.out
        return {
            "attend": (
                lambda plan: backend.attend(x["q"], kv, self.ids_there, steps, None, out, plan=plan),
                lambda: backend.plan_attend(kv, rows, WIDTH),
            ),
            f"attend, {SLOTS} slots": (
                lambda plan: backend.attend(x["q"], self.many, self.ids_there, steps, self.slots, out, plan=plan),
                lambda: backend.plan_attend(self.many, rows, WIDTH),
            ),
            "block_scores": (
                lambda plan: backend.block_scores(x["q_idx"], index, steps, scores, plan=plan),
                lambda: backend.plan_block_scores(index, rows),
            ),
            "select": (
                lambda plan: backend.select(scores, steps, self.selected, plan=plan),
                lambda: backend.plan_select(rows, self.blocks, width),
            ),
            "append_kv": (
                lambda plan: backend.append_kv(x["k"], x["k"], kv, steps, plan=plan),
                lambda: backend.plan_append_kv(kv, rows),
            ),
            "append_index": (
                lambda plan: backend.append_index(x["raw"], steps, index, plan=plan),
                lambda: backend.plan_append_index(index, rows),
            ),
        }

    def wrong(self, call: Callable[..., Any], plan: Any) -> bool:
        """Whether attention has other bytes than the reference's."""
        self.out.fill(cupy.nan)
        call(plan)
        wanted = exact.attend(self.arrays["q"], self.kv, self.ids, self.steps)
        return bool(self.out.get().tobytes() != wanted.tobytes())


def _relaunch(plan: Any) -> None:
    for launch in plan.launches:
        launch.submit(plan.key[1])


def _anew(call: Callable[..., Any], make: Callable[[], Any]) -> None:
    call(make())


def measure(problem: Problem, figures: script.Figures) -> None:
    """Check attention, then time every operation."""
    stream = cupy.cuda.get_current_stream()
    for name, (call, make) in problem.calls().items():
        plan = make()
        if name.startswith("attend") and (problem.wrong(call, None) or problem.wrong(call, plan)):
            figures.wrong.append(f"{name}, {problem.rows} rows")
            return
        call(plan)
        graph = Graph(partial(call, None))
        times = {
            "direct": host_us(partial(call, None)),
            "plan": host_us(partial(call, plan)),
            "relaunch": host_us(partial(_relaunch, plan)),
            "replay": host_us(partial(graph._graph.launch, stream=stream)),
            "new": host_us(partial(_anew, call, make), NEW_CALLS),
        }
        case = f"{name}, {problem.rows} row{'s' * (problem.rows > 1)}"
        figures.add(case, times, f"{case:<26} " + "  ".join(f"{key} {us:6.1f}" for key, us in times.items()))


def triton_us(arguments: int) -> float | None:
    """Microseconds of the host for a launch of a Triton kernel of so many arguments, of which the first is an array and
    half of the others are too; None where Triton or PyTorch is missing."""
    if importlib.util.find_spec("triton") is None or importlib.util.find_spec("torch") is None:
        return None
    import tempfile
    from pathlib import Path

    import torch

    names = [f"a{i}" for i in range(arguments)]
    source = f"import triton\n\n\n@triton.jit\ndef nothing({', '.join(names)}):\n    pass\n"
    with tempfile.TemporaryDirectory() as folder:
        # Triton reads a kernel's source from its file.
        path = Path(folder) / "nothing.py"
        path.write_text(source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location("nothing", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        array = torch.zeros(1024, device="cuda")
        values = [array if i % 2 == 0 else 1000 + i for i in range(arguments)]
        return host_us(lambda: module.nothing[(132,)](*values))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of the benchmark; returns 1 when a result is wrong."""
    parser = script.parser("cuda_host", __doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    arguments = parser.parse_args(argv)
    figures, rng = script.Figures(), np.random.default_rng(1)
    for rows in arguments.rows:
        measure(Problem(rows, rng), figures)
    for count in (5, 40):
        us = triton_us(count)
        if us is not None:
            figures.add(f"Triton, {count} arguments", us, f"{f'Triton, {count} arguments':<24} {us:6.1f}")
    return figures.finish(arguments.json, figures.values)


if __name__ == "__main__":
    sys.exit(main())
