"""Slots and windows: whatever is accepted, taken back, forked or saved, the state's bytes are those of single rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qsa.engine import Slot
from qsa.engine.runner import Runner
from qsa.engine.window import run_window
from qsa.model import State, qsa
from support.engine_models import VOCAB, engine_model, prompt

START = prompt(41)
TEXT = prompt(120, seed=2)
"""What follows: the accepted tokens of every run. A window is accepted up to where it leaves this text."""


@pytest.fixture(scope="module")
def model():
    return engine_model()


def started(model, ids=START, page_size=4, kv_format="int8", chunk=1000):
    slot, runner = Slot(model, 200, page_size, kv_format), Runner(model)
    for begin in range(0, len(ids), chunk):
        runner.run([ids[begin : begin + chunk]], [slot])
    return slot


def single_rows(model, n, kv_format="int8"):
    """(slot, logits of its last row) after ``n`` tokens of TEXT one by one."""
    slot, logits = started(model, kv_format=kv_format), None
    for token in TEXT[:n]:
        result = run_window(Runner(model), [[token]], [slot])[0]
        result.commit(1)
        logits = result.logits
    return slot, logits


def wrong(token):
    return (token + 1) % VOCAB


def decode(slots, windows):
    """Run windows over TEXT in every one of ``slots``: of each window's rows the first ``keep`` are TEXT's."""
    runner, at, last = Runner(slots[0].model), 0, None
    for rows, keep in windows:
        ids = TEXT[at : at + keep] + [wrong(token) for token in TEXT[at + keep : at + rows]]
        for result in run_window(runner, [ids] * len(slots), slots):
            result.commit(keep)
            last = result.logits[keep - 1 : keep]
        at += keep
    return at, last


windows = st.lists(st.integers(1, 8).flatmap(lambda rows: st.tuples(st.just(rows), st.integers(1, rows))), max_size=9)


@given(windows, st.sampled_from([1, 3, 4, 64]))
@settings(max_examples=40)
def test_any_mixture_of_accepted_and_rejected_rows_leaves_the_bytes_of_single_rows(mixture, page_size):
    model = engine_model()
    slot = started(model, page_size=page_size)
    n, last = decode([slot], mixture)
    alone, logits = single_rows(model, n)
    assert slot.n == alone.n == len(START) + n
    assert slot.digest() == alone.digest()
    assert n == 0 or np.array_equal(last, logits)


@pytest.mark.parametrize("rule", ["blocks", "cells"])
@pytest.mark.parametrize("kv_format", ["q4_0", "k8v4"])
def test_the_same_in_other_formats_and_by_either_rule_for_two_slots_in_one_call(kv_format, rule):
    mixture, model = [(8, 3), (5, 5), (2, 1), (8, 8), (7, 1), (3, 2)], engine_model(rule=rule)
    slots = [started(model, page_size=size, kv_format=kv_format) for size in (512, 3)]
    n, _ = decode(slots, mixture)
    assert {slot.digest() for slot in slots} == {single_rows(model, n, kv_format)[0].digest()}


@pytest.mark.parametrize("offset", range(4), ids=lambda p: f"n%4={(len(START) + p) % 4}")
@pytest.mark.parametrize("rows", [6, 8])
def test_rejected_drafts_leave_no_trace_in_the_open_block(model, offset, rows):
    """Known faults C4, C12, C13: at every offset in the block, windows that span two and three blocks, all rejected,
    twice in a row, with the block completed by other tokens afterwards."""
    slot = started(model)
    n, _ = decode([slot], [(1, 1)] * offset + [(rows, 1), (rows, 1), (4, 4)])
    assert slot.digest() == single_rows(model, n)[0].digest()


def forgetful(kind):
    """State.overwritten without one kind of array."""
    plain = State.overwritten

    def overwritten(state):
        kinds = {}
        for attention, ple in zip(state.attention, state.ple, strict=True):
            if isinstance(attention, qsa.State):
                kinds[id(attention.index.tail)] = "tail"
            else:
                kinds |= {id(attention.memory): "memory", id(attention.past): "convolution"}
            if ple is not None:
                kinds |= {id(ple.tokens): "tokens", id(ple.past): "history"}
        return (array for array in plain(state) if kinds[id(array)] != kind)

    return overwritten


@pytest.mark.parametrize("kind", ["tail", "memory", "convolution", "tokens", "history"])
def test_whatever_a_snapshot_forgets_is_noticed(model, monkeypatch, kind):
    """The invariant above can fail: with one kind of state not taken back, what follows has other bytes."""
    slot = started(model)
    with monkeypatch.context() as patch:
        patch.setattr(State, "overwritten", forgetful(kind))
        n, _ = decode([slot], [(8, 1), (6, 5)])
    assert slot.digest() != single_rows(model, n)[0].digest()


@pytest.mark.parametrize("chunk", [1, 3, 64, 1000])
def test_chunks_of_a_prompt_change_no_byte(model, chunk):
    ids = prompt(150, seed=3)
    assert started(model, ids, chunk=chunk).digest() == started(model, ids, page_size=64).digest()


def test_a_row_and_a_fresh_prompt_in_one_call_are_what_they_are_alone(model):
    """Known faults C7 and C16: a decode row, a window and a prompt in a mixed batch, the window half taken back."""
    runner, fresh = Runner(model), prompt(9, seed=4)
    row, window, reading = started(model), started(model, START[:33]), Slot(model, 60)
    ids = [TEXT[:1], [*START[33:36], 5, 6], fresh]
    results = run_window(runner, ids, [row, window, reading])
    for result, keep in zip(results, (1, 3, 9), strict=True):
        result.commit(keep)
    alone = started(model, fresh), started(model, START[:36])
    assert row.digest() == single_rows(model, 1)[0].digest()
    assert reading.digest() == alone[0].digest() and window.digest() == alone[1].digest()
    assert np.array_equal(results[0].logits, single_rows(model, 1)[1])


def test_a_window_that_fails_leaves_its_neighbours_as_if_it_had_not_been(model):
    """One slot is full: it stays as it was, and the other's rows run."""
    full, other = Slot(model, 41, page_size=1), started(model)
    Runner(model).run([START], [full])
    before = full.digest()
    failed, result = run_window(Runner(model), [TEXT[:4], TEXT[:4]], [full, other])
    assert isinstance(failed, ValueError) and "the state holds 41" in str(failed)
    assert full.digest() == before
    result.commit(2)
    assert other.digest() == single_rows(model, 2)[0].digest()


