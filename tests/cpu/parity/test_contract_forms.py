"""The contract of a backend under test: declarations, names, arrays of other libraries, signatures."""

import inspect
import types

import ml_dtypes
import numpy as np
import pytest

from qsa.parity import suite
from qsa.parity.backend import Backend
from qsa.parity.contract import Declaration, declared, protocols
from qsa.parity.contract.arrays import to_numpy
from qsa.parity.contract.loading import load
from qsa.parity.contract.operations import FUNCTIONS
from support.float_kernel import FloatKernel
from support.judged import backend_of, run

ATTEND = "accuracy:op=attend,format=own,scores=ordinary,context=500,rows=2,tail=2,seed=1"
SCORES = "accuracy:op=block_scores,context=1024,rows=2,tail=2,seed=6"
INDEXER = "selection:op=indexer,rule=blocks,context=3072,rows=3,tail=1,seed=4"
KEYS = "accuracy:op=append_index,context=66,seed=5"
TIES = "selection:op=select,rule=blocks,scores=equal,context=8192,rows=2,tail=3,seed=2"
LEVELS = "selection:op=select,rule=cells,scores=levels,context=8192,rows=2,tail=3,seed=2"


__all__ = ["backend_of"]  # a fixture is used by its name


# Declarations


@pytest.mark.parametrize(
    ("declaration", "words"),
    [
        ({"arithmetics": "float"}, "declaration.arithmetics: is not a field; there are arithmetic"),
        ({"arithmetic": "double"}, "declaration.arithmetic"),
        ({"arithmetic": []}, "declaration.arithmetic: is empty"),
        ({"types": {"query": "int4"}}, "declaration.types.query: is 'int4': must be 'float32' or 'fp16'"),
        ({"storage_error": 1.5}, "declaration.storage_error: is 1.5: must be a number between 0 and 1"),
        ({"shapes": {"rows": 0}}, "declaration.shapes.rows: is 0: must be an integer, 1 or more"),
        ({"formats": ["int3"]}, "declaration.formats: 'int3': allowed are"),
        ({"arithmetic": "exact", "types": {"output": "bf16"}}, "declaration.types: the exact arithmetic"),
        (["float"], "declaration: is a list: must be a Declaration, or a dict"),
    ],
)
def test_a_declaration_that_does_not_fit_is_named(declaration, words, backend_of):
    kernel = FloatKernel()
    kernel.declaration = declaration
    with pytest.raises(ValueError) as caught:
        backend_of(kernel)
    assert words in str(caught.value) and "backend = 'theirs:kernel'" in str(caught.value)


def test_defaults_fit_an_ordinary_float_kernel():
    plain = declared(types.SimpleNamespace())
    assert plain.arithmetics == ("float",) and plain.ties == "any" and not plain.tail_score
    assert plain.shapes.heads == [(24, 2)] and plain.shapes.head_dim == [256]
    assert not any((plain.domain.nan, plain.domain.absent_ids, plain.domain.unused_rows, plain.domain.absent_pages))
    promised = declared(types.SimpleNamespace(declaration=Declaration(arithmetic="exact")))
    assert promised.ties == "lowest" and promised.tail_score and promised.shapes.heads is None and promised.domain.nan


def test_an_arithmetic_that_is_not_declared_is_refused(backend_of):
    with pytest.raises(ValueError, match=r"arithmetic = 'exact': backend 'theirs:kernel' declares float"):
        backend_of(FloatKernel(), "exact")


@pytest.mark.parametrize(
    ("declaration", "text", "reason"),
    [
        ({"shapes": {"rows": 1}}, ATTEND, "2 rows: declared are 1 at most (shapes.rows)"),
        ({"shapes": {"context": 100}}, ATTEND, "declared are 100 at most (shapes.context)"),
        ({"shapes": {"heads": [(4, 2)]}}, ATTEND, "24 heads over 2: not declared (shapes.heads)"),
        ({"rules": ["cells"]}, TIES, "rule blocks: declared are cells (rules)"),
    ],
)
def test_what_is_not_declared_is_unsupported_and_not_called(declaration, text, reason, backend_of):
    kernel = FloatKernel()
    kernel.declaration = declaration
    kernel.attend = kernel.select = lambda *given: pytest.fail("was called")
    result = run(text, backend_of(kernel))
    assert result.status == "unsupported" and reason in result.reason


