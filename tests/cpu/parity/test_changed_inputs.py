"""A kernel that changes its inputs fails, whatever it returns, and its report names the input and the place."""

import ctypes
import sys
import types

import numpy as np
import pytest

from qsa.kernels import cpu
from qsa.parity.backend import Backend
from qsa.parity.checks import attend_inputs as data
from qsa.parity.compare import input_changes
from qsa.parity.compare.input_changes import ChangedInputError, Given
from qsa.reference import exact
from qsa.reference.index import Index
from qsa.reference.kv import PagedKV
from support.mutants import ATTEND, INDEXER, KEYS, KV, SCORES, SELECT, attend, backend, run

__all__ = ["backend"]  # a fixture is used by its name

VERIFY = "verify_batch:op=window,pass=standing,slots=2,rows=2,context=1024,rule=blocks,seed=7"
DRAFT = "verify_batch:op=draft,pass=standing,context=1024,seed=7"


def named(text, backend, words):
    """Assert that a case fails for a changed input and for nothing else."""
    result = run(text, backend)
    assert result.status == "failed" and result.reason.startswith("ChangedInputError"), result
    assert words in result.reason and not result.comparisons
    return result


def in_memory(array):
    """``array`` to be written to, even where NumPy holds it for read-only: as a compiled kernel writes."""
    return np.frombuffer((ctypes.c_char * array.nbytes).from_address(array.ctypes.data), array.dtype).reshape(
        array.shape
    )


@pytest.fixture
def foreign(monkeypatch):
    """A function that makes a Backend in the float arithmetic of the CPU kernels, with some replaced."""

    def make(arithmetic="float", **functions):
        module = types.ModuleType("foreign")
        module.declaration = cpu.declaration
        for name in ("append_kv", "append_index", "block_scores", "select", "attend"):
            setattr(module, name, functions.get(name, getattr(cpu, name)))
        monkeypatch.setitem(sys.modules, "foreign", module)
        return Backend("foreign", arithmetic)

    return make


def zeroed(q, kv, ids, steps, slots=None, out=None, **keywords):
    in_memory(q)[...] = 0
    return cpu.attend(q, kv, ids, steps, slots, out, **keywords)


@pytest.mark.parametrize("arithmetic", ["float", "exact"])
@pytest.mark.parametrize("key", ["int8", "q4_0", "page", "split", "step", "multi", "mixed"])
def test_a_query_that_is_zeroed_before_the_right_kernel_runs(key, arithmetic, foreign):
    result = named(ATTEND[key], foreign(arithmetic, attend=zeroed), "attend: changed its input q: first at [0, 0, 0]: ")
    assert "given " in result.reason and "left 0\n" in result.reason


@pytest.mark.parametrize("text", [ATTEND["corners"], ATTEND["golden"], ATTEND["full"], VERIFY, DRAFT])
def test_it_is_found_in_goldens_and_windows_too(text, foreign):
    named(text, foreign("exact", attend=zeroed), "attend: changed its input q: first at [0, 0, ")


def test_a_query_rounded_to_bf16_in_place(foreign):
    def rounded(q, kv, ids, steps, slots=None, out=None, **keywords):
        q.view(np.uint32)[...] &= 0xFFFF0000
        return cpu.attend(q, kv, ids, steps, slots, out, **keywords)

    for case in (ATTEND["int8"], ATTEND["page"]):
        named(case, foreign(attend=rounded), "attend: changed its input q: first at [0, 0, 0]: given ")


@pytest.mark.parametrize("text", [*SELECT.values(), VERIFY])
def test_a_row_of_scores_sorted_in_place_under_right_ids(text, backend):
    def sort(scores, steps, rule="blocks", **keywords):
        found = exact.select(scores, steps, rule=rule, **keywords)
        scores.view(np.uint32)[...] = np.sort(scores.view(np.uint32), axis=1)[:, ::-1]
        return found

    result = named(text, backend(select=sort), "select: changed its input scores: first at [0, ")
    assert "wrong" not in result.reason


