"""The store of goldens: check, regenerate, accept; damaged files; other processes."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from msgspec.structs import replace

from qsa.golden.record import GoldenError, Produced, differences, make
from qsa.golden.store import Store
from qsa.reference.exact import CONTRACT

CASE = "toy:size=3,seed=1"
CASES = {"toy-3": CASE}


def toy(family, recipe, *, shift=0.0, at=(2, 1), start=0):
    """Input ``x``, output ``y`` [size, 2, 4] in blocks of two axes, with one element shifted."""
    assert family == "toy" and recipe["seed"] == 1
    x = np.arange(start, start + recipe["size"], dtype=np.int32)
    y = np.arange(8 * recipe["size"], dtype=np.float32).reshape(-1, 2, 4)
    y[(*at, 3)] += shift
    return Produced({"x": x}, {"y": y}, {"y": 2})


def shifted(**changes):
    return lambda family, recipe: toy(family, recipe, **changes)


@pytest.fixture
def store(tmp_path):
    """A store with the golden ``toy-3``."""
    store = Store(tmp_path / "records")
    store.regenerate(CASES, toy)
    store.accept("toy-3", "first")
    return store


def files(store):
    return sorted(os.listdir(store.folder))


def test_a_new_golden_waits_until_it_is_accepted(tmp_path):
    store = Store(tmp_path / "records")
    assert store.names() == store.pending() == []
    assert store.regenerate(CASES, toy) == {"toy-3": ["new"]}
    assert (store.names(), store.pending()) == ([], ["toy-3"])
    with pytest.raises(GoldenError, match="there is no golden 'toy-3'"):
        store.load("toy-3")
    record = store.accept("toy-3", "  because it is new ")
    assert (store.names(), store.pending()) == (["toy-3"], [])
    assert store.load("toy-3") == record
    assert [reason.because for reason in record.provenance.reasons] == ["because it is new"]
    assert record.contract == CONTRACT
    assert store.check("toy-3", toy) == []


def test_record_reads_well(store):
    text = (store.folder / "toy-3.json").read_text()
    assert text.isascii() and text.endswith("}\n") and max(map(len, text.splitlines())) < 120
    keys = list(json.loads(text))
    assert keys == sorted(keys)
    output = json.loads(text)["outputs"]["y"]
    assert (output["dtype"], output["shape"], output["axes"]) == ("float32", [3, 2, 4], 2)
    assert output["statistics"]["max"] == 23.0


def test_a_difference_names_its_block(store):
    (line,) = store.check("toy-3", shifted(shift=1e-6, at=(0, 0)))
    assert "output y: hash" in line and line.endswith("1 of 6 blocks differ: [0, 0]")
    (line,) = store.check("toy-3", shifted(shift=1.0, at=(2, 1)))
    assert line.endswith("1 of 6 blocks differ: [2, 1]")


def test_a_difference_of_minus_zero_is_none(store):
    def minus_zero(family, recipe):
        produced = toy(family, recipe)
        produced.outputs["y"][0, 0, 0] = -0.0
        return produced

    assert store.check("toy-3", minus_zero) == []


def test_differing_inputs_are_named_first(store):
    lines = store.check("toy-3", shifted(start=1, shift=1.0))
    assert lines[0].startswith("input x: hash") and lines[1].startswith("output y")


def test_other_shapes_dtypes_and_names(store):
    def changed(**outputs):
        return lambda family, recipe: Produced(toy(family, recipe).inputs, outputs, {"y": 2})

    y = toy("toy", {"size": 3, "seed": 1}).outputs["y"]
    assert store.check("toy-3", changed(y=y[:2])) == ["output y: float32 [3, 2, 4] became float32 [2, 2, 4]"]
    assert store.check("toy-3", changed(y=y.astype(np.float64))) == [
        "output y: float32 [3, 2, 4] became float64 [3, 2, 4]"
    ]
    assert store.check("toy-3", changed(z=y)) == ["output y: no longer given", "output z: not in the golden"]


def test_regeneration_keeps_the_golden_and_still_tells(store):
    before = store.load("toy-3")
    found = store.regenerate(CASES, shifted(shift=1.0))
    assert "[2, 1]" in found["toy-3"][0]
    assert store.load("toy-3") == before
    assert json.loads((store.folder / "toy-3.pending.json").read_text())["differences"] == found["toy-3"]
    record = store.accept("toy-3", "second")
    assert [reason.because for reason in record.provenance.reasons] == ["first", "second"]
    assert store.check("toy-3", shifted(shift=1.0)) == [] != store.check("toy-3", toy)


def test_equal_regeneration_leaves_the_file_and_removes_a_stale_pending_one(store):
    before = (store.folder / "toy-3.json").read_bytes()
    store.regenerate(CASES, shifted(shift=1.0))
    assert store.regenerate(CASES, toy) == {}
    assert files(store) == ["toy-3.json"]
    assert (store.folder / "toy-3.json").read_bytes() == before


def test_a_changed_recipe_is_a_difference(store):
    found = store.regenerate({"toy-3": "toy:size=4,seed=1"}, toy)
    assert found["toy-3"][0] == f"case: {CASE} became toy:size=4,seed=1"


def test_another_contract_is_a_difference(store):
    old = store.load("toy-3")
    new = make("toy-3", CASE, "exact-2", toy("toy", {"size": 3, "seed": 1}))
    assert differences(old, new) == [f"contract: {CONTRACT} became exact-2"]


def test_provenance_and_statistics_do_not_count(store):
    old = store.load("toy-3")
    other = replace(old.outputs["y"].statistics, max=0.0)
    outputs = {"y": replace(old.outputs["y"], statistics=other)}
    new = replace(old, provenance=replace(old.provenance, numpy="0"), outputs=outputs)
    assert new != old and differences(old, new) == []


def test_acceptance_needs_a_pending_file_and_a_reason(store):
    with pytest.raises(GoldenError, match="nothing is pending for 'toy-3'"):
        store.accept("toy-3", "why not")
    store.regenerate(CASES, shifted(shift=1.0))
    for empty in ("", " \n"):
        with pytest.raises(GoldenError, match="reason"):
            store.accept("toy-3", empty)
    assert store.pending() == ["toy-3"]


@pytest.mark.parametrize(
    "name", ["", "..", "../x", "a/b", "a\\b", ".x", "x.", "A", "a b", "a..b", "x.pending", "/x", "a\n", "a" * 121, None]
)
def test_names_cannot_leave_the_folder(store, name):
    for act in (store.load, lambda name: store.accept(name, "x"), lambda name: store.regenerate({name: CASE}, toy)):
        with pytest.raises(GoldenError, match="name"):
            act(name)


def remove(key):
    return lambda record: record.pop(key)


def put(value, *path):
    def change(record):
        for key in path[:-1]:
            record = record[key]
        record[path[-1]] = value

    return change


@pytest.mark.parametrize(
    "change, named",
    [
        *((remove(key), f"{key}: is missing") for key in ("name", "case", "contract", "inputs", "outputs", "seal")),
        (put(1, "extra"), "extra: is not a field"),
        (put("toy-4", "name"), "name: is 'toy-4'"),
        (put("toy:", "case"), "case: "),
        (put(7, "case"), "case: "),
        (put(1, "contract"), "contract: "),
        (put([], "inputs"), r"inputs: is \[\]: must be an object"),
        (put("12", "inputs", "x"), r"inputs\.x: is '12': must be 32 hexadecimal digits"),
        (put("0" * 32 + "\n", "inputs", "x"), r"inputs\.x: is '0{32}\\n': must be 32 hexadecimal digits"),
        (put(True, "outputs", "y", "axes"), r"outputs\.y\.axes: is True: must be a number of leading axes"),
        (put({}, "outputs"), "outputs: "),
        (put(None, "outputs", "y"), r"outputs\.y: "),
        (put([3, 2.0, 4], "outputs", "y", "shape"), r"outputs\.y\.shape\[1\]: is 2\.0: must be a size"),
        (put("g" * 32, "outputs", "y", "hash"), r"outputs\.y\.hash: "),
        (put(0, "outputs", "y", "axes"), r"outputs\.y\.axes: is 0: must be"),
        (put(["a"], "outputs", "y", "blocks"), r"outputs\.y\.blocks: "),
        (put({}, "provenance"), r"provenance\.date: is missing"),
        (put("x", "provenance", "reasons"), r"provenance\.reasons: is 'x': must be a list"),
        (put(["x"], "provenance", "reasons"), r"provenance\.reasons\[0\]: is 'x': must be an object"),
        (put("0" * 32, "outputs", "y", "hash"), "seal: .*by hand"),
        (put("0" * 32, "inputs", "x"), "seal: .*by hand"),
        (put("toy:size=3,seed=2", "case"), "seal: .*by hand"),
    ],
)
def test_damage_names_file_and_field(store, change, named):
    path = store.folder / "toy-3.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
    with pytest.raises(GoldenError, match=rf"toy-3\.json: {named}"):
        store.check("toy-3", toy)
    store.regenerate({"toy-4": CASE}, toy)  # the others are still usable


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[1]", b"[" * 100000, b"null"])
def test_files_that_hold_no_record(store, content):
    for name, act in (("toy-3.json", store.load), ("toy-3.pending.json", lambda name: store.accept(name, "x"))):
        (store.folder / name).write_bytes(content)
        with pytest.raises(GoldenError, match=name.replace(".", r"\.")):
            act("toy-3")


def test_a_killed_write_leaves_nothing_half_written(store, monkeypatch):
    before = (store.folder / "toy-3.json").read_bytes()
    store.regenerate(CASES, shifted(shift=1.0))

    def killed(source, target):
        assert os.path.dirname(source) == os.path.dirname(target), "a move is atomic within one folder alone"
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        store.accept("toy-3", "second")
    assert files(store) == ["toy-3.json", "toy-3.pending.json"]
    assert (store.folder / "toy-3.json").read_bytes() == before


def test_another_process_reads_it_and_makes_the_same(store, tmp_path):
    code = (
        "import sys; from qsa.golden.store import Store; from qsa.golden.families import produce\n"
        "print(Store(sys.argv[1]).check('real', produce))"
    )
    case = "select:rule=cells,scores=special,context=4096,rows=2,tail=1,seed=3"
    from qsa.golden.families import produce

    store.regenerate({"real": case}, produce)
    store.accept("real", "made here")
    run = subprocess.run([sys.executable, "-c", code, store.folder], capture_output=True, text=True, cwd=tmp_path)
    assert (run.stdout, run.stderr) == ("[]\n", "")
