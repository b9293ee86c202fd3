"""Times one layer's step on a CUDA device, its launches in one graph, one after another and overlapping.

    python -m qsa.parity.bench.cuda_layer [--json PATH] [--cases "1 row" ...] [--contexts 16K 64K ...] [--rows 1 4]

A step at 64K cells is scores, selection and attention, with the two appends before them where the name says so; index
keys of 16 bits, int8 K/V. The batch window has two slots of two rows: scores for each slot, then one selection and one
call of attention. The draft call is attention over the last 32,768 cells. ``index stage`` is scores and selection.

Every figure is the median over replays of a graph that holds the step many times, divided by their number, in
microseconds (``timing.py``). ``off``: a launch starts when the one ahead of it is over. ``on``: a launch may start
earlier (design section 8), but not the first one of a step, which waits for the whole step before. ``chained``: that
one too, as between layers whose launches all overlap. The three take turns, twice; each figure is the lower of the two.
Before that the bytes of all outputs are compared with ``reference.exact`` in every form, from a graph of one step, and
those of the timed graphs with one another. A difference is named at the end, with exit code 1. Without a device nothing
is timed.
"""

import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from qsa.reference import exact
from qsa.reference.geometry import REAL, step_records
from qsa.reference.index import Index
from qsa.reference.kv import PagedKV

from . import script
from .engine import has_device

CELLS, DRAFT_CELLS = 65535, 32768
CONTEXTS = {"16K": 1 << 14, "64K": 1 << 16, "256K": 1 << 18, "1M": 1 << 20}
"""Name -> cells, all of them in use but one."""

FORMS = {"off": (False, False), "on": (False, True), "chained": (True, True)}
"""Name -> whether the first launch of a step may start early, and whether the others may."""