def test_drafts_that_make_a_window_fail_are_left_out(model):
    """There is room for the row and not for its drafts."""
    slot = Slot(model, 42, page_size=1)
    Runner(model).run([START], [slot])
    result = run_window(Runner(model), [TEXT[:4]], [slot])[0]
    result.commit(1)
    alone, logits = single_rows(model, 1)
    assert slot.digest() == alone.digest() and np.array_equal(result.logits, logits)


@pytest.mark.parametrize("keep", [0, 4, -1])
def test_commit_refuses_rows_that_are_not_there(model, keep):
    result = run_window(Runner(model), [TEXT[:3]], [started(model)])[0]
    with pytest.raises(ValueError, match=f"keep = {keep}: the window has 3 rows"):
        result.commit(keep)


def test_a_fork_has_everything_and_shares_nothing(model):
    """Known fault B1: beyond the budget a fork without indexer keys selects other cells."""
    slot = started(model)
    decode([slot], [(3, 2)])
    fork, before = slot.fork(), slot.digest()
    assert fork.digest() == before
    run_window(Runner(model), [TEXT[50:57]], [fork])
    assert slot.digest() == before
    decode([slot], [(8, 8), (8, 8)])
    other = fork.fork()
    fork.reset()
    Runner(model).run([START + TEXT[:2] + TEXT[:16]], [fork])
    assert fork.digest() == slot.digest() and other.digest() != slot.digest()


@pytest.mark.parametrize("page_size, capacity", [(4, 200), (64, 50), (1, 47)])
def test_a_saved_slot_continues_elsewhere(model, page_size, capacity):
    """Known fault C8: saved, dropped, restored into other pages, with the indexer's keys."""
    slot = started(model)
    decode([slot], [(5, 2)])
    saved, other = slot.save(), Slot(model, capacity, page_size)
    Runner(model).run([prompt(20, seed=9)], [other])
    other.restore(saved)
    assert other.digest() == slot.digest() and other.n == slot.n
    a, b = run_window(Runner(model), [TEXT[2:6]], [slot])[0], run_window(Runner(model), [TEXT[2:6]], [other])[0]
    assert np.array_equal(a.logits, b.logits)


def test_restore_refuses_what_does_not_fit_and_changes_nothing(model):
    slot = started(model)
    saved, target = slot.save(), Slot(model, 40)
    other_format, other_model = Slot(model, 60, kv_format="q4_0"), Slot(engine_model(draft_norm="streams"), 60)
    for bad, into, message in (
        (saved, target, "41 cells: the slot holds 40"),
        (saved, other_format, "saved with K/V format 'int8': this slot has 'q4_0'"),
        (saved, other_model, "saved with another configuration"),
        (b"nothing", target, "no state of a slot"),
        (saved[:-7], target, "no state of a slot"),
        (None, target, "no state of a slot"),
    ):
        Runner(into.model).run([START[:7]], [into])
        before = into.digest()
        with pytest.raises(ValueError, match=message):
            into.restore(bad)
        assert into.digest() == before
        into.reset()


def test_a_digest_covers_every_part_of_the_state(model):
    """A bit turned in any array of the state changes the digest; what lies beyond the sequence does not."""
    slot = started(model)
    before, kv, index = slot.digest(), slot.state.attention[3].kv, slot.state.attention[3].index
    beyond = slot.n
    for array in (kv.pool.k.codes, kv.pool.v.codes, kv.pool.k.scale, kv.pool.v.scale):
        array[beyond // 4, :, beyond % 4] += 1
    index.pooled[beyond // 4] += 1
    assert slot.digest() == before
    cells = [side for pool in (kv.pool.k, kv.pool.v) for side in (pool.codes[3], pool.scale[3])]
    for array in (*cells, index.pooled[2], index.dead, *slot.state.overwritten()):
        bytes_ = array.reshape(-1).view(np.uint8)
        bytes_[0] ^= 1
        assert slot.digest() != before
        bytes_[0] ^= 1
    assert slot.digest() == before


def test_a_slot_has_sizes(model):
    for sizes, message in (((0,), "capacity = 0"), (("9",), "capacity = '9'"), ((9, 2.0), r"page_size = 2\.0")):
        with pytest.raises(ValueError, match=f"{message}: must be an integer, from 1 to 2147483647"):
            Slot(model, *sizes)


def test_a_reset_slot_is_a_new_one(model):
    slot = started(model)
    slot.reset()
    assert slot.digest() == Slot(model, 10).digest()
    Runner(model).run([TEXT[:20]], [slot])
    assert slot.digest() == started(model, TEXT[:20]).digest()
