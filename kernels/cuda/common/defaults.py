"""What is launched by a call that names no schedule, where its switch is unset: a table for each class of device.

A switch that is unset means this table (design section 8); ``0`` means :data:`STANDING`, which has what engines of the
field launch, ``1`` the switch's path. Block scores and selection have the same bits in every schedule, and so has
attention in the exact arithmetic, so the table decides time alone. Context is the capacity that a call has room for: a
captured launch must serve every context up to it.

Times are medians of graph replays on one H200, hot, in microseconds; attention and selection: 2,051 cells a row, 24
query heads on 2 KV heads, int8.
"""

from typing import NamedTuple

from ...ops import WINDOW_ROWS
from ..toolchain.compiler import properties

ANY = 1 << 62
"""A limit that no call reaches."""


class Rule(NamedTuple):
    """A call of ``rows`` rows at most and ``blocks`` blocks of capacity at least takes ``schedule``."""

    rows: int
    blocks: int
    schedule: str


class Few(NamedTuple):
    """A call of ``rows`` rows at most goes through the kernel of few rows (``attend_few``), in clusters of up to
    ``blocks`` blocks, a cluster for four query heads."""

    rows: int
    blocks: int


class Defaults(NamedTuple):
    """The table of one class of device.

    scores         rules of ``block_scores``; the first that fits holds
    selection      rules of ``select``, in the same way
    clusters       blocks that share a row and KV head as one cluster of int8 attention, the best first: the first of
                   which the device holds all that a launch needs at once is taken. Where none is, or none fits, the
                   standing rule of ``attend_exact/plan.py`` holds
    cluster_heads  rows times KV heads of a launch in such clusters at most
    cluster_cells  cells that a row's ids may have room for at most
    few            rules of int8 attention of few rows of one pool; the first holds whose rows are enough and of which
                   the device holds all clusters at once. Where none does, ``clusters`` does
    few_cells      cells that a row's ids must have room for at least; at most ``cluster_cells``
    overlap        kernels whose launches start before the one ahead of them is over; in every state of the switches,
                   which say what is launched
    """

    scores: tuple[Rule, ...]
    selection: tuple[Rule, ...]
    clusters: tuple[int, ...] = ()
    cluster_heads: int = 0
    cluster_cells: int = 0
    few: tuple[Few, ...] = ()
    few_cells: int = 0
    overlap: tuple[str, ...] = ()

    def scores_schedule(self, rows: int, max_blocks: int) -> str:
        """The schedule of ``block_scores`` of ``rows`` rows over ``max_blocks`` blocks."""
        return _first(self.scores, rows, max_blocks)

    def selection_schedule(self, rows: int, max_blocks: int) -> str:
        """The schedule of ``select`` of ``rows`` rows of ``max_blocks`` scores."""
        return _first(self.selection, rows, max_blocks)


def _first(rules, rows, max_blocks):
    return next(rule.schedule for rule in rules if rows <= rule.rows and max_blocks >= rule.blocks)


ALONE_BLOCKS = 17 * 1024
"""Blocks of capacity that one thread block of ``bounded`` takes; beyond, a row needs a cluster of them."""

HELD_BLOCKS = 33 * 1024
"""Blocks of capacity that the registers of one thread block hold."""

WIDE_BLOCKS = 1 << 16
"""Blocks of capacity up to which, in the standing path, one thread block reads a row that registers cannot hold, as
engines of the field do (262,144 cells, the published model's context). Its time grows with the row, so beyond this a
row is spread."""

SPREAD_ROWS = 64
"""Rows of a call that are spread unless it says so: with more, thread blocks of whole rows fill half of a large device,
and the scratch, 66 KB a row of a million cells, would be no small thing any more."""

STANDING = Defaults(
    scores=(Rule(1, 0, "warp"), Rule(WINDOW_ROWS, 0, "multi_query"), Rule(ANY, 0, "prompt")),
    selection=(
        Rule(SPREAD_ROWS, WIDE_BLOCKS + 1, "spread"),
        Rule(ANY, HELD_BLOCKS + 1, "wide"),
        Rule(ANY, 0, "registers"),
    ),
)
"""What a switch at ``0`` launches; attention by the standing rule of ``attend_exact/plan.py``. Also the table of every
device on which nothing was measured."""

