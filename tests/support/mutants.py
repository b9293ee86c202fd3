"""Shared by the tests of the parity modules: cases, a backend with replaced operations, and checks of its report."""

import sys
import types

import pytest

from qsa.parity import suite
from qsa.parity.backend import Backend
from qsa.reference import exact

ATTEND = {
    "int8": "accuracy:op=attend,format=int8,scores=ordinary,context=500,rows=2,tail=2,seed=1",
    "q4_0": "accuracy:op=attend,format=q4_0,scores=ordinary,context=60,rows=1,tail=3,seed=1",
    "one": "accuracy:op=attend,format=int8,scores=ordinary,context=0,rows=1,tail=1,seed=1",
    "page": "pages:op=attend,format=int8,page=4,order=shuffled,missing=middle,context=300,tail=2,seed=2",
    "poison": "pages:op=attend,format=int8,page=64,order=shuffled,missing=last,context=4092,tail=2,seed=1",
    "split": "split:op=attend,schedule=split,splits=7,format=int8,context=500,rows=2,tail=2,seed=1",
    "step": "split:op=attend,schedule=step,splits=1,format=int8,context=500,rows=2,tail=2,seed=1",
    "multi": "split:op=attend,schedule=multi,splits=1,format=int8,context=500,rows=4,tail=2,seed=1",
    "mixed": "split:op=attend,schedule=multi,splits=1,format=mixed,context=500,rows=3,tail=2,seed=1",
    "corners": "accuracy:op=corners,format=int8,rows=3,seed=7",
    "golden": "attend:format=int8,context=1024,rows=1,tail=0,rule=blocks,page=512,seed=7",
    "full": "attend:format=int8,context=1024,rows=8,tail=1,rule=blocks,page=4,queries=full,seed=7",
}
SELECT = {
    "equal": "selection:op=select,rule=blocks,scores=equal,context=2052,rows=1,tail=1,seed=1",
    "levels": "selection:op=select,rule=cells,scores=levels,context=8192,rows=2,tail=3,seed=2",
    "special": "selection:op=select,rule=blocks,scores=special,context=8192,rows=2,tail=1,seed=2",
    "513": "selection:op=select,rule=blocks,scores=continuous,context=2056,rows=1,tail=0,seed=1",
    "unused": "selection:op=unused,rule=blocks,scores=continuous,context=64,rows=3,tail=1,seed=6",
    "golden": "select:rule=blocks,scores=continuous,context=1024,rows=1,tail=0,seed=7",
}
INDEXER = "selection:op=indexer,rule=blocks,context=3072,rows=3,tail=1,seed=4"
KEYS = "accuracy:op=append_index,context=66,seed=5"
SCORES = "accuracy:op=block_scores,context=1024,rows=2,tail=2,seed=6"
KV = "accuracy:op=append_kv,format=int8,rows=16,seed=4"
KV_PAGES = "pages:op=append_kv,format=q4_0,page=4,order=reversed,missing=last,rows=21,seed=3"


def attend(q, kv, ids, steps, slots=None, out=None, *, schedule="batch", splits=1, arithmetic="exact"):
    return exact.attend(q, kv, ids, steps, slots, out, splits=splits)


@pytest.fixture
def backend(monkeypatch):
    """A function that makes a Backend of the exact operations with some replaced, or left out where None is given."""

    def make(**functions):
        module = types.ModuleType("mutant")
        module.declaration = {"arithmetic": "exact"}
        right = {name: getattr(exact, name) for name in ("append_kv", "append_index", "block_scores", "select")}
        for name, function in ({"attend": attend} | right | functions).items():
            if function is not None:
                setattr(module, name, function)
        monkeypatch.setitem(sys.modules, "mutant", module)
        return Backend("mutant")

    return make


def run(text, backend):
    """The result of a case string on ``backend``."""
    return suite.run_case(suite.parse(text), backend)


def caught(text, backend, *words):
    """Assert that a case fails, and that its report has all ``words`` and the command that runs it again."""
    result = run(text, backend)
    report = "\n".join(result.lines(backend))
    assert result.status == "failed", report
    assert f"qsa parity --backend mutant --case '{text}'" in report
    for word in words:
        assert word in report
    return result
