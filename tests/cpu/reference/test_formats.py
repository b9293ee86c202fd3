"""KV codings against their rules, written a second time value by value; packing; the rotation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsa.reference.formats import (
    decode,
    encode_int8,
    encode_q4_0,
    pack_nibbles,
    pack_q4_0,
    rotate,
    unpack_nibbles,
    unpack_q4_0,
)
from support.arrays import generator

f32 = np.float32
values = st.lists(st.floats(width=32, min_value=-(2.0**18), max_value=2.0**18), min_size=1, max_size=64)


def plain_int8(group):
    amax = max(abs(f32(x)) for x in group)
    scale = np.float16(f32(amax) / f32(127))
    if scale == 0:
        return [0] * len(group), scale
    return [int(max(-127, min(127, np.rint(f32(x) / f32(scale))))) for x in group], scale


def plain_q4_0(group):
    extreme = f32(0)
    for x in map(f32, group):
        if abs(x) > abs(extreme) or (abs(x) == abs(extreme) and x > extreme):
            extreme = x
    d = extreme / f32(-8)
    scale = np.float16(d)
    if scale == 0:
        return [0] * len(group), scale
    inverse = f32(1) / d
    return [int(max(0, min(15, np.trunc(f32(x) * inverse + f32(8.5))))) - 8 for x in group], scale


@given(values)
def test_int8_follows_its_rule(group):
    group = (group + [0.0] * 64)[:64]
    codes, scale = encode_int8(np.array(group, f32))
    want, want_scale = plain_int8(group)
    assert codes.tolist() == want and scale[0] == want_scale


@given(values)
def test_q4_0_follows_its_rule(group):
    group = (group + [0.0] * 32)[:32]
    codes, scale = encode_q4_0(np.array(group, f32))
    want, want_scale = plain_q4_0(group)
    assert codes.tolist() == want and scale[0] == want_scale


def test_int8_divides_by_the_stored_scale():
    """amax/127 of 0.1 is no fp16: dividing by the unrounded scale would give other codes for some values."""
    x = np.linspace(-0.1, 0.1, 64, dtype=f32)
    codes, scale = encode_int8(x)
    unrounded = np.rint(x / (f32(0.1) / f32(127)))
    assert (codes != unrounded).any()
    assert np.array_equal(codes, np.clip(np.rint(x / f32(scale[0])), -127, 127))


def test_q4_0_takes_the_positive_extreme_on_a_tie():
    x = np.zeros(32, f32)
    x[3], x[9] = -4, 4
    codes, scale = encode_q4_0(x)
    assert scale[0] == -0.5 and codes[9] == -8 and codes[3] == 7


@pytest.mark.parametrize("encode,group", [(encode_int8, 64), (encode_q4_0, 32)])
def test_groups_of_zeros_and_of_values_below_the_range(encode, group):
    x = np.zeros((2, group), f32)
    x[1, 5] = 1e-12
    x[0, ::2] = -0.0
    for sign in (1, -1):
        codes, scale = encode(sign * x)
        assert not codes.any() and not scale.view(np.uint16).any()


@pytest.mark.parametrize("encode", [encode_int8, encode_q4_0])
@pytest.mark.parametrize("bad", [np.inf, np.nan, 1e30])
def test_values_no_scale_can_hold_are_refused(encode, bad):
    x = np.ones(64, f32)
    x[7] = bad
    with pytest.raises(ValueError, match="must be finite"):
        encode(x)
    with pytest.raises(ValueError, match="last axis = 63"):
        encode(x[:63])


@pytest.mark.parametrize("encode,step", [(encode_int8, 1 / 127), (encode_q4_0, 1 / 8)])
def test_decoding_is_within_a_step(encode, step):
    """A code rounds to half a step; q4_0 clamps the far side at 7 of 8 steps, so up to a whole one. fp16 adds 2^-11."""
    x = generator(1).standard_normal((50, 256)).astype(f32)
    codes, scale = encode(x)
    amax = np.abs(x.reshape(50, scale.shape[1], -1)).max(axis=-1)
    error = np.abs(decode(codes, scale) - x).reshape(50, scale.shape[1], -1).max(axis=-1)
    whole = 0.5 if encode is encode_int8 else 1
    assert (error <= amax * (whole * step + 2**-11)).all()


def test_nibbles_and_blocks_come_back():
    rng = generator(2)
    codes = rng.integers(-8, 8, (3, 2, 256)).astype(np.int8)
    scale = rng.standard_normal((3, 2, 8)).astype(np.float16)
    packed = pack_nibbles(codes)
    assert packed.shape == (3, 2, 128)
    # Element j sits in the low nibble of byte j of its block, element 16 + j in the high one.
    low, high = int(codes[1, 1, 32 * 3 + 5]) + 8, int(codes[1, 1, 32 * 3 + 21]) + 8
    assert packed[1, 1, 16 * 3 + 5] == low | high << 4
    assert np.array_equal(unpack_nibbles(packed), codes)
    blocks = pack_q4_0(codes, scale)
    assert blocks.shape == (3, 2, 8, 18)
    assert blocks[0, 1, 2, :2].tobytes() == scale[0, 1, 2].astype("<f2").tobytes()
    again = unpack_q4_0(blocks)
    assert np.array_equal(again[0], codes) and np.array_equal(again[1], scale)
    with pytest.raises(ValueError, match="18 bytes"):
        unpack_q4_0(blocks[..., :17])


def test_the_rotation_is_the_hadamard_matrix():
    matrix = np.ones((1, 1))
    for _ in range(8):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    x = generator(3).standard_normal((5, 256))
    # float64: 8 butterflies round to a few 2^-53 each.
    assert np.abs(rotate(x) - x @ matrix / 16).max() < 1e-14
    assert np.abs(rotate(rotate(x)) - x).max() < 1e-14
    assert rotate(x.astype(f32)).dtype == f32
    integers = generator(4).integers(-99, 99, 256).astype(f32)
    # Integers this small are exact in float32, so every order gives the matrix's values.
    assert np.array_equal(rotate(integers), (integers @ matrix / 16).astype(f32))
    with pytest.raises(ValueError, match="power of 4"):
        rotate(np.zeros(128))
