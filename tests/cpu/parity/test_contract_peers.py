"""What kernels of other engines are like, each kind held by a kernel that has it: part C of the known faults.

Row by row: narrow number types in and out, own storage, fused calls, the gate in attention, a domain that is declared,
raw keys in fp16, other bytes of equal values, a fixed shape.
"""

import types

import numpy as np
import pytest

from qsa.kernels import cpu
from qsa.parity import suite
from qsa.parity.checks import attend_inputs as data
from support.float_kernel import FloatKernel
from support.judged import backend_of, failed, passed, run
from support.peer_kernels import STORAGES, Flush, Fused, HalfKeys, Narrow, Stored, Strict

ATTEND = "accuracy:op=attend,format=own,scores=ordinary,context=500,rows=2,tail=2,seed=1"
STORAGE = "accuracy:op=append_kv,format=own,rows=16,seed=4"
KEYS = "accuracy:op=append_index,context=66,seed=5"
CORNERS = "accuracy:op=score_corners,rows=3,seed=10"
GATED = "accuracy:op=gated,format=own,context=60,rows=1,tail=3,seed=8"
SPARSE = "accuracy:op=sparse_attention,format=own,rule=blocks,context=4096,rows=2,tail=1,seed=9"
INDEXER = "selection:op=indexer,rule=blocks,context=3072,rows=3,tail=1,seed=4"
SPECIAL = "selection:op=select,rule=blocks,scores=special,context=8192,rows=2,tail=1,seed=2"
UNUSED = "selection:op=unused,rule=blocks,scores=continuous,context=64,rows=3,tail=1,seed=6"
ABSENT = "pages:op=attend,format=int8,page=4,order=shuffled,missing=middle,context=300,tail=2,seed=2"
KV_PAGES = "pages:op=append_kv,format={},page=4,order=reversed,missing=last,rows=21,seed=3"


__all__ = ["backend_of"]  # a fixture is used by its name


# bf16 and fp16 in and out


@pytest.mark.parametrize(
    "text", [ATTEND, KEYS, INDEXER, SPECIAL, "accuracy:op=block_scores,context=1024,rows=2,tail=2,seed=6"]
)
@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_narrow_types_in_and_out(kind, text, backend_of):
    """Row 1: no bf16 or fp16, in or out."""
    passed(text, backend_of(Narrow(kind)))


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_narrow_types_that_are_not_declared_are_a_fault(kind, backend_of):
    secret = Narrow(kind)
    secret.declaration = {"types": {"query": kind}}
    failed(ATTEND, backend_of(secret), "attend: kernel")


# Own storage


@pytest.mark.parametrize("name", STORAGES)
def test_own_storage(name, backend_of):
    """Row 2: truth was read from our pool, so a kernel with its own storage had to requantise and failed."""
    put, get, error = STORAGES[name]
    backend = backend_of(Stored(put, get, error))
    passed(ATTEND, backend)
    measured = passed(STORAGE, backend).worst.measure
    # The declared error of storage is held to, apart from the kernel: half the error that it has is too little.
    failed(STORAGE, backend_of(Stored(put, get, measured / 2)), "append: ")
    passed(ATTEND, backend_of(Stored(put, get, measured / 2)))