def test_a_changed_page_table(backend):
    def swap(q, kv, ids, steps, slots=None, out=None, **keywords):
        found = attend(q, kv, ids, steps, slots, out)
        for one in kv if isinstance(kv, list) else [kv]:
            one.table[0] += 1
        return found

    named(ATTEND["int8"], backend(attend=swap), "changed its input kv.table: first at [0]: given ")
    named(VERIFY, backend(attend=swap), "changed its input kv[0].table: first at [0]: given ")


def test_a_page_table_replaced_by_another(backend):
    def swap(q, kv, ids, steps):
        found = attend(q, kv, ids, steps)
        kv.table = kv.table[:-1]
        return found

    named(ATTEND["int8"], backend(attend=swap), "changed its input kv.table: given int32 [")


def test_ids_changed_in_an_array_that_other_cases_use_too(backend):
    text = ATTEND["int8"]

    def change(q, kv, ids, steps):
        assert not ids.flags.writeable
        in_memory(ids)[1, 2] = 0
        return attend(q, kv, ids, steps)

    named(text, backend(attend=change), "changed its input ids: first at [1, 2]: given 2, left 0")
    assert run(text, backend()).status == "passed", "the ids were not put back"


def test_ids_changed_by_a_kernel_that_raises_are_put_back(backend):
    def change(q, kv, ids, steps):
        in_memory(ids)[...] = 0
        raise RuntimeError("no")

    assert "RuntimeError: no" in run(ATTEND["int8"], backend(attend=change)).reason
    assert run(ATTEND["int8"], backend()).status == "passed"


def test_a_change_is_named_before_a_refusal(backend):
    def change(q, kv, ids, steps):
        q[...] = 0
        return False

    named(ATTEND["int8"], backend(attend=change), "changed its input q")


@pytest.mark.parametrize(("key", "side"), [("int8", "k"), ("q4_0", "v")])
def test_a_changed_scale_of_a_pool(key, side, backend):
    def change(q, kv, ids, steps):
        found = attend(q, kv, ids, steps)
        getattr(kv.pool, side).scale[0, 1, 2, 3] = 2
        return found

    named(ATTEND[key], backend(attend=change), f"changed its input kv.pool.{side}.scale: first at [0, 1, 2, 3]: given ")


def test_a_key_of_the_index_changed_by_block_scores(backend):
    def change(q_idx, index, steps, **keywords):
        found = exact.block_scores(q_idx, index, steps)
        index.dead[5] = -0.0
        return found

    named(SCORES, backend(block_scores=change), "changed its input index.dead: first at [5]: given ")
    named(INDEXER, backend(block_scores=change), "changed its input index.dead: first at [5]: given ")


@pytest.mark.parametrize("text", [KEYS, INDEXER, "append_index:schedule=window,context=1024,rows=8,tail=1,seed=7"])
def test_raw_keys_and_the_weight_changed_by_an_append(text, backend):
    def change(what):
        def append(raw, steps, index):
            written = exact.append_index(raw, steps, index)
            in_memory({"raw": raw[0], "steps": steps[0], "weight": index.weight, "rope": index.rope[0]}[what])[1] = 7
            return written

        return append

    for what, name in (("raw", "raw"), ("steps", "steps"), ("weight", "index.weight"), ("rope", "index.rope")):
        mutant = backend(append_index=change(what))
        named(text, mutant, f"append_index: changed its input {name}: first at [")


def test_what_an_append_of_k_and_v_may_not_change(backend):
    def change(what):
        def append(k, v, kv, steps, slots=None):
            written = exact.append_kv(k, v, kv, steps, slots)
            one = kv[0] if isinstance(kv, list) else kv
            {"k": k, "v": v, "steps": steps, "slots": slots, "table": one.table}[what].reshape(-1)[0] -= 1
            return written

        return append

    golden = "append_kv:format=int8,values=bell,context=1024,slots=3,rows=8,tail=0,page=4,seed=7"
    for text, names in ((KV, ("k", "v", "steps", "table")), (golden, ("k", "v", "steps", "slots", "table"))):
        for what in names:
            name = what if what != "table" else "kv[0].table" if text == golden else "kv.table"
            named(text, backend(append_kv=change(what)), f"append_kv: changed its input {name}: first at [0")


