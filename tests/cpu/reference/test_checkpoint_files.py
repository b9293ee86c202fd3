"""Checkpoint files that lie about themselves, lie outside the folder, or are not there."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from qsa.reference import Config, load_checkpoint
from qsa.reference.model.checkpoint import CheckpointError, read_config, read_safetensors
from support.checkpoint_folders import FIELDS, cast, entry, expected, same, tensors, write, write_raw

__all__ = ["expected", "tensors"]  # fixtures are used by their names

# Files that lie about themselves. 24 bytes of data each.

HEADERS = {
    "shape larger than its bytes": ({"a": entry([7], 0, 24)}, r"tensor a: F32 \[7\] does not fill bytes 0 to 24"),
    "huge shape": ({"a": entry([2**62, 2**62], 0, 24)}, "tensor a: F32 .* does not fill"),
    "huge empty shape": ({"a": entry([2**40, 0, 2**40], 0, 0), "b": entry([6], 0, 24)}, "tensor a: shape"),
    "more dimensions than any tensor has": ({"a": entry([1] * 9, 0, 4)}, "tensor a: shape"),
    "huge shape and offsets": ({"a": entry([2**62], 0, 2**64)}, "the tensors take 18446744073709551616 bytes"),
    "data past the end": ({"a": entry([8], 0, 32)}, "take 32 bytes, the file has 24"),
    "data left over": ({"a": entry([5], 0, 20)}, "take 20 bytes, the file has 24"),
    "overlap": (
        {"a": entry([4], 0, 16), "b": entry([4], 8, 24)},
        "tensor b: begins at 8, the one before it ends at 16",
    ),
    "gap": ({"a": entry([2], 0, 8), "b": entry([2], 16, 24)}, "tensor b: begins at 16, the one before it ends at 8"),
    "the same bytes twice": ({"a": entry([6], 0, 24), "b": entry([6], 0, 24)}, "begins at 0, the one before"),
    "backwards": ({"a": entry([6], 24, 0)}, "tensor a: .* bytes 24 to 0"),
    "negative offset": ({"a": entry([6], -24, 0)}, "tensor a: .* bytes -24 to 0"),
    "negative sizes": ({"a": entry([-2, -3], 0, 24)}, r"shape \[-2, -3\]"),
    "sizes that are no integers": ({"a": entry([6.0], 0, 24)}, r"shape \[6.0\]"),
    "offsets that are no integers": ({"a": entry([6], 0, 24.0)}, "data_offsets"),
    "three offsets": ({"a": {"dtype": "F32", "shape": [6], "data_offsets": [0, 12, 24]}}, "two integers"),
    "unknown dtype": ({"a": entry([6], 0, 24, "F31")}, "dtype 'F31'"),
    "dtype that is no name": ({"a": entry([6], 0, 24, ["F32"])}, "dtype"),
    "no shape": ({"a": {"dtype": "F32", "data_offsets": [0, 24]}}, "tensor a: dtype, shape and data_offsets"),
    "entry that is no object": ({"a": 3}, "tensor a: dtype, shape"),
    "header that is no object": (b"[1]", "an object is required"),
    "no JSON": (b'{"a": ', "header: "),
    "nested without end": (b"[" * 100_000, "header: "),
    "no UTF-8": (b'{"\xff": 1}', "header: "),
    "one name twice": (b'{"a": 1, "a": 2}', "a name appears twice"),
}


@pytest.mark.parametrize("header, message", HEADERS.values(), ids=HEADERS)
def test_headers_that_lie(tmp_path, header, message):
    path = tmp_path / "model.safetensors"
    write_raw(path, header, bytes(24))
    with pytest.raises(CheckpointError, match=f"model.safetensors: .*{message}"):
        read_safetensors(path)


def test_a_file_cut_anywhere(tmp_path):
    path = tmp_path / "model.safetensors"
    write_raw(path, {"a": entry([6], 0, 24)}, bytes(24))
    whole = path.read_bytes()
    assert read_safetensors(path)["a"][1].tolist() == [0.0] * 6
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            read_safetensors(path)


@pytest.mark.parametrize("length", [0, 1, 25, 100_000_001, 2**63, 2**64 - 1])
def test_a_header_length_that_lies(tmp_path, length):
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", length) + bytes(24))
    with pytest.raises(CheckpointError, match=f"header of {length} bytes in a file of 32"):
        read_safetensors(path)


def test_data_that_is_not_aligned(tmp_path):
    """The format's writers pad the header; a reader may not rely on it."""
    path = tmp_path / "model.safetensors"
    values = np.array([1.5, -2.0, 0.25])
    for dtype, name in ((np.float64, "F64"), (ml_dtypes.bfloat16, "BF16")):
        data = values.astype(dtype).tobytes()
        header = {"a": entry([1], 0, 1, "U8"), "b": entry([3], 1, 1 + len(data), name)}
        write_raw(path, header, b"\x00" + data)
        assert np.asarray(read_safetensors(path)["b"][1], np.float64).tolist() == values.tolist()


