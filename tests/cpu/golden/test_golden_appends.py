"""Goldens of appends and block scores: what their inputs hold, and wrong kernels that their outputs show."""

import numpy as np
import pytest

from qsa.golden import inputs
from qsa.golden.case import CaseError
from qsa.golden.families import append_index, append_kv, block_scores, produce
from qsa.golden.keys import whole_context
from qsa.reference import exact
from qsa.reference.formats import rotate
from qsa.reference.geometry import step_records
from qsa.reference.index import Index

KV = {"format": "int8", "values": "bell", "context": 200, "slots": 3, "rows": 8, "tail": 1, "page": 4, "seed": 5}
INDEX = {"schedule": "window", "context": 1024, "rows": 8, "tail": 3, "seed": 5}
SCORES = {"keys": "special", "context": 4096, "rows": 3, "tail": 1, "seed": 5}


def differing(family, recipe, wrong):
    """Names of the outputs in which ``wrong`` differs from the reference."""
    good, bad = produce(family, recipe).outputs, produce(family, recipe, {family: wrong}).outputs
    return {name for name in good if not np.array_equal(good[name], bad[name], equal_nan=good[name].dtype.kind == "f")}


@pytest.mark.parametrize("cells", [0, 1, 3, 4, 5, 30, 1027])
def test_a_whole_context_at_once_has_the_bits_of_its_rows(cells):
    raw = inputs.bell(1, "raw", cells, 128)
    weight = 1 + inputs.uniform(1, "weight", 1, 128)[0]
    rows, whole = (Index(cells // 4 + 1, weight) for _ in range(2))
    exact.append_index(raw, step_records(np.arange(cells)), rows)
    assert whole_context(raw, whole) is whole
    assert (rows.pooled.view(np.uint32) == whole.pooled.view(np.uint32)).all()
    assert (rows.dead.view(np.uint32) == whole.dead.view(np.uint32)).all()
    assert (rows.tail[: cells % 4] == whole.tail[: cells % 4]).all()


def test_a_whole_context_must_fit():
    with pytest.raises(ValueError, match="8 cells: the index holds 2 blocks"):
        whole_context(np.zeros((8, 128), np.float32), Index(2, np.ones(128, np.float32)))


@pytest.mark.parametrize("format", ["int8", "q4_0", "k8v4", "fp16"])
@pytest.mark.parametrize("values", append_kv.VALUES)
def test_values_have_what_they_are_named_for(values, format):
    given = append_kv.make_inputs({**KV, "format": format, "values": values})
    coding = given["kv"][0].pool.v.coding
    v = rotate(given["v"]) if coding == "q4_0" else given["v"]
    out = produce("append_kv", {**KV, "format": format, "values": values}).outputs
    if values == "ties" and coding == "fp16":
        bits = np.abs(v).view(np.uint32)
        assert (bits & 0x1FFF == 0x1000).all(), "the 13 bits that float16 drops are just one half"
    elif values == "ties":
        scale = np.abs(out["host_v_scale"])
        assert (scale == 2.0**-6).all()
        halves = np.abs(v) * 64 % 1 == 0.5
        assert halves.mean() > 0.9 and (v < 0).any() and (v > 0).any()
        assert (np.sign(out["host_v_scale"]) < 0).any() == (coding == "q4_0")
    elif values == "tiny" and coding != "fp16":
        scale = np.abs(out["host_v_scale"])
        assert (scale == 0).any() and ((scale > 0) & (scale < 2.0**-14)).any()
    elif values == "zero":
        groups = v.reshape(8, 2, 4, 64)
        assert (groups[:, :, 1:] == 0).all() and groups[:, :, 0].any()
        assert np.signbit(given["v"][given["v"] == 0]).any() == (coding != "q4_0")
    elif values == "extremes":
        # The largest of v: one sign in a group, or both at once.
        groups = v.reshape(8, 2, 8, 32)
        top, low = (groups == 2.0**15).any(axis=-1), (groups == -(2.0**15)).any(axis=-1)
        assert (top & low).any() and (top & ~low).any() and (low & ~top).any() and (top | low).all()


def test_rows_of_several_slots_are_written_where_they_belong_and_nowhere_else():
    given = append_kv.make_inputs(KV)
    out = produce("append_kv", KV).outputs
    cells = {(slot, pos) for slot, pos in zip(given["slots"].tolist(), given["steps"][:, 0].tolist(), strict=True)}
    assert cells == {tuple(row) for row in out["host_written"].tolist()} and len(cells) == 8
    # The last page of a slot's rows is not resident when there are several.
    missing = [kv.table[pos // 4] < 0 for kv, pos in ((given["kv"][s], p) for s, p in sorted(cells))]
    assert 0 < sum(missing) < 8 and len(out["written"]) == 8 - sum(missing)
    assert (out["k_codes"] == out["host_k_codes"]).all(axis=(1, 2)).sum() == 8 - sum(missing)


def test_wrong_appends_of_kv():
    def first_slot(k, v, kv, steps, slots):
        return exact.append_kv(k, v, kv, steps, np.zeros_like(slots))

    def no_host(k, v, kv, steps, slots):
        hosts = [one.host for one in kv]
        for one in kv:
            one.host = None
        exact.append_kv(k, v, kv, steps, slots)
        for one, host in zip(kv, hosts, strict=True):
            one.host = host
        return kv

    def truncated(k, v, kv, steps, slots):
        return exact.append_kv(k * np.float32(1 - 2**-20), v, kv, steps, slots)

    def stray(k, v, kv, steps, slots):
        exact.append_kv(k, v, kv, steps, slots)
        # A page of -1 taken as the last one.
        kv[0].pool.k.scale[-1] = 0
        kv[0].pool.v.scale[-1] = 0
        return True

    host = {name for name in produce("append_kv", KV).outputs if name.startswith("host_")}
    assert differing("append_kv", {**KV, "slots": 2}, first_slot) >= {"written", "host_written", "k_codes"}
    assert differing("append_kv", KV, no_host) == host
    assert differing("append_kv", {**KV, "values": "ties"}, truncated) >= {"k_codes", "host_k_codes"}
    assert "written" in differing("append_kv", KV, stray)


@pytest.mark.parametrize("tail", range(4))
@pytest.mark.parametrize("rows", [1, 4, 8])
def test_steps_and_windows_complete_the_same_blocks(rows, tail):
    both = [
        produce("append_index", {**INDEX, "rows": rows, "tail": tail, "schedule": schedule}).outputs
        for schedule in append_index.SCHEDULES
    ]
    assert all((both[0][name] == both[1][name]).all() for name in both[0])
    assert (
        both[0]["written"].tolist() == list(range(256, 256 + (tail + rows) // 4))
        and len(both[0]["pooled"]) == (tail + rows) // 4
    )


def test_wrong_appends_of_the_index():
    def stale_tail(raw, steps, index):
        """The rows before the window are forgotten: the block that they opened pools zeros."""
        index.tail[:] = 0
        return exact.append_index(raw, steps, index)

    def dead_again(raw, steps, index):
        return exact.append_index(raw, steps, index) and index.dead.__setitem__(0, 1) is None

    def spare(raw, steps, index):
        exact.append_index(raw, steps, index)
        index.pooled[steps[-1, 2]] = index.dead
        return True

    assert differing("append_index", INDEX, stale_tail) == {"pooled"}
    assert differing("append_index", INDEX, dead_again) == {"dead"}
    assert differing("append_index", INDEX, spare) == {"written"}
    # The dead key is made with cell 0 alone.
    first = {**INDEX, "context": 0, "tail": 0}
    assert np.isnan(append_index.make_inputs(first)["index"].dead).all()
    assert np.isfinite(produce("append_index", first).outputs["dead"]).all()


def test_scores_of_special_keys():
    given = block_scores.make_inputs(SCORES)
    keys = given["index"].pooled[:-1]
    assert np.isnan(keys).any() and np.isinf(keys).any() and (np.signbit(keys) & (keys == 0)).any()
    assert ((np.abs(keys) > 0) & (np.abs(keys) < 1e-44)).any() and np.isnan(given["index"].pooled[-1]).all()
    scores = produce("block_scores", SCORES).outputs["scores"]
    assert np.isnan(scores).any() and (scores == 0).any() and (scores == np.inf).any()


def test_wrong_block_scores():
    def spare_key(q_idx, index, steps):
        index.dead[:] = index.pooled[0]
        return exact.block_scores(q_idx, index, steps)

    def no_bonus(q_idx, index, steps):
        scores = exact.block_scores(q_idx, index, steps)
        scores[np.arange(len(steps)), steps[:, 2]] -= np.float32(1e9)
        return scores

    def behind(q_idx, index, steps):
        """Only what has no meaning is another."""
        scores = exact.block_scores(q_idx, index, steps)
        return np.where(np.arange(scores.shape[1]) > steps[:, 2:3], np.float32(3), scores)

    plain = {**SCORES, "keys": "uniform", "tail": 2}
    assert differing("block_scores", plain, spare_key) == {"scores"}
    assert differing("block_scores", plain, no_bonus) == {"scores"}
    assert differing("block_scores", plain, behind) == set()


@pytest.mark.parametrize(
    "family, recipe, named",
    [
        ("append_kv", {**KV, "format": "f64"}, "format = 'f64'"),
        ("append_kv", {**KV, "slots": 0}, "slots = 0"),
        ("append_index", {**INDEX, "schedule": "batch"}, "schedule = 'batch'"),
        ("append_index", {**INDEX, "context": -1}, "context = -1"),
        ("block_scores", {**SCORES, "keys": "ordinary"}, "keys = 'ordinary'"),
    ],
)
def test_recipes_outside_the_family_are_named(family, recipe, named):
    with pytest.raises(CaseError, match=named):
        produce(family, recipe)
