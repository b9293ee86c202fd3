"""``qsa cases`` and ``qsa backend new``: options, errors on one line, what is written."""

import ast
import importlib.util
import inspect
import json

import msgspec
import pytest

from qsa.parity import cli
from qsa.parity.cases import index
from qsa.parity.contract import Declaration, Domain, Shapes, Types, declared, skeleton
from qsa.parity.contract.loading import load
from qsa.parity.contract.operations import FUNCTIONS

CASE = "selection:op=select,rule=blocks,scores=levels,context=16,rows=2,tail=3,seed=2"


def run(*arguments):
    return cli.main(["cases", *map(str, arguments)])


def test_a_declaration_from_a_file_is_the_engines(tmp_path):
    (tmp_path / "mine.json").write_text(json.dumps({"arithmetic": ["exact", "float"], "ties": "any"}))
    assert run("export", tmp_path / "new", "--case", CASE, "--declaration", tmp_path / "mine.json") == 0
    made = index.read(tmp_path / "new")
    assert (made.arithmetic, made.declaration.ties) == ("exact", "any")


def test_export_prints_what_is_left_out_and_the_next_command(tmp_path, capsys):
    other = "accuracy:op=append_kv,format=int8,rows=16,seed=4"
    assert run("export", tmp_path / "new", "--case", CASE, "--case", other, "--op", "select") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"written   {CASE}"
    assert lines[1] == f"left out  {other}  append_kv: the backend has none"
    assert lines[-1] == f"qsa cases check {tmp_path / 'new'}"


def test_check_without_outputs_is_no_success(tmp_path, capsys):
    run("export", tmp_path / "new", "--case", CASE)
    assert run("check", tmp_path / "new") == 1
    assert "no outputs.safetensors lies beside a case" in capsys.readouterr().err


def test_check_writes_reports_and_says_what_is_declared(tmp_path, capsys):
    (tmp_path / "mine.json").write_text('{"types": {"output": "bf16"}}')
    run("export", tmp_path / "new", "--case", CASE, "--declaration", tmp_path / "mine.json")
    made = index.read(tmp_path / "new").cases[0]
    folder = tmp_path / "new" / made.folder
    (folder / index.EXPECTED).rename(folder / index.OUTPUTS)
    report = tmp_path / "report.json"
    assert run("check", tmp_path / "new", "--json", report, "--junit", tmp_path / "report.xml") == 0
    assert "'output': 'bf16'" in capsys.readouterr().out
    assert json.loads(report.read_text())["passed"] == 1
    assert "<testsuites" in (tmp_path / "report.xml").read_text()


BAD = {
    "format": (["--format", "npz"], "--format = 'npz': allowed are qsa, flashinfer-trace"),
    "storage": (["--storage", "theirs"], "--storage = 'theirs': allowed are ours, own"),
    "arithmetic": (["--arithmetic", "double"], "--arithmetic = 'double': allowed are exact, float"),
    "op": (["--op", "walk"], "--op = 'walk'"),
    "case": (["--case", "walk:op=a"], "module 'walk'"),
    "declaration": (["--declaration", "none.json"], "none.json: there is no such file"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_options_are_named_on_one_line(tmp_path, monkeypatch, kind, capsys):
    monkeypatch.chdir(tmp_path)
    options, text = BAD[kind]
    assert run("export", "new", *options) == 2
    error = capsys.readouterr().err
    assert text in error and error.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_modules_do_not_go_with_cases(tmp_path, capsys):
    assert run("export", tmp_path / "new", "pages", "--case", CASE) == 2
    assert "not together with --case" in capsys.readouterr().err


@pytest.mark.parametrize("fields", ['{"arithmetic": "exact", "types": {"output": "bf16"}}', '{"more": 1}', "[]"])
def test_a_declaration_that_does_not_fit_is_named(tmp_path, fields, capsys):
    (tmp_path / "mine.json").write_text(fields)
    assert run("export", tmp_path / "new", "--declaration", tmp_path / "mine.json") == 2
    assert "declaration" in capsys.readouterr().err


def test_a_trace_is_written_with_its_manifest(tmp_path, capsys):
    assert run("export", tmp_path / "new", "--case", CASE, "--format", "flashinfer-trace") == 0
    assert "1 workloads of 1 definitions" in capsys.readouterr().out
    (entry,) = json.loads((tmp_path / "new" / "manifest.json").read_text())["workloads"]
    assert entry["case"] == CASE


# qsa backend new


@pytest.fixture
def made(tmp_path, monkeypatch, request):
    """The module of a new backend."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["backend", "new", "mine", "--from", request.param]) == 0
    spec = importlib.util.spec_from_file_location("mine", tmp_path / "mine.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BOTH = pytest.mark.parametrize("made", ["exact", "float"], indirect=True)


@BOTH
def test_a_new_backend_has_every_function_of_the_contract(made):
    """With the contract's names and optional arguments, annotated and described."""
    # attend_stages helps to find a fault; a skeleton of it would be taken for an answer.
    for name, function in ((name, function) for name, function in FUNCTIONS.items() if name != "attend_stages"):
        found = inspect.signature(getattr(made, name))
        given = {p.name: p.default is not p.empty for p in found.parameters.values() if p.kind is not p.KEYWORD_ONLY}
        assert given == function.parameters
        assert all(p.annotation is not p.empty for p in found.parameters.values())
        assert {p.name for p in found.parameters.values() if p.kind is p.KEYWORD_ONLY} <= set(function.options)
        assert found.return_annotation is not found.empty and getattr(made, name).__doc__


@BOTH
def test_the_comments_of_a_new_backend_are_the_defaults(made):
    """Taken as code, the commented fields are the declaration that holds without them."""
    lines = inspect.getsource(made).splitlines()
    first, last = lines.index("declaration = {"), lines.index("}")
    fields = [line.replace("# ", "", 1) for line in lines[first + 1 : last] if not line.endswith("unless you set it:")]
    full = ast.literal_eval("{" + "\n".join(fields) + "}")
    assert set(full) == {field.name for field in msgspec.structs.fields(Declaration)}
    for name, kind in (("types", Types), ("shapes", Shapes), ("domain", Domain)):
        assert set(full[name]) == set(kind.__struct_fields__)
    assert msgspec.convert(full, Declaration) == declared(made)


@BOTH
def test_a_new_backend_is_unsupported_throughout(made, capsys):
    assert cli.main(["parity", "--backend", "mine.py", "--in-process", "--case", CASE]) == 1
    text = capsys.readouterr().out
    assert "0 passed, 0 failed, 1 unsupported" in text and "select: not written yet" in text
    assert load("mine.py").declaration["arithmetic"] == made.declaration["arithmetic"]


def test_a_new_backend_writes_over_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("mine")
    assert cli.main(["backend", "new", "mine"]) == 2
    assert "mine.py exists already" in capsys.readouterr().err
    assert (tmp_path / "mine.py").read_text() == "mine"


@pytest.mark.parametrize("name", ["1a", "a-b", "../a", "a.py", "def", ""])
def test_a_name_that_python_has_not_is_refused(tmp_path, monkeypatch, name, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["backend", "new", name]) == 2
    assert "must be a name of Python" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_new_backend_is_of_a_known_arithmetic(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["backend", "new", "mine", "--from", "double"]) == 2
    assert "--from = 'double': allowed are exact, float" in capsys.readouterr().err


def test_lines_of_a_new_backend_are_short():
    assert max(map(len, skeleton.text("mine", "exact").splitlines())) <= 120
