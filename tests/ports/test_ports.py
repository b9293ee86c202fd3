"""Every port that can run here is right, its wrong twins are not, and one without its library says what it needs."""

import ast
import importlib
import subprocess
import sys

import pytest

import support.ports as ports
from qsa.parity import suite
from qsa.parity.backend import Backend
from support.type_check import ROOT

LINES = 40
"""Lines of code of a port, without imports, texts and the loader of its library."""

SHOWS = {
    "cache": "append_kv",
    "attend": "attend",
    "attend_gated": "gated",
    "sparse_attention": "sparse_attention",
    "index_cache": "append_index",
    "block_scores": "block_scores",
    "select": "select",
    "indexer": "indexer",
}
"""Function -> the operation whose cases must pass where a port defines it."""


@pytest.mark.parametrize("name", ports.RUNNING)
def test_a_port_passes(name):
    backend = ports.port(name)
    cases = ports.quick(backend)
    assert {case.module for case in cases} == set(ports.MODULES)
    results = suite.run(cases, backend).results
    assert not ports.report(results, "failed")
    passed = {one.case.recipe["op"] for one in results if one.status == "passed"}
    assert passed >= {operation for function, operation in SHOWS.items() if backend.has(function)}
    assert "attend" in passed and backend.own_storage


@pytest.mark.parametrize("fault", ports.WRONG)
@pytest.mark.parametrize("name", ports.RUNNING)
def test_a_wrong_twin_of_a_port_fails(name, fault, monkeypatch):
    right = ports.port(name)
    function, wrong, text = ports.WRONG[fault]
    if not right.has(function):
        pytest.skip(f"{name} has no {function}")
    case = suite.parse(text.format(right.declaration.rules[0]))
    before = suite.run_case(case, right)
    assert before.status == "passed", ports.report([before], before.status)
    after = suite.run_case(case, ports.twin(right, function, wrong, monkeypatch))
    # Found by what it computed, not by an error that it raised.
    assert after.status == "failed" and not all(one.passed for one in after.comparisons)


@pytest.mark.parametrize("name", ports.ELSEWHERE)
def test_a_port_without_its_package_says_what_it_needs(name, monkeypatch, tmp_path):
    pytest.importorskip("torch")
    if importlib.util.find_spec(name):
        pytest.skip(f"{name} is installed")
    variable = f"QSA_{name.upper()}"
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ValueError, match=f"needs {name}, which is not installed: install {name}, .* {variable}"):
        Backend(f"qsa.parity.ports.{name}")
    monkeypatch.setenv(variable, str(tmp_path))
    with pytest.raises(ValueError, match=rf"{variable} = '.*': has no \w+\.py"):
        Backend(f"qsa.parity.ports.{name}")


def test_a_kernel_file_in_a_named_folder_is_taken(monkeypatch, tmp_path):
    from qsa.parity.ports.loading import kernel_file

    (tmp_path / "mine.py").write_text("answer = 42\n")
    monkeypatch.setenv("QSA_MINE", str(tmp_path))
    assert kernel_file("not_installed", "QSA_MINE", "mine.py").answer == 42


def test_without_a_compiler_the_c_kernel_says_so():
    code = "import qsa.parity.ports.c_kernel"
    done = subprocess.run([sys.executable, "-c", code], env={"CC": "no-such-compiler"}, capture_output=True, text=True)
    assert done.returncode == 1 and "needs a C compiler" in done.stderr


def test_without_a_library_a_port_names_the_extra(monkeypatch):
    from qsa.parity.ports.loading import library

    with pytest.raises(ImportError, match=r"^no_such_library: needs no_such_library, .* install the extra `ports`$"):
        library("no_such_library")
    # A library that is there and lacks something itself names that.
    monkeypatch.setitem(sys.modules, "gguf.missing_part", None)
    with pytest.raises(ImportError, match="needs gguf"):
        library("gguf.missing_part")


def code_lines(source):
    """Lines of code of a port: no blank lines, comments, texts, imports, loader or compiled kernel."""
    tree, left_out = ast.parse(source), set()
    for node in ast.walk(tree):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        loader = isinstance(node, ast.FunctionDef) and (node.name == "_loaded" or node.decorator_list)
        if text or loader or isinstance(node, ast.Import | ast.ImportFrom):
            decorators = getattr(node, "decorator_list", [])
            first = decorators[0].lineno if decorators else node.lineno
            left_out |= set(range(first, node.end_lineno + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(
        number not in left_out and bool(line.strip()) and not line.strip().startswith("#") for number, line in lines
    )


@pytest.mark.parametrize(
    "path",
    [p.name for p in (ROOT / "parity/ports").glob("*.py") if p.stem not in ("__init__", "loading", "published_layer")],
)
def test_a_port_is_short(path):
    assert 10 < code_lines((ROOT / "parity/ports" / path).read_text(encoding="utf-8")) <= LINES


def test_every_port_is_tested_or_named_as_one_that_cannot_run_here():
    names = {path.stem for path in (ROOT / "parity/ports").glob("*.py")} - {"__init__", "loading", "published_layer"}
    run = {
        name.partition(":")[0] for name in (*ports.PLAIN, *ports.GGML, *ports.TORCH, *ports.PUBLISHED, *ports.TRITON)
    }
    assert names == run | set(ports.ELSEWHERE)