def test_own_storage_in_pages_of_another_layout(backend_of):
    """Row 2: other page layouts. Pages of 16 cells in falling order, V transposed."""

    class Paged(FloatKernel):
        def cache(self, capacity):
            pages = -(-capacity // 16)
            return np.zeros((pages, 2, 16, 256), np.float32), np.zeros((pages, 2, 256, 16), np.float32)

        def append(self, cache, k, v, positions):
            page, at = len(cache[0]) - 1 - positions // 16, positions % 16
            cache[0][page, :, at], cache[1][page, :, :, at] = k, v

        def read(self, cache, positions):
            page, at = len(cache[0]) - 1 - positions // 16, positions % 16
            return cache[0][page, :, at], cache[1][page, :, :, at]

        def attend(self, q, kv, ids, steps):
            cells = np.arange(len(kv[0]) * 16)
            return super().attend(q, np.stack(self.read(kv, cells)), ids, steps)

    for text in (
        ATTEND,
        STORAGE,
        "pages:op=attend,format=own,page=4,order=identity,missing=none,context=300,tail=2,seed=1",
    ):
        passed(text, backend_of(Paged()))


# Fused calls


@pytest.mark.parametrize("late", [1, 4])
@pytest.mark.parametrize("text", [INDEXER, SPARSE])
def test_one_fused_call_from_query_and_keys(text, late, backend_of):
    """Row 3: one fused call from query and keys to ids."""
    passed(text, backend_of(Fused()))
    wrong = Fused()
    wrong.late = late
    failed(text, backend_of(wrong), "indexer: cells" if text == INDEXER else "sparse_attention")


def test_the_gate_fused_into_attention(backend_of):
    """Row 3: the output gate fused into attention."""
    passed(GATED, backend_of(Fused()))
    for wrong in (
        lambda self, q, gate, kv, ids, steps: self.attend(q, kv, ids, steps),
        lambda self, q, gate, kv, ids, steps: self.attend(q, kv, ids, steps) / (1 + np.exp(gate)),
        lambda self, q, gate, kv, ids, steps: self.attend(q, kv, ids, steps) * np.maximum(gate, 0),
    ):
        failed(GATED, backend_of(type("Wrong", (Fused,), {"attend_gated": wrong})()), "attend_gated")


# Domain


def test_a_kernel_never_meets_what_it_has_not_declared(backend_of):
    """Row 4: inputs outside what a kernel was made for could not be declared."""
    backend = backend_of(Strict())
    results = suite.run(suite.collect(["pages", "split"], "float", backend=backend), backend).results
    results += [run(text, backend) for text in (SPECIAL, CORNERS, UNUSED, INDEXER)]
    assert [one.reason for one in results if one.status == "failed"] == []
    assert run(UNUSED, backend).reason.endswith("an unused row: not declared (domain.unused_rows)")
    assert run(SPECIAL, backend).status == run(CORNERS, backend).status == "passed"


@pytest.mark.parametrize(
    ("domain", "text"),
    [
        ({"nan": True}, SPECIAL),
        ({"infinity": True}, SPECIAL),
        ({"nan": True}, CORNERS),
        ({"unused_rows": True}, UNUSED),
    ],
)
def test_what_a_kernel_declares_it_meets(domain, text, backend_of):
    kernel = Strict()
    kernel.declaration = {"domain": domain}
    result = run(text, backend_of(kernel))
    assert result.status == "failed" and "AssertionError" in result.reason
    assert run(text, backend_of(FloatKernel())).status in ("passed", "unsupported")


def test_subnormal_numbers_are_declared_too(backend_of):
    flush = Flush()
    passed(CORNERS, backend_of(flush))
    flush.declaration = plain = {"domain": {"subnormal": True}}
    failed(CORNERS, backend_of(flush), "block_scores: corners")
    keeps = FloatKernel()
    keeps.declaration = plain
    passed(CORNERS, backend_of(keeps))


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("absent_pages", ABSENT),
        ("absent_ids", "accuracy:op=attend,format=int8,scores=ordinary,context=60,rows=1,tail=3,seed=1"),
    ],
)
def test_cells_that_are_not_there_are_declared_too(field, text, backend_of):
    """Row 4, of a kernel in our pools: absent pages, and -1 among the ids."""

    def backend(domain, attend):
        kernel = types.SimpleNamespace(attend=attend, append_kv=cpu.append_kv, declaration={"domain": domain})
        return backend_of(kernel)

    def mine(q, kv, ids, steps):
        return cpu.attend(q, kv, ids, steps, arithmetic="float")

    def never(q, kv, ids, steps):
        pytest.fail("was called")

    case, all_but = suite.parse(text), {"absent_pages": True, "absent_ids": True} | {field: False}
    kernel = backend(all_but, never)
    if field == "absent_ids":
        w = data.for_backend(kernel, case.recipe)
        ids = w.ids.copy()
        ids[0, 3] = -1
        with pytest.raises(NotImplementedError, match="-1 among the ids: not declared"):
            kernel.attend(w.q, w.kv, ids, w.steps)
        assert np.isfinite(backend({field: True}, mine).attend(w.q, w.kv, ids, w.steps)).all()
        return
    assert "a selected cell of no page: not declared" in suite.run_case(case, kernel).reason
    assert suite.run_case(case, backend({field: True}, mine)).status == "passed"


