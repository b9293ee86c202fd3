"""Files that somebody else wrote: whatever they hold, a reader raises a clear ValueError and takes little memory."""

import json
import os
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save, save_file

from qsa.golden.families import grid
from qsa.parity import cli, suite
from qsa.parity.cases import check, export, index, tensors, untrusted
from qsa.parity.contract import declared
from qsa.parity.trace import schema as trace_schema

CASE = "selection:op=select,rule=blocks,scores=levels,context=16,rows=2,tail=3,seed=2"
TEXT = next(text for name, text in grid().items() if text.startswith("text:"))
FUZZ = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
MOST = 16 << 20
"""Bytes that reading a small file may take, whatever it says of itself."""

ARRAYS = {"0.ids": np.arange(6, dtype=np.int32).reshape(2, 3), "b": np.ones(4, np.float32), "none": np.zeros((0, 2))}
FILE = save(ARRAYS)
LENGTH = int.from_bytes(FILE[:8], "little")
HEADER = json.loads(FILE[8 : 8 + LENGTH])

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["F32", "F4"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def flipped(data, where):
    """``data`` with one bit flipped for each of ``where``."""
    out = bytearray(data)
    for bit in where:
        out[bit // 8 % len(out)] ^= 1 << bit % 8
    return bytes(out)


BITS = st.lists(st.integers(0, 1 << 20), min_size=1, max_size=4)
DAMAGED = {
    "truncated": lambda data: st.integers(0, len(data) - 1).map(lambda n: data[:n]),
    "longer": lambda data: st.binary(min_size=1, max_size=20).map(lambda more: data + more),
    "flipped": lambda data: BITS.map(lambda where: flipped(data, where)),
    "noise": lambda data: st.binary(max_size=200),
}


def with_header(header):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + FILE[8 + LENGTH :]


@st.composite
def replaced(draw, plain):
    """``plain``, values of JSON, with one part of it replaced, removed or doubled under another name."""
    copy = json.loads(json.dumps(plain))
    part = copy
    while True:
        keys = list(part) if isinstance(part, dict) else list(range(len(part)))
        if not keys:
            return draw(PLAIN)
        key = draw(st.sampled_from(keys))
        if not isinstance(part[key], (dict, list)) or not part[key] or draw(st.booleans()):
            break
        part = part[key]
    kind = draw(st.sampled_from(["replace", "remove", "double"]))
    if kind == "remove":
        del part[key]
    elif kind == "double" and isinstance(part, dict):
        part[draw(st.text(max_size=5))] = part[key]
    else:
        part[key] = draw(PLAIN)
    return copy


FILES = st.one_of(*(make(FILE) for make in DAMAGED.values()), replaced(HEADER).map(with_header))


def bounded(read):
    """Call ``read``; it gives a value or raises ValueError or OSError, and takes no more than the bound."""
    tracemalloc.start()
    try:
        return read()
    except (ValueError, OSError) as error:
        assert str(error)
        return None
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MOST


@FUZZ
@given(data=FILES)
def test_any_tensor_file_is_read_or_named(tmp_path, data):
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    found = bounded(lambda: tensors.read(path))
    for array in (found or {}).values():
        assert array.nbytes <= len(data) and tensors.dtype_name(array)


HEADERS = {
    "a huge header": ((1 << 40).to_bytes(8, "little") + b"{}", "header of 1099511627776 bytes"),
    "a header beyond the file": ((1 << 20).to_bytes(8, "little") + b"{}", "header of 1048576 bytes in a file of 10"),
    "no header": (b"a", "in a file of 1"),
    "nothing": (b"", "in a file of 0"),
    "NaN": (with_header(b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}'), "shape"),
    "two of a name": (with_header(b'{"a":{},"a":{}}'), "a name appears twice"),
    "a deep header": (with_header(b'{"a":' + b"[" * 100_000 + b"}"), "header"),
    "a list": (with_header(b"[]"), "an object is required"),
    "an unknown dtype": (with_header({"a": {"dtype": "F31", "shape": [1], "data_offsets": [0, 4]}}), "dtype 'F31'"),
    "a dtype of no array": (with_header({"a": {"dtype": "F4", "shape": [80], "data_offsets": [0, 40]}}), "dtype F4"),
    "a shape that lies": (with_header({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 40]}}), "fill"),
    "a negative size": (with_header({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 40]}}), "shape"),
    "offsets beyond": (with_header({"a": {"dtype": "U8", "shape": [400], "data_offsets": [0, 400]}}), "the file has"),
    "overlap": (
        with_header(
            {
                "a": {"dtype": "F32", "shape": [6], "data_offsets": [0, 24]},
                "b": {"dtype": "F32", "shape": [6], "data_offsets": [16, 40]},
            }
        ),
        "begins at 16, the one before it ends at 24",
    ),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_a_header_that_lies_is_named(tmp_path, kind):
    data, text = HEADERS[kind]
    (tmp_path / "a.safetensors").write_bytes(data)
    with pytest.raises(ValueError, match=text):
        tensors.read(tmp_path / "a.safetensors")


def test_a_fifo_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match="is no regular file"):
        tensors.read(tmp_path / "a.safetensors")


@pytest.mark.parametrize("path", ["/etc/passwd", "../a", "a/../../b", "a//b", "./a", "", "a\\b", "c:b", "a\0b"])
def test_a_path_that_leaves_the_folder_is_named(tmp_path, path):
    with pytest.raises(ValueError, match="must be relative, with plain names"):
        untrusted.inside(tmp_path, path)


