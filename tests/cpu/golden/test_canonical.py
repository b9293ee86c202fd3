"""Canonical bytes and hashes: what must not change them, what must, and one value written down."""

import struct

import numpy as np
import pytest
import xxhash

from qsa.golden.canonical import block_digests, canonical_bytes, differing_blocks, digest, statistics

DTYPES = [np.bool_, np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.float16, np.float32, np.float64]


def test_known_bytes_and_hash():
    array = np.array([[0.0, 1.0, -2.0], [0.5, np.inf, 3.0]], np.float32)
    assert canonical_bytes(array) == struct.pack("<6f", 0.0, 1.0, -2.0, 0.5, float("inf"), 3.0)
    expected = xxhash.xxh3_128_hexdigest(b"float32 [2, 3]\n" + canonical_bytes(array))
    assert digest(array) == expected == "288bc3ec5cc7dcee6f491f81cf72bc81"


@pytest.mark.parametrize("dtype", DTYPES)
def test_byte_order_and_layout_do_not_count(dtype):
    array = np.arange(60).reshape(3, 4, 5).astype(dtype)
    expected = digest(array)
    assert digest(array.astype(array.dtype.newbyteorder(">"))) == expected
    assert digest(np.asfortranarray(array)) == expected
    assert digest(np.repeat(array, 2, axis=1)[:, ::2]) == expected
    assert digest(array[::-1].copy()[::-1]) == expected
    read_only = array.copy()
    read_only.flags.writeable = False
    assert digest(read_only) == expected


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_zeros_and_nans(dtype):
    array = np.array([0.0, 1.0, np.nan], dtype)
    bits = np.dtype(f"u{array.dtype.itemsize}")
    other = np.array([-0.0, 1.0, 0.0], dtype)
    # A negative signalling NaN with a payload: sign, full exponent, quiet bit clear, lowest bit set.
    exponent = np.array(np.inf, dtype).view(bits)
    other.view(bits)[2] = exponent | bits.type(1) | bits.type(1) << bits.type(8 * bits.itemsize - 1)
    assert np.isnan(other[2])
    assert canonical_bytes(other) == canonical_bytes(array)
    assert digest(other) == digest(array)
    assert digest(other.astype(other.dtype.newbyteorder(">"))) == digest(array)
    quiet = {2: 0x7E00, 4: 0x7FC00000, 8: 0x7FF8000000000000}[bits.itemsize]
    assert canonical_bytes(array)[-bits.itemsize :] == quiet.to_bytes(bits.itemsize, "little")


def test_denormals_and_infinities_keep_their_bytes():
    array = np.array([1e-45, -1e-45, np.inf, -np.inf, -3.4e38], np.float32)
    assert canonical_bytes(array) == array.tobytes()


def test_dtype_shape_and_values_count():
    base = np.zeros((2, 3), np.int32)
    others = [
        np.zeros((3, 2), np.int32),
        np.zeros(6, np.int32),
        np.zeros((2, 3), np.uint32),
        np.zeros((2, 3), np.float32),
    ]
    others += [
        np.zeros((0, 3), np.int32),
        np.zeros((3, 0), np.int32),
        np.zeros((), np.int32),
        np.eye(2, 3, dtype=np.int32),
    ]
    hashes = {digest(array) for array in [base, *others]}
    assert len(hashes) == 9


def test_one_bit_anywhere_counts():
    array = np.arange(3 * 2**20 + 5, dtype=np.float32)
    expected = digest(array)
    for place in (0, 2**20 - 1, 2**20, array.size - 1):
        changed = array.copy()
        changed.view(np.uint32)[place] ^= 1
        assert digest(changed) != expected


def test_the_array_is_left_alone():
    array = np.array([-0.0, np.nan], np.float32)
    before = array.tobytes()
    digest(array)
    assert array.tobytes() == before


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([1j]), np.array([None]), np.zeros(1, np.longdouble)])
def test_other_dtypes_are_refused(array):
    with pytest.raises(ValueError, match="dtype"):
        digest(array)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_a_changed_element_names_its_block(axes):
    array = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)
    changed = array.copy()
    changed[1, 2, 3] = -1
    before, after = block_digests(array, axes), block_digests(changed, axes)
    assert len(before) == 2
    assert differing_blocks(before, after, array.shape, axes) == [(1, 2, 3)[:axes]]
    assert differing_blocks(before, before, array.shape, axes) == []


def test_blocks_of_arrays_without_elements():
    assert block_digests(np.zeros((0, 4)), 1) == []
    assert len(" ".join(block_digests(np.zeros((2, 0)), 1)).split()) == 2
    assert block_digests(np.zeros((2, 0)), 2) == ["", ""]


@pytest.mark.parametrize("axes", [0, 3])
def test_axes_out_of_range(axes):
    with pytest.raises(ValueError, match="axes"):
        block_digests(np.zeros((2, 2)), axes)


def test_block_lists_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="2 and 3 hashes"):
        differing_blocks(["a", "b"], ["a", "b", "c"], (2,))


def test_statistics():
    got = statistics(np.array([[3.0, -4.0], [0.0, np.nan], [np.inf, -0.0]], np.float32))
    assert got == {
        "min": -4.0,
        "max": 3.0,
        "mean": -0.25,
        "rms": 2.5,
        "zeros": 2,
        "nonfinite": 2,
        "first": [3.0, -4.0, 0.0, "nan"],
    }
    assert statistics(np.array([5, -1], np.int32))["first"] == [5, -1]
    assert statistics(np.zeros((0, 3)))["min"] is None
