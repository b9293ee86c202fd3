"""What is launched where no schedule is named (``kernels/cuda/common/defaults.py``), by rows, context and switch."""

from dataclasses import replace

import numpy as np
import pytest

from cases.attend_cases import check, exact_problem
from qsa.kernels.cuda import simulator
from qsa.kernels.cuda.toolchain.host import Properties
from qsa.kernels.switches import override
from qsa.reference.index import Index
from qsa.reference.kv import PagedKV
from support.plan_runs import clusters_of, recorded_runs

attend, scores, select = (simulator.load(name) for name in ("attend", "block_scores", "select"))
device, plans, tables = (simulator.load(name) for name in ("device", "common.plans", "common.defaults"))

H200 = {
    "properties": Properties("h200", (9, 0), 132, 227 * 1024, 228 * 1024, 50 << 20),
    # As its driver says; of 3 blocks it holds at least so many.
    "clusters": ((13, 7), (9, 9), (8, 15), (6, 17), (4, 30), (3, 32)),
}
OFF = {"split_attn": False, "topk_scan": False, "scores_transposed": False}
AMPERE = Properties("a100", (8, 0), 108, 163 * 1024, 164 * 1024, 40 << 20)


def launches_of(plan):
    """(grid, lanes, bytes of shared memory, blocks of a cluster) of every launch of a plan."""
    return [(launch.grid, launch.block, launch.shared, launch.cluster) for launch in plan.launches]


def planned_attend(rows, fmt="int8", cap=2051, slots=1, **options):
    """:func:`launches_of` a plan, with a True behind those of the kernel of few rows."""
    kvs = [device.to_device(PagedKV.new(fmt, 4)) for _ in range(slots)]
    plan = attend.plan_attend(kvs, rows, cap, arithmetic="exact", **options)
    few = {launch.name for launch in plan.launches} == {"attend_few"}
    assert few or {launch.name for launch in plan.launches} == {"attend_exact"}
    return [(*launch, few) for launch in launches_of(plan)] if few else launches_of(plan)


def planned_scores(rows, blocks):
    (launch,) = scores.plan_block_scores(device.to_device(Index(blocks, np.ones(128, np.float32))), rows).launches
    return launch.name, launch.grid, launch.block


STANDING_ATTENTION = {
    ("int8", 1): (26, 384, 134112, 13),
    ("int8", 2): (80, 384, 86144, 1),
    ("int8", 4): (128, 384, 86144, 1),
    ("int8", 8): (128, 384, 86144, 1),
    ("int8", 16): (128, 384, 86144, 1),
    ("int8", 64): (128, 384, 221184, 1),
    ("k8v4", 1): (40, 384, 98432, 1),
    ("k8v4", 4): (128, 384, 98432, 1),
    ("k8v4", 64): (256, 384, 156800, 1),
}
STANDING_SELECTION = {
    **{(rows, blocks): rows for rows in (1, 4, 65) for blocks in (4096, 33792, 33793, 65536)},
    (1, 65537): (1, 5),
    (4, 65537): (4, 5),
    (65, 65537): 65,
    (1, 262145): (1, 17),
    (4, 262145): (4, 17),
    (65, 262145): 65,
}
STANDING_SCORES = {
    (1, 1024): ("one_row", (32, 1), 256),
    (2, 1024): ("butterfly", (128, 1), 256),
    (9, 1024): ("transposed", (128, 2), (32, 8, 1)),
    (1, 16384): ("one_row", (512, 1), 256),
    (2, 16384): ("butterfly", (528, 1), 256),
    (8, 16384): ("butterfly", (528, 1), 256),
    (9, 16384): ("transposed", (132, 2), (32, 8, 1)),
}
"""What was launched before there was a table, by (format or rows, rows or blocks)."""


@pytest.mark.parametrize("fmt, rows", STANDING_ATTENTION)
def test_off_launches_the_attention_of_before(fmt, rows):
    with simulator.configured(**H200), override(**OFF):
        assert planned_attend(rows, fmt) == [STANDING_ATTENTION[fmt, rows]]


def test_off_launches_the_attention_of_before_row_by_row():
    with simulator.configured(**H200), override(**OFF):
        assert planned_attend(2, schedule="step") == [STANDING_ATTENTION["int8", 1]] * 2


def test_off_launches_the_selection_of_before():
    with simulator.configured(**H200), override(**OFF):
        names = {key: select.default_schedule(*key) for key in STANDING_SELECTION}
        for key, grid in STANDING_SELECTION.items():
            (launch,) = select.plan_select(*key).launches
            assert (launch.name, launch.grid, launch.block, launch.cluster) == ("select", grid, 1024, 1)
    wanted = {4096: "registers", 33792: "registers", 33793: "wide", 65536: "wide"}
    for (rows, blocks), name in names.items():
        assert name == wanted.get(blocks, "wide" if rows == 65 else "spread")


