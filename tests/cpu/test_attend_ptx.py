"""The exact attention's kernel for int8 on sm_90, for which it is tuned: all registers used, nothing on the stack."""

import pytest


def test_int8_on_sm_90_neither_spills_nor_uses_the_stack():
    pytest.importorskip("numba_cuda", reason="numba-cuda is missing (extra cuda12 or cuda13)")
    from qsa.kernels.cuda import ptxcheck, registry
    from qsa.kernels.cuda.compiler import compile_ptx

    if ptxcheck.find_ptxas() is None:
        pytest.skip("ptxas is missing (extra cuda12 or cuda13)")
    (row,) = [row for row in registry.registered() if row.name == "attend_exact_int8"]
    report = ptxcheck.assemble(compile_ptx(row.kernel, row.signature, (9, 0)), (9, 0))
    assert (report["stack"], report["spills"]) == (0, 0)
    assert report["registers"] <= 168
