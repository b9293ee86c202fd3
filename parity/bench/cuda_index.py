"""Times ``block_scores`` and ``select`` on a CUDA device beside the read limit, after checking their bytes.

    python -m qsa.parity.bench.cuda_index [--json PATH] [--contexts 16K 64K ...] [--rows 1 4]
                                          [--operations scores] [--forms]

Every figure is the median over replays of a captured graph that holds one launch many times, divided by their number,
in microseconds: hot, one stream, launches included (``timing.py``). ``read`` is a kernel that only loads the bytes of
the keys (or scores) that the operation reads, in the same run (``limits.py``). ``default`` names no schedule.
``--forms`` adds the builds of the scores' one-row kernel among which the standing one was chosen. The outputs are
compared with ``reference.exact``, byte for byte, before they are timed; a difference is named at the end, with exit
code 1.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import cupy
import numpy as np

from qsa.kernels.cuda.block_scores import block_scores
from qsa.kernels.cuda.block_scores_kernels import THREADS, WARPS, one_row
from qsa.kernels.cuda.common.defaults import HELD_BLOCKS
from qsa.kernels.cuda.device import to_device
from qsa.kernels.cuda.select import select
from qsa.kernels.cuda.toolchain import compiler
from qsa.kernels.cuda.toolchain.compiler import launch, properties
from qsa.kernels.ops import OPERATIONS
from qsa.reference import exact
from qsa.reference.geometry import REAL, step_records
from qsa.reference.index import Index

from . import limits, script, timing

_SIZES = {"1K": 1 << 10, "16K": 1 << 14, "64K": 1 << 16, "256K": 1 << 18, "1M": 1 << 20}
CONTEXTS = {**{name: (size - 1, size) for name, size in _SIZES.items()}, "1K-in-1M": (1023, 1 << 20)}
"""Name -> (cells, capacity in cells): a tail of 3; the last shows what unused capacity costs."""

FORMS = ((4, 3, 4), (8, 2, 2), (2, 4, 5), (4, 3, 8))
"""(blocks of a warp under way, thread blocks a multiprocessor must have room for, thread blocks of the grid for each
multiprocessor) of the builds that ``--forms`` times; the first is the standing one."""


class Figures(script.Figures):
    """Medians in microseconds, of calls whose results were compared."""

    def check_and_time(
        self, name: str, call: Callable[[], Any], expected: np.ndarray, equal: Callable[[np.ndarray, np.ndarray], bool]
    ) -> None:
        """Compare ``call``'s result with ``expected``, then time it."""
        got = call()
        if got is False or not equal(got.get(), expected):
            self.wrong.append(name)
        self.time(name, call)

    def time(self, name: str, call: Callable[[], Any]) -> None:
        """Time ``call``."""
        found = timing.hot(call)
        spread = f"({found.p10:.2f} to {found.p90:.2f})"
        note = "  BYTES DIFFER" * (name in self.wrong)
        self.add(name, found.median, f"{name:<44} {found.median:9.2f} {spread:20}{note}")


def same_bits(got: np.ndarray, expected: np.ndarray) -> bool:
    """Whether two float32 arrays have the same bytes."""
    return np.array_equal(got.view(np.uint32), expected.view(np.uint32))


def run(figures: Figures, context: str, rows_list: list[int], operations: Iterable[str], forms: bool) -> None:
    """Time the operations of one context."""
    cells, capacity = CONTEXTS[context]
    rng = np.random.default_rng(cells)
    max_blocks = capacity // REAL.ratio + 2
    host = Index(max_blocks, np.ones(REAL.idx_dim, np.float32))
    host.pooled[:] = rng.standard_normal((max_blocks, REAL.idx_dim), dtype=np.float32)
    host.dead[:] = rng.standard_normal(REAL.idx_dim, dtype=np.float32)
    index = to_device(host)
    q = rng.standard_normal((max(rows_list), REAL.idx_heads, REAL.idx_dim), dtype=np.float32)
    positions = [cells - 1 - i for i in range(max(rows_list))]
    steps = step_records(positions)
    expected = exact.block_scores(q, host, steps, np.zeros((len(q), max_blocks), np.float32))
    if "scores" in operations:
        scores_of(figures, context, rows_list, (q, index, steps), expected)
    if forms:
        forms_of(figures, context, (q, index, steps), expected)
    if "select" in operations:
        select_of(figures, context, rows_list, positions, expected)