H200 = Defaults(
    scores=(
        # One row, warp -> transposed: 2.7 -> 2.5 at 16K cells, 4.1 -> 3.5 at 64K, 9.8 -> 6.5 at 256K, 35.7 -> 34.7 at
        # 1M. Shorter contexts were not measured and keep the standing path.
        Rule(1, 4096, "transposed"),
        Rule(1, 0, "warp"),
        # Keys copied to shared memory once for all rows pay where there are many rows or keys. Transposed -> held, at
        # 64K / 256K / 1M: 2 rows 4.4 -> 5.1 / 10.1 -> 11.3 / 42.1 -> 37.4, 4 rows 6.2 -> 6.6 / 17.2 -> 16.9 / 71.0 ->
        # 58.5, 8 rows 9.8 -> 9.5 / 31.4 -> 29.4 / 137 -> 107.6; 8 rows at 16K 4.35 -> 4.44.
        Rule(2, 1 << 18, "held"),
        # 2, 4, 8 rows at 64K, multi_query -> transposed: 9.2 -> 4.4, 15.2 -> 6.0, 27.4 -> 9.8; 4 rows 4.0 -> 2.9 at 1K,
        # 5.9 -> 3.2 at 16K, 193 -> 71.8 at 1M.
        Rule(2, 0, "transposed"),
        Rule(4, 1 << 16, "held"),
        Rule(4, 0, "transposed"),
        Rule(WINDOW_ROWS, 1 << 14, "held"),
        Rule(WINDOW_ROWS, 0, "transposed"),
        # Prompt -> held, at 16K / 64K / 256K / 1M: 16 rows 6.3 -> 6.3 / 17.1 -> 16.4 / 61.5 -> 54.9 / 259 -> 210; 64
        # rows 17.0 -> 16.2 / 59.6 -> 55.9 / 242 -> 210 / 955 -> 826.
        Rule(64, 1 << 12, "held"),
        # More were not measured otherwise, nor shorter contexts.
        Rule(ANY, 0, "prompt"),
    ),
    selection=(
        # 1 / 4 rows, spread -> bounded: 15.5 / 15.9 -> 8.6 / 8.9 at 256K cells, 18.7 / 19.1 -> 11.4 / 11.1 at 1M; 16
        # rows 16.1 -> 11.2 and 29.2 -> 26.4. More were not measured in clusters.
        Rule(16, ALONE_BLOCKS + 1, "bounded"),
        # One row of 256K cells, wide -> spread: 67.2 -> 15.4; of 1M, where spread stood before: 18.9.
        Rule(SPREAD_ROWS, HELD_BLOCKS + 1, "spread"),
        # One row in a capacity of 200,000 cells, wide -> scan: 2.1 -> 2.2 at 1K, 27.4 -> 11.7 at 16K, 31.7 -> 18.2 at
        # 64K. A thread block has a row, so more rows change nothing in it.
        Rule(ANY, HELD_BLOCKS + 1, "scan"),
        Rule(ANY, ALONE_BLOCKS + 1, "registers"),
        # 1 / 4 / 64 rows, registers -> bounded: 9.7 / 10.0 / 10.1 -> 4.4 / 4.5 / 4.6 at 16K cells, 10.0 / 10.2 / 10.5
        # -> 7.0 / 7.3 / 7.8 at 64K.
        Rule(ANY, 0, "bounded"),
    ),
    # By way of the scratch -> as a cluster: 1 row 14.6 -> 11.8 and 2 rows 14.2 -> 11.7 (13 blocks), 3: 14.5 -> 12.0
    # (13), 4: 15.2 -> 13.6 (9), 7: 16.9 -> 14.0 (8), 8: 17.5 -> 15.7 (6), 16: 25.4 -> 23.8 (3). An H200 holds 7
    # clusters of 11 or 16 blocks, 9 of 9, 15 of 8, 17 of 6 and 30 of 4: clusters that do not all fit would run in two
    # waves, and one that was chosen by rows alone (11 or 16 blocks, 4 rows) went by way of the scratch, in no gain.
    clusters=(13, 9, 8, 6, 4, 3),
    # 16 rows of 2 KV heads: more were not measured.
    cluster_heads=32,
    # 2,051 cells were measured. Three blocks hold 2,304 at two cells a lane; more need a third build of the kernel.
    cluster_cells=2304,
    # ``clusters`` -> this: 1 row 11.9 -> 7.05, without a selected cell 7.7 -> 6.3; 2 rows 11.9 -> 9.2. Three rows in
    # clusters of 5 blocks, two a multiprocessor, took 12.9 (12.0 by ``clusters``), four 18.9 (13.6).
    few=(Few(1, 13), Few(2, 8)),
    # 2,051 cells were measured: up to 2,304 the shares are those of the same two builds.
    few_cells=2049,
    # A step at 64K with keys of 16 bits, each launch behind the end of the one ahead -> early: 1 row 22.5 -> 21.3, 4
    # rows 25.2 -> 23.8, with both appends 27.5 -> 25.4 and 32.5 -> 30.3. Scores of fp32 keys were not measured so.
    overlap=("append_kv_kernel", "append_coded_kernel", "block_scores_int16", "select", "attend_exact"),
)
"""Measured on an H200 (132 multiprocessors)."""

TABLES = {(9, 0): H200}
"""Compute capability -> table. A device of a class that is not here keeps :data:`STANDING`: nothing was measured."""


def defaults(switch: bool | None) -> Defaults:
    """The table by which a call that names no schedule is launched on the current device, with its ``switch`` in this
    state: :data:`STANDING` where it is False. What True means is the operation's own."""
    return STANDING if switch is False else TABLES.get(properties().compute_capability, STANDING)


def overlap() -> tuple[str, ...]:
    """Names of the kernels whose launches on the current device start early: the table of its class says that it was
    faster."""
    return TABLES.get(properties().compute_capability, STANDING).overlap
