"""Cases in files: what is exported, what is left out, and what ``check`` says of what lies beside them."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from qsa.parity import suite
from qsa.parity.cases import check, export, functions, index, tensors
from qsa.parity.contract import declared
from qsa.parity.contract.operations import FUNCTIONS

EXACT = (
    "accuracy:op=attend,format=q4_0,scores=ordinary,context=60,rows=1,tail=3,seed=1",
    "accuracy:op=append_kv,format=k8v4,rows=16,seed=4",
    "accuracy:op=append_index,context=30,seed=5",
    "accuracy:op=block_scores,context=64,rows=3,tail=1,seed=6",
    "accuracy:op=corners,format=int8,rows=3,seed=7",
    "accuracy:op=gated,format=int8,context=60,rows=1,tail=3,seed=8",
    "selection:op=select,rule=cells,scores=special,context=2048,rows=4,tail=0,seed=2",
    "selection:op=unused,rule=blocks,scores=continuous,context=64,rows=3,tail=1,seed=6",
    "selection:op=indexer,rule=blocks,context=8,rows=2,tail=2,seed=4",
    "pages:op=attend,format=int8,page=4,order=shuffled,missing=last,context=300,tail=2,seed=2",
    "pages:op=append_kv,format=q4_0,page=4,order=reversed,missing=last,rows=21,seed=3",
)
FLOAT = (
    "accuracy:op=attend,format=fp16,scores=peaked,context=60,rows=1,tail=3,seed=1",
    "accuracy:op=append_kv,format=int8,rows=16,seed=4",
    "accuracy:op=append_index,context=30,seed=5",
    "accuracy:op=block_scores,context=64,rows=3,tail=0,seed=6",
    "selection:op=select,rule=blocks,scores=levels,context=2048,rows=4,tail=0,seed=2",
    "selection:op=indexer,rule=cells,context=8,rows=2,tail=2,seed=4",
)
OWN = (
    "accuracy:op=attend,format=own,scores=ordinary,context=60,rows=1,tail=3,seed=1",
    "accuracy:op=append_kv,format=own,rows=16,seed=4",
    "accuracy:op=append_index,context=32,seed=5",
    "accuracy:op=block_scores,context=64,rows=3,tail=0,seed=6",
    "accuracy:op=gated,format=own,context=60,rows=1,tail=3,seed=8",
)
NARROW = {
    "types": {"query": "bf16", "kv": "fp16", "output": "bf16", "index_scores": "fp16"},
    "ids": "blocks",
    "attend_ids": "blocks",
}


def engine(arithmetic="float", storage="ours", operations=None, schedules=False, **fields):
    declaration = declared(SimpleNamespace(declaration={"arithmetic": arithmetic} | fields))
    return export.Engine(arithmetic, storage, declaration, operations, schedules)


def exported(folder, cases, given):
    return export.export(folder, given, [suite.parse(text) for text in cases], lambda *_: None)


def copy_expected(folder, made):
    """Write what the reference gives as the engine's outputs, for every case."""
    for case in made.cases:
        keys = [output.key for call in case.calls for output in call.outputs.values()]
        right = load_file(folder / case.folder / index.EXPECTED)
        save_file({key: right[key] for key in keys}, folder / case.folder / index.OUTPUTS)


def verdicts(folder, made, chosen=None):
    return {result.case.text: result for result in check.check(folder, made, chosen).results}