# Names


def test_a_backend_is_found_by_every_kind_of_name(tmp_path, monkeypatch):
    body = "def select(scores, steps): pass\nclass Kernel:\n    def attend(self, q, kv, ids, steps): pass\n"
    (tmp_path / "mine.py").write_text(body + "one = Kernel()\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name, function in (
        ("mine", "select"),
        ("mine:Kernel", "attend"),
        ("mine:one", "attend"),
        (str(tmp_path / "mine.py"), "select"),
        (f"{tmp_path / 'mine.py'}:Kernel", "attend"),
    ):
        assert callable(getattr(load(name), function)), name
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[qsa.backends]\nfast-one = mine:Kernel\n")
    assert callable(Backend("fast-one").module.attend)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module", "No module named 'no_such_module'; known are cpu, cuda, exact"),
        ("nowhere.py", "there is no such file"),
        ("json:nothing", "json has no attribute 'nothing'"),
        ("json", "defines none of append_kv"),
    ],
)
def test_a_name_that_leads_nowhere_is_one_line(name, words):
    with pytest.raises(ValueError) as caught:
        Backend(name)
    assert words in str(caught.value) and "\n" not in str(caught.value)


# Arrays


class Interface:
    """An array of another library: ``__array_interface__`` alone."""

    def __init__(self, array):
        self.kept, self.__array_interface__ = array, array.__array_interface__


class Dlpack:
    """An array of another library: DLPack alone."""

    def __init__(self, array):
        self.kept = array

    def __dlpack__(self, **keywords):
        return self.kept.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.kept.__dlpack_device__()


@pytest.mark.parametrize("form", [np.asarray, Interface, Dlpack])
def test_arrays_of_other_libraries_are_taken(form, backend_of):
    class Other(FloatKernel):
        def attend(self, q, kv, ids, steps):
            return form(super().attend(q, kv, ids, steps))

        def select(self, scores, steps, rule):
            return [form(row) for row in super().select(scores, steps, rule)]

    for text in (ATTEND, LEVELS):
        assert run(text, backend_of(Other())).status == "passed"


def test_what_is_no_array_is_named():
    with pytest.raises(TypeError, match="is a str: must be an array"):
        to_numpy("text")


def test_bf16_results_keep_every_value():
    values = np.arange(300, dtype=np.float32).astype(ml_dtypes.bfloat16)
    assert to_numpy(values).dtype == ml_dtypes.bfloat16
    with pytest.raises(ValueError, match="attend: gave list"):
        Backend("exact").kernel.array("attend", [1.0])
    assert (Backend("exact").kernel.array("attend", values) == values.astype(np.float32)).all()


def test_the_signatures_are_those_of_the_protocols():
    written = {}
    names = ("Storage", "IndexStorage", "Attention", "Selection", "Stages")
    for protocol in (getattr(protocols, name) for name in names):
        written |= {name: value for name, value in vars(protocol).items() if name in FUNCTIONS}
    written["sparse_attention"] = protocols.SparseAttention.sparse_attention
    for name, function in written.items():
        text = FUNCTIONS[name].signature
        given = [part.split("=")[0].strip() for part in text[text.index("(") + 1 : -1].split(",")]
        names = list(inspect.signature(function).parameters)[1:]
        options = [option for option in FUNCTIONS[name].options if option in names]
        assert [each for each in given if each != "slots"] + options == names, name
    assert set(FUNCTIONS) - set(written) == {"append_kv", "append_index"}


def test_values_that_no_scale_holds_are_asked_of_who_declares_an_error_for_them():
    text = (
        "accuracy:op=kv_cycle,format=q4_0,page=512,rows=3,slots=3,values=overflow,"
        "unused=none,start=2,missing=some,seed=49"
    )
    assert suite.run_case(suite.parse(text), Backend("cpu", "exact")).status == "passed"
    quiet = Backend("exact")
    result = suite.run_case(suite.parse(text), quiet)
    assert result.status == "unsupported" and "domain.overflow" in result.reason
    kinds = {
        backend: {case.recipe.get("values") for case in suite.collect(["accuracy"], "exact", backend=backend)}
        for backend in (quiet, Backend("cpu", "exact"))
    }
    assert [("overflow" in values) for values in kinds.values()] == [False, True]