def test_empty_tensors_and_metadata(tmp_path):
    path = tmp_path / "model.safetensors"
    write_raw(path, {"__metadata__": {"format": "pt"}, "a": entry([0, 3], 0, 0), "b": entry([], 0, 4)}, bytes(4))
    found = read_safetensors(path)
    assert found["a"][1].shape == (0, 3) and found["b"][1].shape == ()


@pytest.mark.parametrize("file", ["../a.safetensors", "/a.safetensors", "b/a.safetensors", "..\\a.safetensors", "a", 3])
def test_an_index_does_not_leave_the_folder(tmp_path, tensors, file):
    folder = tmp_path / "inner"
    folder.mkdir()
    write(folder, cast(tensors))
    save_file(cast(tensors), tmp_path / "a.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(tensors, file)}))
    with pytest.raises(CheckpointError, match=r"a plain file name ending in \.safetensors is required"):
        load_checkpoint(folder)


INDEXES = {
    "no JSON": ("{", "index.json: no JSON"),
    "no map": ("{}", "weight_map"),
    "empty map": ('{"weight_map": {}}', "weight_map"),
    "a tensor that its file lacks": ('{"weight_map": {"a": "a.safetensors", "c": "a.safetensors"}}', "c: missing"),
}


@pytest.mark.parametrize("text, message", INDEXES.values(), ids=INDEXES)
def test_an_index_that_lies(tmp_path, text, message):
    (tmp_path / "config.json").write_text(json.dumps(FIELDS))
    save_file({name: np.zeros(1, np.float32) for name in ("a", "b")}, tmp_path / "a.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(tmp_path)


def test_tensors_that_the_index_does_not_name_are_skipped_and_counted(tmp_path, tensors, expected):
    """known-faults E10: a shard may hold more than the index names, even under a name that another shard holds."""
    stored = cast(tensors)
    names, where = sorted(stored), {}
    for part, file in enumerate(("a.safetensors", "b.safetensors")):
        own = {name: stored[name] for name in names[part::2]}
        where |= dict.fromkeys(own, file)
        spare = {names[1 - part]: np.zeros(3, np.float32), f"spare.{part}": np.zeros(1, np.float32)}
        write(tmp_path, own | spare, file=file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    index = r"model\.safetensors\.index\.json"
    message = rf"4 tensors of its files are not in {index} and were skipped: .* in a\.safetensors, \.\.\."
    with pytest.warns(UserWarning, match=message):
        same(tmp_path, expected)


def test_ends_of_text_of_a_generation_config(tmp_path, tensors, expected):
    """known-faults E9: an id that stands only there ends a text, and cuts no n-grams."""
    path = write(tmp_path, cast(tensors)) / "generation_config.json"
    for content, ends in (
        ({}, (1,)),
        ([], (1,)),
        ({"eos_token_id": None}, (1,)),
        ({"eos_token_id": 1}, (1,)),
        ({"eos_token_id": [16, 1, 3, 16]}, (1, 16, 3)),
    ):
        path.write_text(json.dumps(content))
        config = same(tmp_path, expected).config
        assert config.eos_token_ids == ends and config.eos_token_id == 1
        assert Config.from_dict(config.to_dict()) == config and repr(config) == repr(Config.from_dict(FIELDS))
    # Without PLE config.json need not hold any.
    (tmp_path / "config.json").write_text(json.dumps(FIELDS | {"ple_layer_ids": [], "eos_token_id": None}))
    config = read_config(tmp_path)
    assert config.eos_token_ids == (16, 1, 3) and Config.from_dict(config.to_dict()) == config
    for content, message in (
        ({"eos_token_id": 17}, "eos_token_id = 17: 0 to 16, or a list of such, is allowed"),
        ({"eos_token_id": [1, "a"]}, "eos_token_id = 'a': 0 to 16"),
        ({"eos_token_id": {"a": 1}}, "eos_token_id = {'a': 1}: 0 to 16"),
        ({"eos_token_id": True}, "eos_token_id = True: 0 to 16"),
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=r"generation_config\.json: " + message):
            load_checkpoint(tmp_path)
    path.write_text("{")
    with pytest.raises(ValueError, match=r"generation_config\.json: no JSON"):
        load_checkpoint(tmp_path)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d7a" * 16 + b"\nsize 4994430960\n"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "model.safetensors", "a.safetensors"])
def test_a_git_lfs_pointer_is_named(tmp_path, tensors, name):
    """known-faults E10: it was a header of 2336927755350992246 bytes, or no JSON."""
    write(tmp_path, cast(tensors))
    if name == "a.safetensors":
        index = {"weight_map": dict.fromkeys(tensors, name)}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / name).write_bytes(POINTER)
    message = f"{name}: a git-lfs pointer of {len(POINTER)} bytes, not the file itself"
    with pytest.raises(ValueError, match=message) as error:
        load_checkpoint(tmp_path)
    assert "\n" not in str(error.value)


def test_files_that_are_absent(tmp_path, tensors):
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(FIELDS))
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "b.safetensors"}}')
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path)