SETS = {
    "exact": (EXACT, {"arithmetic": "exact"}),
    "float": (FLOAT, {}),
    "own": (OWN, {"storage": "own"}),
    "narrow": (OWN, {"storage": "own", **NARROW}),
    "schedules": (
        ("split:op=attend,schedule=split,splits=3,format=int8,context=4,rows=2,tail=1,seed=1",
         "split:op=attend,schedule=multi,splits=1,format=mixed,context=500,rows=3,tail=2,seed=1"),
        {"schedules": True, "arithmetic": "exact"},
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=SETS)
def files(request, tmp_path_factory):
    """(folder with the reference's outputs, its index) of every set."""
    cases, given = SETS[request.param]
    folder = tmp_path_factory.mktemp(request.param) / "new"
    made = exported(folder, cases, engine(**given))
    copy_expected(folder, made)
    return folder, made, cases


def test_every_case_is_exported_and_the_references_outputs_pass(files):
    folder, made, cases = files
    assert [(each.case, each.reason) for each in made.left_out] == []
    found = verdicts(folder, made)
    assert {text: result.status for text, result in found.items()} == dict.fromkeys(cases, "passed")
    assert index.read(folder) == made
    assert (folder / "README.txt").is_file()


def spoilt(key, array):
    """A wrong output: half a vector or one id of it is another; of codes and scales all, as those of a group of zeros
    do not count in the float arithmetic."""
    other = array.copy()
    flat = other.reshape(-1)
    part = flat if key.endswith(("codes", "scale")) else flat[: 1 if array.dtype.kind in "iu" else other.shape[-1] // 2]
    if array.dtype.kind in "iu":
        part[...] = np.where(part < 0, 3, part ^ 1)
    else:
        part[...] = np.where(np.isnan(part), 1, -(1 + np.abs(part.astype(np.float64))))
    return other


def test_every_output_counts(files, tmp_path):
    """One wrong vector, code or id in any output that the engine writes fails its case."""
    folder, made, _ = files
    passed = []
    for case in made.cases:
        work = tmp_path / case.folder
        work.mkdir(parents=True)
        right = load_file(folder / case.folder / index.OUTPUTS)
        for key, array in right.items():
            save_file(right | {key: spoilt(key, array)}, work / index.OUTPUTS)
            (result,) = verdicts(tmp_path, made, [case.case]).values()
            if result.status != "failed":
                passed.append((case.case, key))
    assert passed == []


def test_a_file_without_outputs_is_unsupported(files, tmp_path):
    _, made, cases = files
    tally = check.check(tmp_path, made)
    assert tally.count("unsupported") == len(cases) and tally.exit_code == 1
    assert all("there is no outputs.safetensors" in result.reason for result in tally.results)


@pytest.fixture
def one(tmp_path):
    """(folder, index) of one exact case, with the right outputs."""
    made = exported(tmp_path / "new", EXACT[:1], engine("exact"))
    copy_expected(tmp_path / "new", made)
    return tmp_path / "new", made


def reason(folder, made):
    (result,) = verdicts(folder, made).values()
    return result.status, result.reason


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda a: {}, "there is no tensor '0.out'"),
        (lambda a: a | {"more": a["0.out"]}, "tensor 'more': is no output of this case"),
        (lambda a: {"0.out": a["0.out"].astype(np.float64)}, "is F64 [1, 24, 256]: must be F32 [1, 24, 256]"),
        (lambda a: {"0.out": a["0.out"][0]}, "is F32 [24, 256]: must be F32 [1, 24, 256]"),
    ],
)
def test_outputs_that_do_not_fit_are_named(one, change, text):
    folder, made = one
    path = folder / made.cases[0].folder / index.OUTPUTS
    save_file(change(load_file(path)), path)
    status, found = reason(folder, made)
    assert status == "failed" and text in found


def altered(folder, change):
    """The index of ``folder`` with a change of its plain values."""
    plain = json.loads((folder / index.NAME).read_text())
    change(plain)
    (folder / index.NAME).write_text(json.dumps(plain))
    return index.read(folder)


CALL = {
    "the hash of an input": (lambda c: c["inputs"]["q"].update(xxh3_128="0" * 32), "q differs from the exported one"),
    "a missing input": (lambda c: c["inputs"].pop("q"), "inputs are"),
    "an option": (lambda c: c["options"].update({"kv.page_size": 8}), "options are"),
    "the operation": (lambda c: c.update(operation="select"), "is of attend, in the index of select"),
    "an output": (lambda c: c["outputs"].update(more=c["outputs"]["out"]), "outputs are out: not those of the index"),
}


@pytest.mark.parametrize("kind", CALL)
def test_a_call_that_was_not_exported_so_fails(one, kind):
    folder, _ = one
    change, text = CALL[kind]
    made = altered(folder, lambda plain: change(plain["cases"][0]["calls"][0]))
    status, found = reason(folder, made)
    assert status == "failed" and text in found


def test_a_case_with_fewer_calls_in_the_index_fails(one):
    folder, _ = one
    made = altered(folder, lambda plain: plain["cases"][0].update(calls=[]))
    (folder / made.cases[0].folder / index.OUTPUTS).unlink()
    save_file({}, folder / made.cases[0].folder / index.OUTPUTS)
    assert reason(folder, made) == ("failed", reason(folder, made)[1])
    assert "the index has 0 calls of this case" in reason(folder, made)[1]


def test_the_verdict_does_not_come_from_the_expected_file(one):
    """Truth is made again: a wrong expected.safetensors changes nothing, and a right one does not help."""
    folder, made = one
    case = folder / made.cases[0].folder
    (case / index.EXPECTED).unlink()
    assert reason(folder, made)[0] == "passed"
    right = load_file(case / index.OUTPUTS)
    wrong = {key: spoilt(key, array) for key, array in right.items()}
    save_file(wrong, case / index.EXPECTED)
    save_file(wrong, case / index.OUTPUTS)
    assert reason(folder, made)[0] == "failed"


# What is left out


def left_out(cases, given):
    """case -> reason of what cannot be exported."""
    return {text: export.record(given, suite.parse(text))[1] for text in cases}


SEPARATE = tuple(name for name in functions.OFFERED["ours"] if name not in functions.FUSED)


