"""The FlashInfer Trace schema: definitions and workloads fit the package's own models, solutions are judged."""

import importlib
import json
import math
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file

from qsa.parity import cli, suite
from qsa.parity.cases.export import Engine
from qsa.parity.contract import Types, declared
from qsa.parity.trace import definitions as trace_definitions
from qsa.parity.trace import export as trace_export
from qsa.parity.trace import schema as trace_schema
from qsa.parity.trace import solution

OWN = (
    "accuracy:op=attend,format=own,scores=ordinary,context=60,rows=1,tail=3,seed=1",
    "selection:op=select,rule=blocks,scores=levels,context=2048,rows=4,tail=0,seed=2",
    "selection:op=select,rule=cells,scores=continuous,context=8192,rows=8,tail=1,seed=2",
)
OURS = (
    "accuracy:op=attend,format=int8,scores=ordinary,context=60,rows=1,tail=3,seed=1",
    "pages:op=attend,format=fp16,page=64,order=shuffled,missing=last,context=300,tail=2,seed=1",
    "accuracy:op=block_scores,context=1024,rows=1,tail=0,seed=6",
)
LEFT_OUT = (
    "accuracy:op=attend,format=q4_0,scores=ordinary,context=60,rows=1,tail=3,seed=1",
    "accuracy:op=append_kv,format=int8,rows=16,seed=4",
)


def exported(folder, cases, storage="ours", **fields):
    engine = Engine("float", storage, declared(SimpleNamespace(declaration=fields)))
    return trace_export.export(folder, engine, [suite.parse(text) for text in cases], lambda *_: None)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """storage -> (folder, manifest) of the cases above."""
    ours, own = tmp_path_factory.mktemp("ours") / "new", tmp_path_factory.mktemp("own") / "new"
    return {
        "ours": (ours, exported(ours, (*OURS, *LEFT_OUT), domain={"absent_pages": True})),
        "own": (own, exported(own, OWN, "own")),
    }


def definitions(folder):
    return [json.loads(path.read_text()) for path in sorted(folder.rglob("definitions/qsa/*.json"))]


def traces(folder, name):
    return [json.loads(line) for line in (folder / f"workloads/qsa/{name}.jsonl").read_text().splitlines()]


def test_every_case_is_a_workload_or_left_out_with_a_reason(folders):
    for storage, cases in (("ours", (*OURS, *LEFT_OUT)), ("own", OWN)):
        folder, manifest = folders[storage]
        assert {entry.case for entry in manifest.workloads} | {each.case for each in manifest.left_out} == set(cases)
        assert all(each.reason for each in manifest.left_out)
        stored = {t["workload"]["uuid"] for d in definitions(folder) for t in traces(folder, d["name"])}
        assert stored == {entry.uuid for entry in manifest.workloads}
    assert {each.case for each in folders["ours"][1].left_out} == set(LEFT_OUT)


def test_files_fit_our_structs(folders):
    for folder, _ in folders.values():
        for plain in definitions(folder):
            found = msgspec.convert(plain, trace_schema.Definition)
            compile(found.reference, found.name, "exec")
            assert "def run(" in found.reference
            assert not set(found.inputs) & set(found.outputs)
            used = {axis for spec in (*found.inputs.values(), *found.outputs.values()) for axis in spec.shape}
            assert used == set(found.axes)
            for trace in traces(folder, found.name):
                workload = msgspec.convert(trace, trace_schema.WorkloadTrace).workload
                assert set(workload.axes) == {a for a, s in found.axes.items() if isinstance(s, trace_schema.AxisVar)}
                sizes = workload.axes | {a: s.value for a, s in found.axes.items() if a not in workload.axes}
                for name, source in workload.inputs.items():
                    array = load_file(folder / source.path)[source.tensor_key]
                    assert list(array.shape) == [sizes[axis] for axis in found.inputs[name].shape]
                    assert array.dtype.name == found.inputs[name].dtype


def test_files_fit_the_models_of_the_package(folders):
    pytest.importorskip("flashinfer_bench")
    models = importlib.import_module("flashinfer_bench.data")
    checked = 0
    for folder, _ in folders.values():
        for plain in definitions(folder):
            found = models.Definition.model_validate(plain)
            for trace in traces(folder, found.name):
                workload = models.Trace.model_validate(trace).workload
                given = {name: load_file(folder / s.path)[s.tensor_key].shape for name, s in workload.inputs.items()}
                assert found.get_axes_values(given[name] for name in found.inputs) == workload.axes
                checked += 1
    assert checked >= len(OWN) + len(OURS)