def test_off_launches_the_scores_of_before():
    with simulator.configured(**H200), override(**OFF):
        assert {key: planned_scores(*key) for key in STANDING_SCORES} == STANDING_SCORES


def test_a_device_of_another_class_launches_the_standing_path():
    """Nothing was measured on it."""
    with simulator.configured(properties=AMPERE):
        with override(**OFF):
            before = [planned_attend(rows) for rows in (1, 4)], planned_scores(4, 16384)
        with override(**dict.fromkeys(OFF)):
            assert ([planned_attend(rows) for rows in (1, 4)], planned_scores(4, 16384)) == before
            assert select.default_schedule(1, 1 << 16) == "wide"


@pytest.mark.parametrize(
    "rows, size",
    [(3, 13), (4, 9), (5, 8), (7, 8), (8, 6), (9, 4), (15, 4), (16, 3)],
)
def test_a_row_gets_the_largest_cluster_of_which_all_fit(rows, size):
    """The sizes that were measured, at the rows at which they were."""
    with simulator.configured(**H200):
        ((grid, _, _, cluster),) = planned_attend(rows)
    assert (grid, cluster) == (rows * 2 * size, size)


@pytest.mark.parametrize("rows, blocks", [(1, 13), (2, 8)])
def test_few_rows_have_a_kernel_of_their_own(rows, blocks):
    """Three clusters for each row and KV head: four query heads each."""
    with simulator.configured(**H200):
        assert [(grid, cluster, few) for grid, _, _, cluster, few in planned_attend(rows)] == [
            (rows * 2 * 3 * blocks, blocks, True)
        ]


@pytest.mark.parametrize(
    "options, size",
    [
        ({"cap": 2048}, 13),
        ({"slots": 2}, 13),
        ({"slots": 1, "with_slots": True}, None),
        ({"fmt": "k8v4"}, 1),
        ({"schedule": "split"}, 1),
        ({"rows": 3}, 13),
    ],
)
def test_what_the_kernel_of_few_rows_is_not_for(options, size):
    """Fewer ids than were measured, pools of several slots, other formats, ``split``, more rows; one pool whose rows
    name it is one pool."""
    options = {"rows": 2, **options}
    with simulator.configured(**H200):
        (launch,) = planned_attend(options.pop("rows"), **options)
    assert (len(launch) == 5) == (size is None) and launch[3] == (size or 8)


def test_few_rows_that_do_not_fit_are_clusters_as_before():
    with simulator.configured(**{**H200, "clusters": ((13, 5), (8, 11))}):
        assert planned_attend(2)[0][3:] == (13,)
        assert planned_attend(1)[0][3:] == (8, True)


def test_what_no_size_holds_keeps_the_standing_path():
    """More rows, more cells, another format, ``split``; a device that holds too few clusters of every size."""
    with simulator.configured(**H200):
        assert planned_attend(16, "k8v4")[0][3] == 1
        assert planned_attend(17)[0][3] == planned_attend(4, cap=2305)[0][3] == 1
        assert planned_attend(4, schedule="split")[0][3] == 1
        with simulator.configured(clusters=((13, 1), (9, 7), (6, 7))):
            assert planned_attend(4) == [STANDING_ATTENTION["int8", 4]]
        with simulator.configured(clusters=((13, 1), (9, 7), (6, 8))):
            assert planned_attend(4)[0][3] == 6


def test_the_launch_of_many_slots_holds_all_rows():
    """One launch has blocks for every row, in the clusters that so many rows of one pool get."""
    with simulator.configured(**H200):
        for rows, slots in ((4, 5), (8, 8), (16, 16), (16, 64)):
            assert planned_attend(rows, slots=slots) == planned_attend(rows)
        assert [(grid, cluster) for grid, _, _, cluster in planned_attend(4, slots=5)] == [(72, 9)]


def test_few_cells_take_few_blocks():
    with simulator.configured(**{**H200, "clusters": ((5, 9), (4, 30))}):
        assert planned_attend(2, cap=150)[0][3] == 5
        assert planned_attend(1, cap=32)[0][3] == 1


