"""Parts of the float64 model on inputs small enough to be worked out by hand."""

import dataclasses

import numpy as np
import pytest

from qsa.reference import REAL_CONFIG, TINY_CONFIG
from qsa.reference.geometry import Geometry
from qsa.reference.layers.conv import causal_conv, history
from qsa.reference.layers.functions import sigmoid, silu, softplus
from qsa.reference.layers.norm import gated_norm, group_norm, l2_norm, rms_norm, whole_norm
from qsa.reference.layers.rope import cos_sin, rope_table, rotate
from qsa.reference.model import deltanet, moe, ple, qsa
from qsa.reference.model.random_model import uniform

# A handful of float64 operations on numbers near 1: each rounds by 1.1e-16 relative.
NEAR = {"rtol": 1e-14, "atol": 1e-14}


def draw(shape, seed, scale=2.0):
    return uniform(np.random.PCG64(seed).random_raw(int(np.prod(shape))).reshape(shape), scale)


# Norms (C10: the offset of 1).


def test_rms_norm_multiplies_by_one_plus_the_weight():
    out = rms_norm(np.array([[3.0, 4.0]]), np.array([0.5, -0.5]), eps=0.0)
    np.testing.assert_allclose(out, np.array([[4.5, 2.0]]) / np.sqrt(12.5), **NEAR)


def test_gated_norm_multiplies_by_the_weight_itself():
    x, gate = np.array([[3.0, 4.0]]), np.array([[0.0, 100.0]])
    for activation, expected in (("sigmoid", [0.25 * 3, 2.0 * 4]), ("silu", [0.0, 200.0 * 4])):
        out = gated_norm(x, gate, np.array([0.5, 2.0]), 0.0, activation)
        np.testing.assert_allclose(out, np.array([expected]) / np.sqrt(12.5), **NEAR)


def test_norm_eps_stands_inside_the_root():
    assert rms_norm(np.array([[0.0, 0.0]]), np.zeros(2), 1e-6).tolist() == [[0.0, 0.0]]
    np.testing.assert_allclose(rms_norm(np.full((1, 4), 1e-3), np.zeros(4), 1e-6), np.full((1, 4), 0.5**0.5), **NEAR)
    np.testing.assert_allclose(l2_norm(np.array([[1e-3, 0.0]])), [[0.5**0.5, 0.0]], **NEAR)


def test_group_norm_takes_each_stream_on_its_own():
    streams = np.array([[[3.0, 4.0], [30.0, 40.0]]])
    weight = np.array([0.0, 0.0, 1.0, 1.0])
    np.testing.assert_allclose(group_norm(streams, weight, 0.0), [[[3, 4], [6, 8]]] / np.sqrt(12.5), **NEAR)
    expected = streams * [[[1], [2]]] / np.sqrt(2525 / 4)
    np.testing.assert_allclose(whole_norm(streams, weight, 0.0), expected, **NEAR)


def test_functions_have_no_overflow():
    x = np.array([-1000.0, -1.0, 0.0, 1.0, 1000.0])
    with np.errstate(all="raise", under="ignore"):
        values = [sigmoid(x), silu(x), softplus(x)]
    e = np.exp(-1.0)
    np.testing.assert_allclose(values[0], [0, e / (1 + e), 0.5, 1 / (1 + e), 1], **NEAR)
    np.testing.assert_allclose(values[1], [0, -e / (1 + e), 0, 1 / (1 + e), 1000], **NEAR)
    np.testing.assert_allclose(values[2], [0, np.log1p(e), np.log(2), 1 + np.log1p(e), 1000], **NEAR)


# Rope.


def test_rope_pairs_dims_half_the_rotated_width_apart():
    table = cos_sin(np.array([3]), 4, 100.0)
    np.testing.assert_allclose(table, [[np.cos(3), np.cos(0.3), np.sin(3), np.sin(0.3)]], **NEAR)
    out = rotate(np.array([[[1.0, 0.0, 0.0, 1.0, 7.0]]]), table)
    np.testing.assert_allclose(out, [[[np.cos(3), -np.sin(0.3), np.sin(3), np.cos(0.3), 7.0]]], **NEAR)


def test_rope_gives_dots_that_depend_on_the_distance_alone():
    q, k = draw((1, 8), 1), draw((1, 8), 2)
    dots = [
        (rotate(q, cos_sin([p + 5], 8, 1e7)) * rotate(k, cos_sin([p], 8, 1e7))).sum() for p in (0, 1, 1000, 200_000)
    ]
    # The angle 200,000 has itself an error of 200,000 · 1.1e-16.
    np.testing.assert_allclose(dots, dots[0], rtol=0, atol=1e-10)


def test_rope_table_is_the_float64_table_rounded_once():
    positions = np.array([0, 1, 65_535, 262_143])
    table = rope_table(positions, 64, 1e7, mscale=1.5)
    assert table.dtype == np.float32 and table.shape == (4, 64)
    assert np.array_equal(table, (cos_sin(positions, 64, 1e7) * 1.5).astype(np.float32))
    assert table[0].tolist() == [1.5] * 32 + [0.0] * 32
    for n_rot in (0, 3):
        with pytest.raises(ValueError, match=f"n_rot = {n_rot}"):
            rope_table(positions, n_rot, 1e7)


