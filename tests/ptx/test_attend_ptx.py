"""The exact attention of int8 and few cells, where the time of one row counts: nothing spills where it is tuned."""

import pytest

pytest.importorskip("numba.cuda.core", reason="numba-cuda is missing (extra cuda12 or cuda13)")
from qsa.kernels.cuda.ptxcheck import check as ptxcheck
from qsa.kernels.cuda.ptxcheck import registry
from qsa.kernels.cuda.toolchain.compiler import NAME, compile_ptx

if NAME != "numba-cuda" or ptxcheck.find_ptxas() is None:
    pytest.skip("numba-cuda or ptxas is missing (extra cuda12 or cuda13)", allow_module_level=True)

ROWS = {row.name: row for _, row in registry.registered()}


@pytest.mark.parametrize(
    ("name", "targets"),
    [("attend_exact_int8_few", ((8, 0), (8, 6), (8, 9), (9, 0))), ("attend_exact_int8_cluster", ((9, 0),))],
)
def test_int8_of_few_cells_neither_spills_nor_uses_the_stack(name, targets):
    row = ROWS[name]
    assert not set(targets) & set(row.spilled)
    for target in targets:
        report = ptxcheck.assemble(compile_ptx(row.kernel, row.signature, target), target)
        assert (report["stack"], report["spills"]) == (0, 0), target
        assert report["registers"] <= 168


def test_int8_and_q4_0_spill_on_no_target_they_run_on():
    """The table of spills may not take them in; that it tells the truth is for ``test_ptx.py``."""
    spilling = {name for name, row in ROWS.items() if row.spilled}
    assert spilling and not {"attend_exact_int8", "attend_exact_int8_few", "attend_exact_q4_0"} & spilling


def test_spills_are_declared_for_targets_that_are_compiled():
    declared = [(row, target) for row in ROWS.values() for target in row.spilled]
    assert len(declared) == 21
    assert all(target in ptxcheck.TARGETS and target >= row.minimum for row, target in declared)