def test_a_scratch_serves_every_state_of_the_switch():
    kvs = [device.to_device(PagedKV.new("int8", 4))]
    with simulator.configured(**H200):
        words = attend.scratch_words(kvs, 4, 2051, "batch")
        with override(split_attn=False):
            assert attend.scratch_words(kvs, 4, 2051, "batch") == words
            assert attend.row_blocks(kvs, 4, 2051, "batch") == 16
        with override(split_attn=None):
            assert attend.row_blocks(kvs, 4, 2051, "batch") == 9


def test_the_switch_is_part_of_a_call():
    """A call without a plan does not find that of another state."""
    with simulator.configured(properties=replace(simulator.settings.properties, multiprocessors=9)):
        runs_of = []
        for state in (None, False, None):
            with pytest.MonkeyPatch.context() as patch, override(split_attn=state):
                runs = recorded_runs(patch, plans, launched=False)
                q, kv, ids, steps = exact_problem(3, [60, 70, 64], cells=96)
                attend.attend(q, device.to_device(kv), ids, steps, arithmetic="exact")
                runs_of.append(clusters_of(runs))
    assert runs_of == [[3], [1], [3]]


@pytest.mark.parametrize("width", [400, 800])
def test_bytes_of_clusters_of_many_cells(backend, monkeypatch, width):
    """Of two blocks: warps that score two tiles, and lanes that look up two cells."""
    few = tables.H200._replace(clusters=(2,))
    monkeypatch.setattr(tables, "TABLES", {(9, 0): few})
    runs = recorded_runs(monkeypatch, plans)
    check(backend, *exact_problem(40, [width], cells=width + 60))
    assert clusters_of(runs) == [2]


def test_bytes_of_clusters_of_several_rows(backend, monkeypatch):
    """Widths that leave blocks without a cell, and a row without any."""
    runs = recorded_runs(monkeypatch, plans)
    with simulator.configured(properties=replace(simulator.settings.properties, multiprocessors=16)):
        check(backend, *exact_problem(41, [70, 0, 97, 20], cells=128))
    assert clusters_of(runs) == [4]


SCORES = [
    (1, 1024, "warp"),
    (1, 4095, "warp"),
    (1, 4096, "transposed"),
    (1, 1 << 18, "transposed"),
    (2, 16, "transposed"),
    (2, (1 << 18) - 1, "transposed"),
    (2, 1 << 18, "held"),
    (4, (1 << 16) - 1, "transposed"),
    (3, 1 << 16, "held"),
    (8, (1 << 14) - 1, "transposed"),
    (5, 1 << 14, "held"),
    (9, 4095, "prompt"),
    (9, 4096, "held"),
    (64, 1 << 14, "held"),
    (65, 1 << 14, "prompt"),
]


@pytest.mark.parametrize("rows, blocks, schedule", SCORES)
def test_schedules_of_scores(rows, blocks, schedule):
    with override(scores_transposed=None):
        assert scores.default_schedule(rows, blocks) == schedule
    with override(scores_transposed=True):
        assert scores.default_schedule(rows, blocks) == ("transposed" if rows <= 8 else schedule)
    with override(scores_transposed=False):
        standing = "warp" if rows == 1 else "multi_query" if rows <= 8 else "prompt"
        assert scores.default_schedule(rows, blocks) == standing


SELECTION = [
    (1, 1 << 14, "bounded", "registers", "registers"),
    (500, 17408, "bounded", "registers", "registers"),
    (16, 17409, "bounded", "registers", "registers"),
    (17, 17409, "registers", "registers", "registers"),
    (64, 33792, "registers", "registers", "registers"),
    (16, 33793, "bounded", "wide", "scan"),
    (64, 1 << 16, "spread", "wide", "scan"),
    (65, 1 << 16, "scan", "wide", "scan"),
    (1, 1 << 18, "bounded", "spread", "spread"),
    (1, 16 * 17408 + 1, "spread", "spread", "spread"),
    (65, 1 << 18, "scan", "wide", "scan"),
    (1, 16 * 1024 * 31 + 1, "scan", "wide", "scan"),
]


@pytest.mark.parametrize("rows, blocks, unset, off, on", SELECTION)
def test_schedules_of_selection(rows, blocks, unset, off, on):
    for state, schedule in ((None, unset), (False, off), (True, on)):
        with simulator.configured(**{**H200, "clusters": ((8, 30), (16, 7))}), override(topk_scan=state):
            assert select.default_schedule(rows, blocks) == schedule


def test_selection_where_no_cluster_is_to_be_had():
    with simulator.configured(**{**H200, "clusters": ()}):
        assert select.default_schedule(1, 17408) == "bounded"
        assert select.default_schedule(1, 17409) == "registers"
        assert select.default_schedule(1, 33793) == "spread"