def test_a_list_of_slots_that_grows(backend):
    def change(q, kv, ids, steps, slots=None, out=None, **keywords):
        found = attend(q, kv, ids, steps, slots, out)
        if isinstance(kv, list):
            kv.append(kv[0])
        return found

    named(ATTEND["multi"], backend(attend=change), "changed its input kv (length): given 3, left 4")


def test_a_device_copy_that_is_changed(backend):
    mutant = backend(attend=None)

    def attend_on_device(q, kv, ids, steps):
        found = attend(q, kv, ids, steps)
        q[1, 2, 3] = 0
        return found

    mutant.module.attend = attend_on_device
    mutant.module.to_device = lambda x: x.copy() if isinstance(x, np.ndarray) else x
    mutant.module.to_host = lambda x: x
    named(ATTEND["int8"], mutant, "attend: changed its input q: first at [1, 2, 3]: given ")


def test_every_changed_input_is_named_and_equal_texts_show_their_bits():
    arrays = {"a": np.array([1.0, np.nan], np.float32), "b": np.arange(3), "c": np.zeros(0), "d": "text"}
    kept = Given("attend", arrays)
    kept.check()
    arrays["a"].view(np.uint32)[1] += 1
    arrays["b"][2] = 7
    with pytest.raises(ChangedInputError) as raised:
        kept.check()
    words = "attend: changed its input a: first at [1]: given nan (0x7fc00000), left nan (0x7fc00001); changed too: b"
    assert str(raised.value) == words
    assert arrays["a"].view(np.uint32)[1] == 0x7FC00000 and arrays["b"][2] == 2


def test_an_array_too_large_to_be_copied_is_compared_by_hashes(monkeypatch):
    monkeypatch.setattr(input_changes, "WHOLE", 1 << 20)
    index = Index(5000, np.ones(128, np.float32))
    kept = Given("block_scores", {"index": index})
    kept.check()
    index.pooled[4999, 127] = -0.0
    with pytest.raises(ChangedInputError, match=r"changed its input index.pooled: first in bytes 2097152 to 3145727"):
        kept.check()


def test_a_pool_that_slots_share_is_kept_once():
    kv = PagedKV.new("int8", 64)
    kept = Given("attend", {"kv": [kv, PagedKV(kv.pool, kv.table)]})
    assert kept._kept["kv[0].pool.k.codes"] is kept._kept["kv[1].pool.k.codes"]


def test_the_inputs_are_those_before_the_call_when_a_window_is_shared():
    ids = data.attend_inputs({"format": "int8", "context": 64, "rows": 1, "tail": 0, "seed": 1}).ids
    assert not ids.flags.writeable
    kept = Given("attend", {"ids": ids})
    in_memory(ids)[0, 0] = 9
    with pytest.raises(ChangedInputError, match=r"ids: first at \[0, 0\]: given 0, left 9"):
        kept.check()
    assert ids[0, 0] == 0


def test_a_result_that_lies_in_the_backends_own_buffer(backend):
    held = {}

    def reused(q, kv, ids, steps, slots=None, *, schedule="batch", splits=1):
        out = held.setdefault(q.shape, np.empty(q.shape, np.float32))
        out[...] = exact.attend(q, kv, ids, steps, slots)
        if schedule == "split":
            out *= 2
        return out

    # Both results lie in one buffer: without a copy of the first it would be compared with itself.
    assert run(ATTEND["split"], backend(attend=reused)).status == "failed"
    mutant = backend(attend=reused)
    w = data.attend_inputs({"format": "int8", "context": 64, "rows": 1, "tail": 0, "seed": 1})
    first = mutant.attend(w.q, w.kv, w.ids, w.steps)
    mutant.attend(w.q * 0, w.kv, w.ids, w.steps)
    assert first.tobytes() == exact.attend(w.q, w.kv, w.ids, w.steps).tobytes()