# Raw indexer keys in fp16


def test_raw_keys_in_fp16(backend_of):
    """Row 5: raw indexer keys rounded to fp16 by design were 378 times over the bound."""
    kernel = HalfKeys()
    failed(KEYS, backend_of(kernel), "index_append: pooled")
    kernel.declaration = {"types": {"raw_keys": "fp16"}}
    assert passed(KEYS, backend_of(kernel)).worst.share < 1
    passed(INDEXER, backend_of(kernel))


# Equal values in other bytes


def _in_other_bytes(k, v, kv, steps):
    """Our append, then: a zero group under a scale of -0, and other codes under a scale of 0."""
    cpu.append_kv(k, v, kv, steps)
    for pool in (kv.pool, kv.host):
        for side in (pool.k, pool.v) if pool is not None else ():
            zero = np.asarray(side.scale) == 0
            if side.coding == "q4_0":
                side.scale[zero] = np.float16(-0.0)
            elif side.coding == "int8":
                codes = side.codes.reshape(*side.scale.shape, -1)
                codes[zero] = 77


@pytest.mark.parametrize("format", ["int8", "k8v4", "q4_0"])
def test_equal_values_in_other_bytes(format, backend_of):
    """Row 6: a zero group stored as a scale of -0, codes under a scale of 0."""
    text = f"accuracy:op=append_kv,format={format},rows=16,seed=4"
    kernel = types.SimpleNamespace(append_kv=_in_other_bytes, declaration={"domain": {"unused_rows": True}})
    passed(text, backend_of(kernel))
    kernel.declaration = {"arithmetic": "exact"}
    failed(text, backend_of(kernel), "append_kv: ")


@pytest.mark.parametrize("format", ["int8", "q4_0", "fp16"])
def test_pages_of_a_float_kernel_are_held_as_values_and_all_else_as_bytes(format, backend_of):
    """Row 6, in pages: a code that rounds the other way is no fault, another cell that is written is one."""

    def other_way(k, v, kv, steps):
        cpu.append_kv(k * np.float32(1 + 2.0**-12), v, kv, steps)

    def outside(k, v, kv, steps):
        cpu.append_kv(k, v, kv, steps)
        kv.pool.k.codes[-1, 0, 0, 0] = 5

    def other_values(k, v, kv, steps):
        cpu.append_kv(k, v * np.float32(1.5), kv, steps)

    kernel = types.SimpleNamespace(append_kv=other_way, declaration={"domain": {"unused_rows": True}})
    passed(KV_PAGES.format(format), backend_of(kernel))
    kernel.append_kv = outside
    failed(KV_PAGES.format(format), backend_of(kernel), "append_kv: pool, k codes")
    kernel.append_kv = other_values
    failed(KV_PAGES.format(format), backend_of(kernel), "append_kv: v of the pool")


# A fixed shape


@pytest.mark.parametrize("module", ["needle", "seven", "nll"])
def test_a_kernel_of_fixed_shape_is_not_called_with_heads_of_group_2(module, backend_of):
    """Row 7: text modules call with 4 heads of group 2; a kernel of fixed shape computes garbage."""

    def never(q, kv, ids, steps):
        pytest.fail("was called")

    backend = backend_of(types.SimpleNamespace(attend=never, append_kv=cpu.append_kv))
    case = suite.collect([module], "float", backend=backend)[0]
    result = suite.run_case(case, backend)
    assert result.status == "unsupported" and "4 heads over 2: not declared (shapes.heads)" in result.reason