def test_a_link_out_of_the_folder_is_named(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path)
    (tmp_path / "in" / "own").symlink_to("other")
    with pytest.raises(ValueError, match="a link leads out of the folder"):
        untrusted.inside(tmp_path / "in", "link/a")
    assert untrusted.inside(tmp_path / "in", "own").name == "own"


# An exported case


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """(folder, plain values of its index) of one small case with its right outputs."""
    folder = tmp_path_factory.mktemp("cases") / "new"
    engine = export.Engine("float", "ours", declared(SimpleNamespace()), ["select"])
    made = export.export(folder, engine, [suite.parse(CASE)], lambda *_: None)
    right = load_file(folder / made.cases[0].folder / index.EXPECTED)
    save_file(right, folder / made.cases[0].folder / index.OUTPUTS)
    return folder, json.loads((folder / index.NAME).read_text())


@FUZZ
@given(data=st.data())
def test_any_index_is_read_and_judged_or_named(exported, tmp_path, data):
    """A damaged index that still fits is judged: no exception leaves ``check``."""
    folder, plain = exported
    text = json.dumps(plain).encode()
    kinds = [make(text) for make in DAMAGED.values()] + [replaced(plain).map(lambda p: json.dumps(p).encode())] * 4
    (tmp_path / index.NAME).write_bytes(data.draw(st.one_of(*kinds)))
    found = bounded(lambda: index.read(tmp_path))
    if found is not None:
        assert all(each.status in suite.STATUSES for each in check.check(folder, found).results)


@FUZZ
@given(data=st.data())
def test_any_outputs_are_judged(exported, tmp_path, data):
    folder, _ = exported
    made = index.read(folder)
    right = (folder / made.cases[0].folder / index.OUTPUTS).read_bytes()
    spot = tmp_path / made.cases[0].folder / index.OUTPUTS
    spot.parent.mkdir(parents=True, exist_ok=True)
    length = int.from_bytes(right[:8], "little")
    header = replaced(json.loads(right[8 : 8 + length])).map(
        lambda p: (t := json.dumps(p).encode()) and len(t).to_bytes(8, "little") + t + right[8 + length :]
    )
    spot.write_bytes(data.draw(st.one_of(header, *(make(right) for make in DAMAGED.values()))))
    (result,) = check.check(tmp_path, made).results
    assert result.status in ("passed", "failed")
    assert result.status == "passed" or result.reason or result.comparisons


def test_outputs_behind_a_link_are_not_read(exported, tmp_path):
    folder, _ = exported
    made = index.read(folder)
    (tmp_path / "cases").symlink_to(folder / "cases")
    (result,) = check.check(tmp_path, made).results
    assert result.status == "failed" and "a link leads out of the folder" in result.reason


INDEXES = {
    "a folder that leaves": (lambda p: p["cases"][0].update(folder="cases/../../x"), "must be cases/NUMBER"),
    "an absolute folder": (lambda p: p["cases"][0].update(folder="/tmp"), "must be cases/NUMBER"),
    "a folder twice": (lambda p: p["cases"].append(p["cases"][0]), "two have one folder"),
    "an unknown case": (lambda p: p["cases"][0].update(case="walk:op=run"), "module 'walk'"),
    "a case beyond its limits": (lambda p: p["cases"][0].update(case=CASE.replace("rows=2", "rows=9")), "rows = 9"),
    "a case of a model": (lambda p: p["cases"][0].update(case="needle:op=find,context=4096,depth=10"), "runs a model"),
    "a golden of a model": (lambda p: p["cases"][0].update(case=TEXT), "runs a model"),
    "an unknown function": (lambda p: p["operations"].append("walk"), "operations: 'walk': allowed are"),
    "an unknown field": (lambda p: p.update(more=1), "more: is not a field"),
    "another version": (lambda p: p.update(version=2), "version: is 2: must be 1"),
    "a field of the declaration": (lambda p: p["declaration"].update(storage_error=2), "storage_error"),
    "a shape": (lambda p: p["cases"][0]["calls"][0]["inputs"]["steps"].update(shape=[-1]), "an integer, 0 or more"),
}


@pytest.mark.parametrize("kind", INDEXES)
def test_a_bad_index_is_named_on_one_line(exported, tmp_path, kind, capsys):
    change, text = INDEXES[kind]
    plain = json.loads(json.dumps(exported[1]))
    change(plain)
    (tmp_path / index.NAME).write_text(json.dumps(plain))
    assert cli.main(["cases", "check", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert text in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": NaN}', "NaN is no number of JSON"),
        ('{"a": 1, "a": 2}', "a name appears twice"),
        ("[" * 100_000, "is not JSON"),
        ("\xff", "is not JSON"),
        ("1" * 5000, "is not JSON"),
        (" " * 101, "101 bytes: allowed are 100"),
    ],
)
def test_json_that_is_none_is_named(tmp_path, text, found):
    (tmp_path / "a.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=found):
        untrusted.read_json(tmp_path / "a.json", 100 if "allowed" in found else 1 << 20)


SOLUTION = {
    "name": "a",
    "definition": "qsa_select_blocks_b512_r4",
    "author": "b",
    "spec": {"language": "python", "target_hardware": ["cpu"], "entry_point": "main.py::run", "dependencies": []},
    "sources": [{"path": "main.py", "content": "raise SystemExit('ran')"}],
}


@FUZZ
@given(
    data=st.one_of(
        replaced(SOLUTION).map(lambda p: json.dumps(p).encode()), DAMAGED["flipped"](json.dumps(SOLUTION).encode())
    )
)
def test_any_solution_is_read_or_named(tmp_path, data):
    (tmp_path / "a.json").write_bytes(data)
    bounded(lambda: trace_schema.read_solution(tmp_path / "a.json"))