def random_kv(rng: np.random.Generator, cells: int) -> PagedKV:
    """K/V of random codes and scales, in shuffled pages."""
    kv = PagedKV.new("int8", cells, table=rng.permutation(-(-cells // 4)))
    for side in (kv.pool.k, kv.pool.v):
        side.codes[:] = rng.integers(-127, 128, side.codes.shape, np.int8)
        side.scale[:] = np.exp(rng.standard_normal(side.scale.shape, np.float32)) / 100
    return kv


def random_index(rng: np.random.Generator, blocks: int) -> Index:
    """Random pooled keys of 16 bits, dead key, tail and rotations."""
    angles = rng.standard_normal((blocks, REAL.n_rot // 2), dtype=np.float32)
    index = Index(blocks, np.ones(REAL.idx_dim, np.float32), format="int16")
    index.rope[:] = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    index.tail[:] = rng.standard_normal(index.tail.shape)
    index.set_pooled(slice(None), rng.standard_normal((blocks, REAL.idx_dim), dtype=np.float32))
    index.set_dead(rng.standard_normal(REAL.idx_dim, dtype=np.float32))
    return index


class Step:
    """One step of ``rows`` rows of each of ``slots`` slots, at the end of ``cells`` cells.

    module     the operations on the device: ``qsa.kernels.cuda.backend``
    parts      which of ``append``, ``scores``, ``select``, ``attend`` it has
    window     cells of a row's attention where nothing is selected, else None
    """

    def __init__(
        self,
        module: Any,
        parts: Sequence[str],
        rows: int,
        slots: int = 1,
        cells: int = CELLS,
        window: int | None = None,
    ) -> None:
        rng = np.random.default_rng(rows + 10 * slots)
        self.module, self.parts, self.rows, self.slots = module, tuple(parts), rows, slots
        self.total, blocks = rows * slots, (cells // REAL.ratio + 4) // 4 * 4
        with_kv = bool({"append", "attend"} & set(parts))
        kv, index = random_kv(rng, cells) if with_kv else None, None if window else random_index(rng, blocks)
        self.steps = np.tile(step_records(range(cells - rows, cells)), (slots, 1))
        shapes = {
            "q": (self.total, REAL.n_head, REAL.head_dim),
            "q_idx": (self.total, REAL.idx_heads, REAL.idx_dim),
            "k": (self.total, REAL.n_head_kv, REAL.head_dim),
            "v": (self.total, REAL.n_head_kv, REAL.head_dim),
            "raw": (self.total, REAL.idx_dim),
        }
        self.given = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
        outputs = {
            "scores": np.full((self.total, blocks), -np.inf, np.float32),
            "ids": np.full((self.total, REAL.max_width), -1, np.int32),
            "out": np.full(shapes["q"], np.nan, np.float32),
        }
        if window:
            self.steps[:, 3] = window
            outputs["ids"] = np.arange(cells - window, cells, dtype=np.int32)[None].repeat(self.total, 0)
        # Two slots of the same cells, each in a pool of its own.
        self.kvs = [module.to_device(kv) for _ in range(slots)] if with_kv else []
        self.indexes = [module.to_device(index) for _ in range(slots)] if index is not None else []
        self.there = {name: module.to_device(x) for name, x in (*self.given.items(), *outputs.items())}
        self.there["steps"] = module.to_device(self.steps)
        self.there["slots"] = module.to_device(np.arange(self.total, dtype=np.int32) // rows)
        self.wanted = self._wanted(kv, index, outputs)
        self._initial = [(x, x.copy()) for x in self._changing()]

    def _changing(self):
        """The arrays on the device that a step writes and that the next one would read, and its outputs."""
        for index in self.indexes:
            yield from (index.tail, index.dead, index.pooled, index.dead_exponent, index.pooled_exponent)
        for kv in self.kvs:
            for side in (kv.pool.k, kv.pool.v):
                yield from (side.codes, side.scale)
        yield from (self.there[name] for name in ("scores", "ids", "out"))

    def _wanted(self, kv, index, outputs):
        """Name -> output of the reference, by which the reference's own kv and index are changed."""
        x, one = self.given, slice(0, self.rows)
        wanted = {name: array.copy() for name, array in outputs.items()}
        for slot in range(self.slots):
            one = slice(slot * self.rows, (slot + 1) * self.rows)
            steps = self.steps[one]
            now_kv, now_index = deepcopy(kv), deepcopy(index)
            if "append" in self.parts:
                exact.append_kv(x["k"][one], x["v"][one], now_kv, steps)
                exact.append_index(x["raw"][one], steps, now_index)
            if "scores" in self.parts:
                wanted["scores"][one] = exact.block_scores(x["q_idx"][one], now_index, steps, outputs["scores"][one])
            if "select" in self.parts:
                found = exact.select(wanted["scores"][one], steps)
                wanted["ids"][one, : found.shape[1]] = found
            if "attend" in self.parts:
                wanted["out"][one] = exact.attend(x["q"][one], now_kv, wanted["ids"][one], steps)
        return wanted

    def reset(self) -> None:
        """The arrays as they were at first."""
        for array, initial in self._initial:
            array[...] = initial

    def call(self, first: bool, others: bool) -> Callable[[], None]:
        """A function that launches the step on the current stream. ``first``, ``others``: which launches may start
        early."""
        launches = self.operations(others)
        launches[0] = self.operations(first)[0]

        def launch():
            for one in launches:
                one()

        return launch

    def operations(self, early: bool) -> list[Callable[[], None]]:
        """Functions that launch the step's operations on the current stream, in order, with plans whose launches may
        start ``early``. RuntimeError at the call of one that is refused."""
        return [self._operation(make, run, early) for make, run in self._calls()]

    def _operation(self, make, run, early):
        # A plan belongs to a stream, and a graph is recorded on one of its own.
        plans = dict[Any, Any]()

        def launch():
            from qsa.kernels.cuda.common.plans import overlapping
            from qsa.kernels.cuda.toolchain.compiler import stream_key

            key = stream_key()
            if key not in plans:
                with overlapping(early):
                    plans[key] = make()
                if plans[key] is False:
                    raise RuntimeError(f"{self.parts}, {self.rows} rows: an operation was refused")
            run(plans[key])

        return launch

    def _calls(self):
        """(what makes the plan, what runs it) of every operation, in order."""
        m, x, rows, total = self.module, self.there, self.rows, self.total
        kv = self.kvs if self.slots > 1 else self.kvs[0] if self.kvs else None
        slots = x["slots"] if self.slots > 1 else None
        calls = list[tuple[Callable[[], Any], Callable[[Any], Any]]]()
        if "append" in self.parts:
            calls.append(
                (
                    lambda: m.plan_append_kv(kv, total),
                    lambda plan: m.append_kv(x["k"], x["v"], kv, x["steps"], slots, plan=plan),
                )
            )
        for number, index in enumerate(self.indexes):
            one = slice(number * rows, (number + 1) * rows)
            raw, q, steps, scores = (x[name][one] for name in ("raw", "q_idx", "steps", "scores"))
            if "append" in self.parts:
                calls.append(
                    (
                        lambda index=index: m.plan_append_index(index, rows),
                        lambda plan, raw=raw, steps=steps, index=index: m.append_index(raw, steps, index, plan=plan),
                    )
                )
            calls.append(
                (
                    lambda index=index: m.plan_block_scores(index, rows),
                    lambda plan, q=q, index=index, steps=steps, scores=scores: m.block_scores(
                        q, index, steps, scores, plan=plan
                    ),
                )
            )
        if "select" in self.parts:
            blocks, cap = x["scores"].shape[1], x["ids"].shape[1]
            calls.append(
                (
                    lambda: m.plan_select(total, blocks, cap),
                    lambda plan: m.select(x["scores"], x["steps"], x["ids"], plan=plan),
                )
            )
        if "attend" in self.parts:
            cap = x["ids"].shape[1]
            calls.append(
                (
                    lambda: m.plan_attend(kv, total, cap, arithmetic="exact"),
                    lambda plan: m.attend(x["q"], kv, x["ids"], x["steps"], slots, x["out"], plan=plan),
                )
            )
        return calls

    def wrong(self) -> list[str]:
        """Names of the outputs that differ from the reference's bytes."""
        return [name for name, x in self.wanted.items() if to_bytes(self.module, self.there[name]) != x.tobytes()]

    def digest(self) -> bytes:
        """The bytes of all that a step writes."""
        return b"".join(to_bytes(self.module, x) for x in self._changing())


def to_bytes(module: Any, x: Any) -> bytes:
    """The bytes of an array on the device."""
    return bytes(np.ascontiguousarray(module.to_host(x)).tobytes())


STEP = ("scores", "select", "attend")
CASES: dict[str, dict[str, Any]] = {
    "1 row": {"parts": STEP, "rows": 1},
    "4 rows": {"parts": STEP, "rows": 4},
    "1 row, appends": {"parts": ("append", *STEP), "rows": 1},
    "4 rows, appends": {"parts": ("append", *STEP), "rows": 4},
    "2 slots x 2 rows": {"parts": STEP, "rows": 2, "slots": 2},
    "draft call, 32K": {"parts": ("attend",), "rows": 1, "window": DRAFT_CELLS},
}
"""Name -> arguments of :class:`Step`."""


def measure(figures: script.Figures, name: str, step: Step) -> None:
    """Check the step in every form, then time them by turns."""
    from qsa.kernels.cuda.device import Graph
    from qsa.kernels.cuda.toolchain.compiler import array_module

    from . import timing

    calls = {form: step.call(*early) for form, early in FORMS.items()}
    for form, call in calls.items():
        graph = Graph(call)
        step.reset()
        array_module().cuda.get_current_stream().synchronize()
        graph.replay()
        graph.stream.synchronize()
        figures.wrong += [f"{name}, {form}: {what}" for what in step.wrong()]
    times: dict[str, list[float]] = {form: [] for form in FORMS}
    digests = set()
    for form in (*FORMS, *reversed(FORMS)):
        step.reset()
        array_module().cuda.get_current_stream().synchronize()
        times[form].append(timing.hot(calls[form]).median)
        array_module().cuda.Device().synchronize()
        digests.add(step.digest())
    if len(digests) > 1:
        figures.wrong.append(f"{name}: the forms left different bytes")
    found = {form: min(both) for form, both in times.items()}
    note = "  WRONG" * any(wrong.startswith(name) for wrong in figures.wrong)
    figures.add(name, found, f"{name:<28} " + "".join(f"{us:9.2f}" for us in found.values()) + note)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of the benchmark; returns 1 when a result is wrong."""
    parser = script.parser("cuda_layer", __doc__)
    parser.add_argument("--cases", nargs="*", default=[*CASES], choices=CASES, metavar="CASE")
    parser.add_argument("--contexts", nargs="*", default=[*CONTEXTS], choices=CONTEXTS, help="of the index stage")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4], help="of the index stage")
    arguments = parser.parse_args(argv)
    if not has_device():
        print("cuda_layer: no CUDA device: nothing is timed")
        return 0
    from qsa.kernels.cuda import backend
    from qsa.kernels.cuda.toolchain import compiler

    figures = script.Figures()
    print(f"{'us':<28} " + "".join(f"{form:>9}" for form in FORMS), flush=True)
    for name in arguments.cases:
        measure(figures, name, Step(backend, **CASES[name]))
    for context in arguments.contexts:
        for rows in arguments.rows:
            step = Step(backend, ("scores", "select"), rows, cells=CONTEXTS[context] - 1)
            measure(figures, f"index stage, {context}, {rows} row{'s' * (rows > 1)}", step)
    facts = {"device": compiler.properties().name, "compiler": compiler.NAME}
    return figures.finish(arguments.json, {**facts, "us": figures.values, "bad": figures.wrong})


if __name__ == "__main__":
    sys.exit(main())