# Convolution.


@pytest.mark.parametrize("dilation", [1, 3])
def test_convolution_is_causal_and_continues(dilation):
    x, weight = draw((11, 5), 3), draw((5, 1, 4), 4)
    expected = np.zeros((11, 5))
    for t in range(11):
        for back in range(4):
            if t - back * dilation >= 0:
                expected[t] += weight[:, 0, 3 - back] * x[t - back * dilation]
    past, parts = history(5, 4, dilation), []
    for begin, end in ((0, 1), (1, 2), (2, 8), (8, 11)):
        y, past = causal_conv(x[begin:end], weight, past, dilation)
        parts.append(y)
    np.testing.assert_allclose(np.concatenate(parts), expected, **NEAR)
    assert past.shape == (3 * dilation, 5)


# Gated DeltaNet.


def test_delta_rule_corrects_what_it_recalls():
    k = np.array([[[0.6, 0.8]]] * 3)
    v = np.array([[[1.0, 2.0]], [[5.0, -4.0]], [[5.0, -4.0]]])
    decay, beta = np.array([[1.0], [1.0], [0.5]]), np.array([[1.0], [1.0], [0.0]])
    out, memory = deltanet.delta_rule(k, k, v, decay, beta, np.zeros((1, 2, 2)))
    # beta 1: the memory answers k with the last v, whatever it held; beta 0: it only decays.
    np.testing.assert_allclose(out[:, 0], [[1, 2], [5, -4], [2.5, -2]], **NEAR)
    np.testing.assert_allclose(memory[0], np.outer([0.6, 0.8], [2.5, -2]), **NEAR)


# PLE.


def test_hash_constants_of_the_real_model():
    """As the published checkpoint stores them."""
    constants = ple.hash_constants(REAL_CONFIG, 0)
    assert constants.multipliers == (23703573157769, 20109073645365, 8052911324071)
    ends = [3, 23, 33, 47, 59, 63, 69, 77, 81, 93, 107, 147, 153, 159, 161, 171]
    assert constants.sizes == tuple(20_000_000 + end for end in ends)
    assert constants.offsets[:3] == (0, 20_000_003, 40_000_026) and constants.offsets[-1] == 300_001_275
    assert constants.rows == 320_001_536


def test_a_stored_hash_constant_must_be_the_derived_one():
    buffers = ple.buffers(TINY_CONFIG, 0)
    ple.check_buffers(buffers, TINY_CONFIG, 0)
    for name in buffers:
        wrong = {**buffers, name: buffers[name] + np.eye(len(buffers[name]), dtype=np.int64)[-1]}
        with pytest.raises(ValueError, match=name):
            ple.check_buffers(wrong, TINY_CONFIG, 0)


def test_every_ple_layer_has_its_own_primes_and_multipliers():
    two = dataclasses.replace(TINY_CONFIG, ple_layer_ids=(1, 2))
    first, second = (ple.hash_constants(two, index) for index in (0, 1))
    assert first == ple.hash_constants(TINY_CONFIG, 0)
    # The primes at or above 50 go on where the first layer's eight end.
    assert first.sizes + second.sizes == (53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113, 127)
    assert second.offsets[:2] == (0, 89) and second.rows == 848
    shifted = dataclasses.replace(TINY_CONFIG, seed=TINY_CONFIG.seed + 10007)
    assert second.multipliers == ple.hash_constants(shifted, 0).multipliers != first.multipliers


def test_signed_root_has_a_floor_but_at_zero():
    assert ple.signed_root(np.array([0.0, 1e-9, -1e-9, 4.0, -4.0])).tolist() == [0.0, 1e-3, -1e-3, 2.0, -2.0]


def ngram_rows(ids, before=(3, 3)):
    hash_ = ple.hash_constants(TINY_CONFIG, 0)
    return ple.ngram_rows(np.array(ids), np.array(before), TINY_CONFIG, hash_)


def test_ngrams_are_hashed_by_the_formula():
    hash_, m = ple.hash_constants(TINY_CONFIG, 0), ple.hash_constants(TINY_CONFIG, 0).multipliers
    two = (9 * m[0]) ^ (8 * m[1])
    mixed = [two] * 4 + [two ^ (7 * m[2])] * 4
    expected = [x % size + offset for x, size, offset in zip(mixed, hash_.sizes, hash_.offsets, strict=True)]
    assert ngram_rows([7, 8, 9])[2].tolist() == expected


