"""Relations that need no tolerance: right kernels have them, each variant kernel is seen, weak inputs are told."""

from types import SimpleNamespace

import numpy as np
import pytest

from qsa.parity import suite
from qsa.parity.backend import Backend
from qsa.parity.checks.designs import relations
from qsa.parity.checks.designs.related import shown
from qsa.parity.checks.designs.variant_kernels import variant
from qsa.parity.contract import Kernel, declared
from qsa.parity.prove import run
from qsa.parity.prove.mutant import CATALOGUE, DECLARATIONS, backend_of
from qsa.parity.prove.mutants import relations as variants
from qsa.parity.prove.plain_kernel import PlainKernel


def related(arithmetic, backend):
    cases = suite.collect(["split"], arithmetic, backend=backend)
    return [case for case in cases if case.recipe["op"] == "relation"]


def said(result):
    return "\n".join(result.lines(None, verbose=True))


@pytest.mark.parametrize("arithmetic", ["exact", "float"])
@pytest.mark.parametrize("name", ["cpu", "right"])
def test_right_kernels_have_every_relation(arithmetic, name):
    backend = Backend("cpu", arithmetic) if name == "cpu" else backend_of(arithmetic, {})
    results = [suite.run_case(case, backend) for case in related(arithmetic, backend)]
    assert [said(result) for result in results if result.status != "passed"] == []
    held = {(case.recipe["operation"], case.recipe["relation"]) for case in related(arithmetic, backend)}
    every = {(operation, one) for operation, some in relations.RELATIONS.items() for one in some}
    # The split schedule of our float attention adds in another order.
    missing = {("attend", "splits")} if (arithmetic, name) == ("float", "cpu") else set()
    assert held == every - missing


def variant_mutants():
    return [one for one in CATALOGUE if one.kind == variants.DECLARED]


def test_every_variant_kernel_is_seen():
    cases = related("float", backend_of("float", {}))
    verdicts = run.prove(variant_mutants(), "float", cases)
    assert len(verdicts) >= 10 and [one.mutant.name for one in verdicts if not one.caught] == []
    assert not any(one.check.endswith(("standard", "would be seen")) for one in verdicts)
    seen = {suite.parse(one.case).recipe["relation"] for one in verdicts}
    assert seen >= {*relations.TRANSFORMS, "batch", "schedule", "splits", "pages"}


def test_without_the_declaration_other_bytes_are_no_fault():
    plain = SimpleNamespace(declaration={**DECLARATIONS["float"], "invariance": []}, attend=PlainKernel().attend)
    backend = Backend("undeclared", "float", Kernel(plain, declared(plain)))
    assert related("float", backend) == []
    case = "split:op=relation,operation=attend,relation=signs,format=int8,seed=71"
    result = suite.run_case(suite.parse(case), backend)
    assert result.status == "unsupported" and "signs: is not declared" in result.reason


@pytest.mark.parametrize("relation", relations.TRANSFORMS)
def test_own_storage_has_relations_too(relation):
    kernel = PlainKernel()
    kernel.declaration = {"invariance": ["value_scale", "value_sign", "signs", "heads"]}
    backend = Backend("own", None, Kernel(kernel, declared(kernel)))
    (case,) = [case for case in related("float", backend) if case.recipe["relation"] == relation]
    assert case.recipe["format"] == "own"
    result = suite.run_case(case, backend)
    assert result.status == "passed", said(result)
    right = kernel.attend
    kernel.attend = lambda q, kv, ids, steps: variants._up(right(q, kv, ids, steps) + np.float32(2.0**-30), 26)
    found = suite.run_case(case, Backend("own", None, Kernel(kernel, declared(kernel)))).status
    assert found == ("failed" if relation.startswith("value") else "passed")


ORDINARY = relations.data.attend_inputs({"format": "int8", "context": 300, "rows": 2, "tail": 3, "seed": 71})


@pytest.mark.parametrize("relation", [*relations.TRANSFORMS, "batch"])
def test_inputs_that_cannot_show_a_variant_kernel_are_told(relation):
    """A single cell with a simple value, and queries that need few bits, show nothing of the kind."""
    name = "attend"
    assert shown(name, variant(relation, ORDINARY)).passed
    kv = relations.copy.deepcopy(ORDINARY.kv)
    kv.pool.v.codes[:], kv.pool.v.scale[:] = 1, 1
    steps = ORDINARY.steps.copy()
    steps[:, 3] = 1
    weak = ORDINARY._replace(q=np.round(ORDINARY.q), kv=kv, steps=steps)
    told = shown(name, variant(relation, weak))
    if relation == "value_scale":
        # A number that is added shows on any values but none.
        told = shown(name, variant(relation, weak._replace(q=weak.q[:0])))
    assert not told.passed


@pytest.mark.parametrize(("text", "words"), [
    ("split:op=relation,operation=select,relation=signs,seed=1", "select has repeat, batch, schedule"),
    ("split:op=relation,operation=select,relation=batch,format=int8,seed=1", "select has none"),
    ("split:op=relation,operation=attend,relation=batch,seed=1", "format: is missing"),
])  # fmt: skip
def test_a_relation_that_an_operation_has_not_is_told(text, words):
    result = suite.run_case(suite.parse(text), backend_of("exact", {}))
    assert result.status == "failed" and words in result.reason