def test_our_structs_are_those_of_the_package():
    pytest.importorskip("flashinfer_bench")
    models = importlib.import_module("flashinfer_bench.data")
    for name in ("Definition", "TensorSpec", "Workload", "Solution", "BuildSpec", "SourceFile", "SafetensorsInput"):
        ours = {field.name: field.required for field in msgspec.structs.fields(getattr(trace_schema, name))}
        model = getattr(models, name)
        theirs = {key: field.is_required() for key, field in model.model_fields.items() if key != "type"}
        assert ours == theirs, name


def test_a_narrow_type_is_in_the_name_and_the_dtypes():
    types = Types(query="bf16", output="bf16")
    which = trace_definitions.typed("qsa_attend_cells_h24_kv2_d256", types)
    assert which.name == "qsa_attend_cells_h24_kv2_d256__q-bf16__out-bf16"
    assert trace_definitions.named(which.name) == which
    made = trace_definitions.definition(which)
    assert (made.inputs["q"].dtype, made.outputs["out"].dtype) == ("bfloat16", "bfloat16")
    assert "torch.bfloat16)" in made.reference


@pytest.mark.parametrize("name", ["gemm", "qsa_attend_cells_h24_kv2_d256__q-int4", "qsa_select_blocks_b512_r4__x-bf16"])
def test_an_unknown_definition_is_named(name):
    with pytest.raises(ValueError, match=f"definition '{name}': known are"):
        trace_definitions.named(name)


# Solutions


def solution_file(folder, definition="qsa_attend_cells_h24_kv2_d256", content=None, entry="main.py::run", **spec):
    """A file of a solution, whose code is the definition's own reference unless given."""
    which = trace_definitions.named(definition)
    content = trace_definitions.definition(which).reference if content is None else content
    spec = {"language": "python", "target_hardware": ["cpu"], "entry_point": entry} | spec
    spec.setdefault("destination_passing_style", False)
    plain = {"name": "a", "definition": definition, "author": "a test", "spec": spec}
    plain["sources"] = [{"path": "main.py", "content": content}]
    path = folder / "solution.json"
    path.write_text(json.dumps(plain))
    return path


JUDGED = {
    "qsa_attend_cells_h24_kv2_d256": OWN[:1],
    "qsa_attend_int8_h24_kv2_d256": OURS[:1],
    "qsa_attend_fp16_h24_kv2_d256": OURS[1:2],
    "qsa_block_scores_h4_d128": OURS[2:],
    "qsa_select_blocks_b512_r4": OWN[1:2],
    "qsa_select_cells_c2051_r4": OWN[2:],
    "qsa_attend_cells_h24_kv2_d256__q-bf16__out-bf16": OWN[:1],
}


def judge(path, cases, *options):
    named = (part for case in cases for part in ("--case", case))
    return cli.main(["parity", "--solution", str(path), *(options or ("--in-process",)), *named])


def test_every_definition_is_judged_below():
    assert set(trace_definitions.KINDS) <= set(JUDGED)


@pytest.mark.parametrize("definition", JUDGED)
def test_the_reference_of_a_definition_passes_as_a_solution(tmp_path, definition, capsys):
    pytest.importorskip("torch")
    assert judge(solution_file(tmp_path, definition), JUDGED[definition]) == 0, capsys.readouterr().out


def test_a_solution_runs_in_a_process_without_the_right_answers(tmp_path, capsys):
    pytest.importorskip("torch")
    path = solution_file(tmp_path)
    assert judge(path, OWN[:1], "--timeout", "100") == 0, capsys.readouterr().out
    copied = "from qsa.parity.trace.references import attend_cells as run\n"
    changed(path, lambda plain: plain["sources"][0].update(content=copied))
    assert judge(path, OWN[:1], "--timeout", "100") == 2
    assert "may not use the judge's own arithmetic" in capsys.readouterr().err


def test_outputs_may_be_arguments(tmp_path):
    pytest.importorskip("torch")
    content = trace_definitions.definition(trace_definitions.named("qsa_attend_cells_h24_kv2_d256")).reference
    content += "\n\ndef into(*given):\n    given[-1].copy_(run(*given[:-1]))\n"
    path = solution_file(tmp_path, content=content, entry="main.py::into", destination_passing_style=True)
    assert judge(path, OWN[:1]) == 0