def scores_of(
    figures: Figures, context: str, rows_list: Iterable[int], given: tuple[Any, Any, Any], expected: np.ndarray
) -> None:
    """Every schedule of the scores, and the one by default."""
    q, index, steps = given
    figures.time(f"scores {context} read", limits.sequential(CONTEXTS[context][0] // REAL.ratio * REAL.idx_dim * 4))
    for rows in rows_list:
        qd, sd = cupy.asarray(q[:rows]), cupy.asarray(steps[:rows])
        out = cupy.zeros((rows, index.max_blocks), "float32")
        for schedule in (None, "warp", "multi_query", "transposed", "prompt"):
            figures.check_and_time(
                f"scores {context} rows {rows} {schedule or 'default'}",
                partial(block_scores, qd, index, sd, out, schedule=schedule),
                expected[:rows],
                same_bits,
            )


def _launch(kernel: Any, grid: int, arguments: tuple[Any, ...], out: Any) -> Any:
    """Launch a build of the one-row kernel; returns ``out``."""
    launch(kernel, (grid, 1), THREADS, arguments)
    return out


def forms_of(figures: Figures, context: str, given: tuple[Any, Any, Any], expected: np.ndarray) -> None:
    """The builds of the one-row kernel."""
    q, index, steps = given
    qd, sd = cupy.asarray(q[:1]), cupy.asarray(steps[:1])
    for keys, least, resident in FORMS:
        out = cupy.zeros((1, index.max_blocks), "float32")
        grid = min(-(-index.max_blocks // (WARPS * keys)), resident * properties().multiprocessors)
        arguments = (qd, index.pooled, index.dead, sd, out, 1, index.max_blocks, REAL.ratio)
        call = partial(_launch, one_row(keys, least), grid, arguments, out)

        figures.check_and_time(f"scores {context} form {keys} {least} {resident}", call, expected[:1], same_bits)


def select_of(
    figures: Figures, context: str, rows_list: Iterable[int], positions: list[int], scores: np.ndarray
) -> None:
    """Every schedule of the selection under both rules, and the one by default."""
    max_blocks = scores.shape[1]
    for rule in ("blocks", "cells"):
        records = step_records(positions, rule)
        wanted = exact.select(scores, records, rule=rule)
        for rows in rows_list:
            given, rd = cupy.asarray(scores[:rows]), cupy.asarray(records[:rows])
            ids = cupy.zeros((rows, REAL.max_width), "int32")
            if rule == "blocks":
                read = limits.sequential(rows * (CONTEXTS[context][0] // REAL.ratio) * 4)
                figures.time(f"select {context} rows {rows} read", read)
            for schedule in (None, *OPERATIONS["select"].schedules):
                if schedule == "registers" and max_blocks > HELD_BLOCKS:
                    continue
                figures.check_and_time(
                    f"select {context} {rule} rows {rows} {schedule or 'default'}",
                    partial(select, given, rd, ids, rule=rule, schedule=schedule),
                    wanted[:rows],
                    np.array_equal,
                )


TABLE = (
    ("block_scores, read limit", "scores {} read"),
    ("1 row, by default", "scores {} rows 1 default"),
    ("1 row, SCORES_TRANSPOSED off", "scores {} rows 1 warp"),
    ("1 row, SCORES_TRANSPOSED on", "scores {} rows 1 transposed"),
    ("4 rows, SCORES_TRANSPOSED off", "scores {} rows 4 multi_query"),
    ("4 rows, SCORES_TRANSPOSED on", "scores {} rows 4 transposed"),
    ("select, read limit of 1 row", "select {} rows 1 read"),
    ("1 row, by default", "select {} blocks rows 1 default"),
    ("1 row, TOPK_SCAN off", "select {} blocks rows 1 wide"),
    ("1 row, TOPK_SCAN on", "select {} blocks rows 1 scan"),
    ("1 row, registers", "select {} blocks rows 1 registers"),
    ("1 row, spread", "select {} blocks rows 1 spread"),
    ("1 row, bounded", "select {} blocks rows 1 bounded"),
    ("4 rows, TOPK_SCAN off", "select {} blocks rows 4 wide"),
    ("4 rows, TOPK_SCAN on", "select {} blocks rows 4 scan"),
    ("4 rows, registers", "select {} blocks rows 4 registers"),
    ("4 rows, spread", "select {} blocks rows 4 spread"),
    ("4 rows, bounded", "select {} blocks rows 4 bounded"),
)
"""Label of a line of the table -> figure's name, the context left open."""


def table(values: dict[str, float], contexts: list[str]) -> str:
    """The switches off against on, the other forms and the read limits, as a Markdown table."""
    lines = ["| us, hot, graph replay | " + " | ".join(contexts) + " |", "|---" * (1 + len(contexts)) + "|"]
    for label, name in TABLE:
        cells = [values.get(name.format(context)) for context in contexts]
        if any(cell is not None for cell in cells):
            lines.append(f"| {label} | " + " | ".join("" if cell is None else f"{cell:.1f}" for cell in cells) + " |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of the benchmark; returns 1 when a result is wrong."""
    parser = script.parser("cuda_index", __doc__)
    parser.add_argument("--contexts", nargs="+", default=[*CONTEXTS], choices=CONTEXTS)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--operations", nargs="*", default=["scores", "select"], choices=["scores", "select"])
    parser.add_argument("--forms", action="store_true", help="the builds of the scores' one-row kernel")
    arguments = parser.parse_args(argv)
    figures = Figures()
    for context in arguments.contexts:
        run(figures, context, arguments.rows, arguments.operations, arguments.forms)
    print(table(figures.values, arguments.contexts))
    facts = {"device": properties().name, "compiler": compiler.NAME}
    return figures.finish(arguments.json, {**facts, "us": figures.values, "bad": figures.wrong})


if __name__ == "__main__":
    sys.exit(main())