def test_end_of_text_cuts_ngrams():
    eos = TINY_CONFIG.eos_token_id
    plain = ngram_rows([7, 8, 9, 10])
    # What stands before an end of text does not matter after it, and the history before the sequence is end of text.
    assert np.array_equal(ngram_rows([50, eos, 7, 8, 9, 10])[2:], plain)
    assert np.array_equal(ngram_rows([7, 8, 9, 10], before=(50, eos)), plain)
    # An end of text does not cut its own n-grams: they hold the token before it.
    assert not np.array_equal(ngram_rows([7, 8, eos])[2], ngram_rows([7, 9, eos])[2])
    # The cut reaches over the end of text: (8, eos, 9) is hashed as (eos, eos, 9).
    assert np.array_equal(ngram_rows([8, eos, 9])[2], ngram_rows([20, eos, 9])[2])
    # Without it the older token counts, for the 3-gram heads alone.
    other = ngram_rows([50, 7, 8, 9, 10], before=(eos, eos))[1:]
    assert np.array_equal(other[:, :4][1:], plain[:, :4][1:])
    assert not np.array_equal(other[1, 4:], plain[1, 4:]) and np.array_equal(other[2:], plain[2:])


# MoE.


def test_router_ties_go_to_the_lower_id():
    ids, shares = moe.route(np.array([[1.0, 2.0, 2.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0]]), 3)
    assert ids.tolist() == [[1, 2, 3], [0, 1, 2]]
    np.testing.assert_allclose(shares, np.full((2, 3), 1 / 3), **NEAR)


def test_router_shares_are_the_softmax_over_the_chosen():
    ids, shares = moe.route(np.array([[1e4, 1e4 - 1, 0.0, 1e4 - 2]]), 2)
    assert ids.tolist() == [[0, 1]]
    np.testing.assert_allclose(shares, [[1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))]], **NEAR)


# QSA.

SMALL = Geometry(n_head=4, n_head_kv=2, head_dim=8, n_rot=4, idx_heads=2, idx_dim=8, ratio=4, budget=8)
HIDDEN = 32


def qsa_weights():
    weights = {name: draw(shape, 20 + place) for place, (name, shape) in enumerate(qsa.shapes(SMALL, HIDDEN).items())}
    # o_proj as identity shows the heads' outputs themselves.
    return weights | {"o_proj.weight": np.eye(HIDDEN)}


def qsa_forward(weights, x):
    return qsa.forward(x, weights, SMALL, qsa.init_state(SMALL))[0].reshape(len(x), 4, 8)


def test_gate_and_query_alternate_head_by_head():
    """C9: within q_proj each head has its query and then its gate."""
    weights, x = qsa_weights(), draw((13, HIDDEN), 40)
    x[:, 0] = 1.0
    by_head = weights["q_proj.weight"].reshape(4, 2, 8, HIDDEN)
    by_head[:, 1] = 0.0
    half_open = qsa_forward(weights, x)
    by_head[2, 1, :, 0] = 1e3  # the gate of head 2 opens wholly: sigmoid(1000) is 1
    opened = qsa_forward(weights, x)
    np.testing.assert_allclose(opened[:, 2], 2 * half_open[:, 2], **NEAR)
    assert np.array_equal(opened[:, [0, 1, 3]], half_open[:, [0, 1, 3]])


def test_one_cell_gives_its_value_to_the_heads_of_its_kv_head():
    weights, x = qsa_weights(), draw((1, HIDDEN), 41)
    weights["q_proj.weight"].reshape(4, 2, 8, HIDDEN)[:, 1] = 0.0
    value = (weights["v_proj.weight"] @ x[0]).reshape(2, 8)
    np.testing.assert_allclose(qsa_forward(weights, x)[0], value[[0, 0, 1, 1]] / 2, **NEAR)


def test_pooled_keys_are_the_same_however_a_block_is_filled():
    """C5: a chunk may end, begin and lie inside a block."""
    weights, x = qsa_weights(), draw((11, HIDDEN), 42)
    whole = qsa.init_state(SMALL)
    qsa.append(x, weights, SMALL, whole)
    parts = qsa.init_state(SMALL)
    for begin, end in ((0, 5), (5, 7), (7, 8), (8, 11)):
        qsa.append(x[begin:end], weights, SMALL, parts)
        assert len(parts.pooled) == end // 4 and len(parts.raw) == end % 4
    np.testing.assert_allclose(parts.pooled, whole.pooled, **NEAR)
    # A row asked later, with more cells in the state than it may see, gets the same answer.
    out, selected = qsa.query(x, np.arange(11), weights, SMALL, parts)
    expected, _ = qsa.forward(x[:6], weights, SMALL, qsa.init_state(SMALL))
    np.testing.assert_allclose(out[:6], expected, rtol=1e-13, atol=1e-13)
    assert not np.triu(selected, 1).any()


def test_a_query_needs_its_own_cell():
    weights, x = qsa_weights(), draw((5, HIDDEN), 43)
    state = qsa.init_state(SMALL)
    qsa.append(x, weights, SMALL, state)
    for position in (-1, 5):
        with pytest.raises(ValueError, match=f"{position}: the state holds 5 cells"):
            qsa.query(x[:1], [position], weights, SMALL, state)


def test_relu_stands_before_the_sum_over_heads():
    scores = qsa.score_blocks(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[3.0, -5.0], [-1.0, -1.0], [2.0, 2.0]]))
    assert scores.tolist() == [3.0, 0.0, 4.0]