WRONG = {
    "a factor": ("return out.to", "return (out * 1.001).to"),
    "a head": ("head // group", "0"),
    "a cell": ("ids[row, :width]", "ids[row, : width - 1]"),
    "shape": ("return out.to", "return out[:, :-1].to"),
    "dtype": ("torch.float32)", "torch.float16)"),
    "no tensor": ("return out.to(torch.float32)", "return None"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_solution_fails(tmp_path, kind, capsys):
    pytest.importorskip("torch")
    which = trace_definitions.named("qsa_attend_cells_h24_kv2_d256")
    right = trace_definitions.definition(which).reference
    content = right.replace(*WRONG[kind])
    assert content != right
    path = solution_file(tmp_path, content=content)
    assert judge(path, OWN[:1]) == 1
    text = capsys.readouterr().out
    assert "1 failed" in text and f"again: qsa parity --backend {path}" in text


def test_an_output_that_is_not_written_fails(tmp_path):
    pytest.importorskip("torch")
    path = solution_file(tmp_path, content="def run(*given):\n    pass\n", destination_passing_style=True)
    assert judge(path, OWN[:1]) == 1


def test_reading_a_solution_runs_nothing(tmp_path):
    path = solution_file(tmp_path, content=f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert trace_schema.read_solution(path).name == "a"
    assert not (tmp_path / "ran").exists()


def changed(path, change):
    plain = json.loads(path.read_text())
    change(plain)
    path.write_text(json.dumps(plain))
    return path


BAD = {
    "an absolute path": (lambda s: s["sources"].append({"path": "/x.py", "content": "1"}), "must be relative"),
    "a path that leaves": (lambda s: s["sources"].append({"path": "a/../../x.py", "content": "1"}), "must be relative"),
    "a path twice": (lambda s: s["sources"].append(s["sources"][0]), "two have one path"),
    "no sources": (lambda s: s.update(sources=[]), "sources"),
    "an entry of no source": (lambda s: s["spec"].update(entry_point="x.py::run"), "is none of the sources"),
    "an entry point": (lambda s: s["spec"].update(entry_point="run"), "FILE.py::FUNCTION"),
    "a number as a name": (lambda s: s.update(name=math.pi), "name"),
    "no definition": (lambda s: s.pop("definition"), "definition: is missing"),
    "another language": (lambda s: s["spec"].update(language="cuda"), "language 'cuda': allowed are python, triton"),
    "an unknown definition": (lambda s: s.update(definition="gemm"), "known are"),
    "an unknown function": (lambda s: s["spec"].update(entry_point="main.py::walk"), "has no function 'walk'"),
    "code that raises": (lambda s: s["sources"][0].update(content="1 / 0"), "ZeroDivisionError while importing"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_solution_is_named(tmp_path, kind, capsys):
    pytest.importorskip("torch")
    change, text = BAD[kind]
    assert judge(changed(solution_file(tmp_path), change), ()) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--backend", "cpu", "--solution", "a.json"], "not together with --backend"),
        (["--solution", "a.py"], "must be a JSON file"),
        (["--solution", "a.json"], "a.json: there is no such file"),
    ],
)
def test_options_that_do_not_go_with_a_solution(options, text, capsys):
    assert cli.main(["parity", *options]) == 2
    assert text in capsys.readouterr().err


def test_blocks_have_no_definition(tmp_path):
    with pytest.raises(ValueError, match="'blocks': the definitions of this format have cells"):
        exported(tmp_path / "new", OURS[:1], ids="blocks")


def test_a_solution_gets_what_its_definition_says(tmp_path):
    """Names, order, dtypes and shapes, with the ids in the definition's width."""
    torch = pytest.importorskip("torch")
    content = "def run(*given):\n    seen.append(given)\n    return given[0]\n\nseen = []\n"
    backend = solution.load(solution_file(tmp_path, content=content))
    cache = backend.cache(9)
    k = np.ones((3, 2, 256), np.float32)
    backend.append(cache, k, 2 * k, np.array([7, 2, 5]))
    backend.attend(np.zeros((1, 24, 256), np.float32), cache, np.array([[2, 5]], np.int32), np.zeros((1, 4), np.int32))
    q, k, v, positions, ids, _ = backend.function.run.__globals__["seen"][0]
    assert (q.dtype, ids.dtype, positions.dtype) == (torch.float32, torch.int32, torch.int64)
    assert positions.tolist() == [2, 5, 7] and list(ids.shape) == [1, 2051] and float(v[0, 0, 0]) == 2