@pytest.mark.parametrize("arithmetic", ["exact", "float"])
def test_a_case_that_feeds_results_forward_is_left_out_with_the_reason(arithmetic):
    text = "selection:op=indexer,rule=blocks,context=8,rows=2,tail=2,seed=4"
    found = left_out([text], engine(arithmetic, operations=SEPARATE))[text]
    assert "feeds the kernel's own results into a later call: call 1, block_scores: index." in found
    assert left_out([text], engine(arithmetic))[text] == ""


def test_a_case_of_a_model_is_left_out_with_the_reason():
    text = "needle:op=find,context=4096,depth=10"
    assert "runs a model" in left_out([text], engine("exact"))[text]


def test_a_function_that_the_engine_lacks_is_left_out_with_the_reason():
    found = left_out(EXACT[:2], engine("exact", operations=["attend"]))
    assert found == {EXACT[0]: "", EXACT[1]: "append_kv: the backend has none"}


def test_a_case_that_ends_in_an_error_is_no_reason_to_leave_it_out(monkeypatch):
    def broken(*arguments):
        raise KeyError("ours")

    monkeypatch.setattr(export.Recorder, "called", broken)
    with pytest.raises(ValueError, match="KeyError: 'ours'"):
        export.record(engine("exact"), suite.parse(EXACT[0]))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"operations": ["walk"]}, "--op = 'walk': with --storage ours allowed are append_kv"),
        ({"operations": ["cache"]}, "--op = 'cache'"),
        ({"arithmetic": "exact", "storage": "own"}, "--storage = 'own': goes with --arithmetic float"),
    ],
)
def test_an_engine_that_cannot_be_is_named(given, text):
    with pytest.raises(ValueError, match=text):
        engine(**given)


def test_nothing_is_written_over(one):
    folder, _ = one
    with pytest.raises(ValueError, match="is not empty: give a new folder"):
        exported(folder, EXACT[:1], engine("exact"))


def test_a_folder_in_which_nothing_could_be_exported_has_no_index(tmp_path):
    with pytest.raises(ValueError, match="no case can be exported: needle: runs a model"):
        exported(tmp_path / "new", ["needle:op=find,context=4096,depth=10"], engine("exact"))
    assert not (tmp_path / "new" / index.NAME).exists()


# The files themselves


def test_equal_tensors_of_a_case_are_kept_once(tmp_path):
    made = exported(tmp_path / "new", SETS["schedules"][0][:1], engine("exact", schedules=True))
    (case,) = made.cases
    first, second = (call.inputs for call in case.calls)
    assert {name: each.key for name, each in first.items()} == {name: each.key for name, each in second.items()}
    assert [call.options.get("splits") for call in case.calls] == [None, 3]


def test_truth_and_bounds_lie_beside_the_expected_outputs(tmp_path):
    """An engine can compare for itself: the reference's own output is within the bounds, another head is not."""
    made = exported(tmp_path / "new", (FLOAT[0], FLOAT[3]), engine())
    for case in made.cases:
        (output,) = case.calls[0].outputs.values()
        held = load_file(tmp_path / "new" / case.folder / index.EXPECTED)
        got, truth, bound = (held[f"{output.key}{part}"] for part in ("", ".truth", ".bound"))
        if got.ndim == 3:
            error = np.linalg.norm(got - truth, axis=-1) / np.linalg.norm(truth, axis=-1)
            assert np.isfinite(bound).all() and (error <= bound).all()
            assert not (np.linalg.norm(np.roll(got, 1, axis=1) - truth, axis=-1) <= bound).any()
        else:
            steps = load_file(tmp_path / "new" / case.folder / index.INPUTS)[case.calls[0].inputs["steps"].key]
            seen = np.arange(bound.shape[1]) < steps[:, 2:3]
            assert (np.isfinite(bound) == seen).all()
            assert (np.abs(got - truth)[seen] <= bound[seen]).all()
        assert output.measure.startswith("KEY.bound")


def test_calls_have_the_signatures_of_the_contract():
    assert FUNCTIONS["attend"].parameters == {"q": False, "kv": False, "ids": False, "steps": False, "slots": True}
    assert set(functions.OFFERED["ours"]) | set(functions.OFFERED["own"]) == set(FUNCTIONS) - {"attend_stages"}


def test_digest_tells_dtype_shape_and_bytes_apart():
    x = np.arange(6, dtype=np.int32)
    others = (x.reshape(2, 3), x.astype(np.int64), x.view(np.uint32), x + 1)
    assert len({tensors.digest(array) for array in (x, *others)}) == 5
    assert tensors.digest(x[::2]) == tensors.digest(x[::2].copy())


def test_outputs_of_a_folder_that_moved_are_found(one, tmp_path):
    folder, _ = one
    shutil.move(folder, tmp_path / "moved")
    assert reason(tmp_path / "moved", index.read(tmp_path / "moved"))[0] == "passed"
