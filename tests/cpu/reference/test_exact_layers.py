"""The exact layers: rows are independent, a NaN stays in its row, the order is the written one, errors in bounds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsa.reference.exact import layers
from qsa.reference.exact.layers.linear import QuantisedLinear, dequantise, joined, quantise
from qsa.reference.exact.scalar import column_sum, fixed_point
from qsa.reference.layers import conv, norm
from qsa.reference.model import deltanet, moe
from support.arrays import bits, generator
from support.layer_problems import EPS, PROBLEMS, conv_problem, delta_problem, special_rows, stacked

NAN_BITS = 0x7FC00000
HALF_ULP = 2.0**-24


@pytest.mark.parametrize("name", PROBLEMS)
@given(order=st.lists(st.integers(0, 11), min_size=1, max_size=14))
def test_rows_are_independent(name, order):
    """Any rows, in any order, any number of times, give the bytes that they have beside all the others."""
    problem = PROBLEMS[name]
    arrays = special_rows(problem)
    whole = problem.run(layers, *arrays)
    part = problem.run(layers, *(x[order] for x in arrays))
    for all_rows, some in zip(whole, part, strict=True):
        assert np.array_equal(bits(all_rows[order]), bits(some))


@pytest.mark.parametrize("name", sorted(set(PROBLEMS) - {"embed", "route"}))
def test_a_row_that_is_not_finite_makes_itself_nan_and_nothing_else(name):
    problem = PROBLEMS[name]
    arrays = problem.rows(generator(9), 5)
    clean = problem.run(layers, *arrays)
    arrays[0].reshape(5, -1)[2, 0] = np.nan
    poisoned = problem.run(layers, *arrays)
    others = [0, 1, 3, 4]
    for before, after in zip(clean, poisoned, strict=True):
        assert np.array_equal(bits(before[others]), bits(after[others]))
    results = [x[2] for x in poisoned if x.dtype == np.float32]
    assert any(np.isnan(x).any() for x in results)
    for x in results:
        assert (x[np.isnan(x)].view(np.uint32) == NAN_BITS).all()


def one_output(x, codes, scale):
    """The definition of a linear output, one number at a time in Python."""
    xi, e = fixed_point(x)
    columns = [np.float32(0)] * 8
    for group in range(len(scale)):
        part = slice(64 * group, 64 * group + 64)
        dot = sum(int(a) * int(b) for a, b in zip(xi[part], codes[part], strict=True))
        columns[group % 8] = columns[group % 8] + np.float32(dot) * np.float32(scale[group])
    for stride in (4, 2, 1):
        columns = [columns[j] + columns[j + stride] for j in range(stride)]
    return np.float32(float(columns[0]) * 2.0 ** int(e - 22))


@pytest.mark.parametrize("inputs", [1, 63, 64, 65, 512, 576, 1300])
def test_linear_is_its_definition(inputs):
    rng = generator(inputs)
    x = (rng.standard_normal((2, inputs)) * [[1], [1e-30]]).astype(np.float32)
    # Scales of one size, so that every order of the terms has bits of its own; and of all sizes.
    for weight in (quantise(rng.standard_normal((20, inputs))), stacked(rng, 3, inputs)):
        got = layers.linear(x, weight)
        with np.errstate(over="ignore"):
            want = [[one_output(row, codes, scale) for codes, scale in zip(*weight, strict=True)] for row in x]
        assert np.array_equal(bits(got), bits(np.array(want, np.float32)))


@pytest.mark.parametrize("inputs", [40, 96, 640, 2560])
def test_linear_against_float64(inputs):
    """Two errors: an input is off by half a unit of 2^(e-22), at most 2^-22 of the row's largest; and every term is
    rounded twice (integer to float32, times scale), then once in every addition on its way: ceil(groups / 8) + 3."""
    rng = generator(inputs)
    weight = quantise(rng.standard_normal((50, inputs)))
    x = rng.standard_normal((9, inputs)).astype(np.float32)
    exact_weight = dequantise(weight).astype(np.float64)
    want = x.astype(np.float64) @ exact_weight.T
    missing = -inputs % 64
    terms = np.pad(x[:, None] * exact_weight, ((0, 0), (0, 0), (0, missing))).reshape(9, 50, -1, 64).sum(axis=-1)
    groups = terms.shape[-1]
    fixed = np.abs(x).max(axis=1)[:, None] * 2.0**-22 * np.abs(exact_weight).sum(axis=1)
    bound = fixed + (2 + -(-groups // 8) + 3) * HALF_ULP * np.abs(terms).sum(axis=-1) * 1.01
    assert (np.abs(layers.linear(x, weight) - want) <= bound).all()


def test_linear_of_the_largest_codes_and_inputs():
    """The integers at their limit: 2^22 times 127, 64 times, in all groups."""
    weight = QuantisedLinear(np.full((2, 640), 127, np.int8), np.ones((2, 10), np.float16))
    weight.codes[1] = -127
    x = np.full((1, 640), np.float32(2) - np.float32(2**-23))
    assert layers.linear(x, weight).tolist() == [[640 * 127 * 2.0, -640 * 127 * 2.0]]


def test_joining_matrices_changes_no_output():
    rng = generator(4)
    one, two = quantise(rng.standard_normal((5, 130))), quantise(rng.standard_normal((7, 130)))
    x = rng.standard_normal((3, 130)).astype(np.float32)
    both = layers.linear(x, joined([one, two]))
    assert np.array_equal(both, np.concatenate([layers.linear(x, one), layers.linear(x, two)], axis=1))


def test_linear_refuses_other_shapes():
    weight = quantise(np.ones((2, 70)))
    for shape in ((70,), (1, 64), (1, 128)):
        with pytest.raises(ValueError, match=r"x: shape .* must be \[rows, 70\]"):
            layers.linear(np.ones(shape, np.float32), weight)


def test_quantise_is_within_half_a_step_and_stable():
    weight = generator(5).standard_normal((3, 10, 150)) * 0.02
    quantised = quantise(weight)
    assert quantised.codes.shape == (3, 10, 150) and quantised.scale.shape == (3, 10, 3)
    values = dequantise(quantised)
    step = np.repeat(quantised.scale.astype(np.float64), 64, axis=-1)[..., :150]
    # Half a step, and what clamping at 127 costs where the scale was rounded down: 127 * 2^-11 of a step.
    assert (np.abs(values - weight) <= step * (0.5 + 127 * 2.0**-11)).all()
    again = quantise(values)
    assert np.array_equal(again.codes, quantised.codes) and np.array_equal(again.scale, quantised.scale)


def test_quantise_refuses_what_no_scale_holds():
    for bad in (np.nan, np.inf, 1e7):
        with pytest.raises(ValueError, match="finite"):
            quantise(np.full((1, 64), bad))


def summed(terms, columns):
    """The tree of ``columns`` columns over a list of float32, one addition at a time."""
    total = [np.float32(0)] * columns
    for i, term in enumerate(terms):
        total[i % columns] = total[i % columns] + term
    while len(total) > 1:
        stride = len(total) // 2
        total = [total[j] + total[j + stride] for j in range(stride)]
    return total[0]


@pytest.mark.parametrize("columns", [4, 8, 32])
@pytest.mark.parametrize("dim", [0, 1, 31, 64, 75])
def test_column_sum_is_its_definition(columns, dim):
    x = generator(dim).standard_normal((2, dim)).astype(np.float32)
    for row, got in zip(x, column_sum(x, columns), strict=True):
        assert got.view(np.uint32) == summed(row, columns).view(np.uint32)


def close(got, want, units):
    """Within ``units`` half units in the last place of the largest number of the row."""
    size = np.abs(want).max(axis=-1, keepdims=True)
    return (np.abs(got - want) <= units * HALF_ULP * size).all()


def test_sums_of_a_row_go_in_the_tree_of_32_columns():
    x, one = generator(12).standard_normal((30, 150)).astype(np.float32), np.float32(1)
    want = [row * (one / np.sqrt(summed(row * row, 32) / np.float32(150) + np.float32(EPS))) for row in x]
    assert np.array_equal(bits(layers.rms_norm(x, np.ones(150, np.float32), EPS)), bits(np.array(want)))


def test_sums_over_a_memory_go_in_the_tree_of_4_columns():
    """With beta 0 and decay 1 the memory stays, and the output is its product with q alone."""
    rows, memory = delta_problem(generator(13), 1, heads=1, key_heads=1, dim=50, values=30)
    rows[3][:], rows[4][:] = 1, 0
    want = [summed(column * rows[0][0, 0], 4) for column in memory[0].T]
    assert np.array_equal(bits(layers.delta_rule(*rows, memory)[0, 0]), bits(np.array(want)))


def test_norms_against_float64():
    """A square, its sum (ceil(dim / 32) + 5 additions, positive terms), quotient, eps, root, reciprocal: half of the
    sum's error after the root; then the products. 16 half units cover 2,560 dims."""
    rng = generator(6)
    x = rng.standard_normal((6, 4, 200)).astype(np.float32)
    weight = rng.uniform(0.5, 1.5, 200).astype(np.float32)
    gate = rng.standard_normal(x.shape).astype(np.float32)
    wide, wide_gate = x.astype(np.float64), gate.astype(np.float64)
    assert close(layers.rms_norm(x, weight, EPS), norm.rms(wide, EPS) * weight, 16)
    for activation in ("sigmoid", "silu"):
        want = norm.gated_norm(wide, wide_gate, weight, EPS, activation)
        assert close(layers.gated_norm(x, gate, weight, EPS, activation), want, 24)
    assert close(layers.l2_norm(x, np.float32(1)), norm.l2_norm(wide), 16)


def test_norm_of_zeros_and_of_denormals():
    x = np.array([[0.0] * 40, [1e-42] * 40], np.float32)
    got = layers.rms_norm(x, np.ones(40, np.float32), EPS)
    # The squares vanish beside eps: the factor is 1 / sqrt(1e-6), and the denormals keep their bits.
    assert (got[0] == 0).all() and np.allclose(got[1], x[1].astype(np.float64) * 1e3, rtol=1e-2)


@pytest.mark.parametrize(("kernel", "dilation"), [(4, 1), (4, 3), (1, 1), (2, 5)])
def test_causal_conv_against_float64(kernel, dilation):
    x, taps, past = conv_problem(generator(kernel), 11, kernel, dilation)
    want, want_past = conv.causal_conv(x.astype(np.float64), taps.T[:, None], past.astype(np.float64), dilation)
    got = layers.causal_conv(x, taps, past, dilation)
    # Products of up to 4 standard deviations each: at most 8 roundings of numbers below 32.
    assert np.abs(got - want).max() <= 8 * 32 * HALF_ULP
    assert np.array_equal(past, want_past)


def test_delta_rule_against_float64():
    rows, memory = delta_problem(generator(7), 20)
    wide = [x.astype(np.float64) for x in rows]
    wide[:2] = [np.repeat(x, 2, axis=1) for x in wide[:2]]
    want, want_memory = deltanet.delta_rule(*wide, memory.astype(np.float64))
    got = layers.delta_rule(*rows, memory)
    # Errors of a step fade with the decay; each is a few half units of numbers of size 1 (30 summed terms at most).
    assert np.abs(got - want).max() <= 64 * HALF_ULP * np.abs(want).max()
    assert np.abs(memory - want_memory).max() <= 64 * HALF_ULP * np.abs(want_memory).max()


@given(cuts=st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_states_do_not_depend_on_the_cut(cuts):
    """Rows in chunks of any lengths leave the bytes of rows in one call, in outputs and states."""
    n = sum(cuts)
    for make, operation in (
        (lambda: conv_problem(generator(1), n, 4, 3), lambda state, x, taps: layers.causal_conv(x, taps, state, 3)),
        (lambda: delta_problem(generator(2), n), None),
    ):
        problems = make(), make()
        outputs = []
        for problem, lengths in zip(problems, ([n], cuts), strict=True):
            begin, parts = 0, []
            for length in lengths:
                rows = slice(begin, begin + length)
                if operation:
                    x, taps, state = problem
                    parts.append(operation(state, x[rows], taps))
                else:
                    arrays, state = problem
                    parts.append(layers.delta_rule(*(x[rows] for x in arrays), state))
                begin += length
            outputs.append((np.concatenate(parts), state))
        for one, other in zip(*outputs, strict=True):
            assert np.array_equal(bits(one), bits(other))


def test_route_ties_to_the_lower_id_and_shares_sum_to_one():
    logits = np.array([[1, 3, 3, -2, 3], [0, -0.0, 0, 0, 0], [-np.inf, 5, 4, 5, 4]], np.float32)
    ids, shares = layers.route(logits, 3)
    assert ids.tolist() == [[1, 2, 4], [0, 1, 2], [1, 3, 2]]
    assert np.abs(shares.sum(axis=1) - 1).max() <= 3 * HALF_ULP
    wide_ids, wide = moe.route(logits[:2].astype(np.float64), 3)
    assert np.array_equal(ids[:2], wide_ids) and np.abs(shares[:2] - wide).max() <= 8 * HALF_ULP
    ids, shares = layers.route(np.full((1, 5), np.nan, np.float32), 3)
    assert ids.tolist() == [[0, 1, 2]] and (shares.view(np.uint32) == NAN_BITS).all()


def test_ngram_gate_of_nothing_is_a_half():
    zero, value = np.zeros((1, 2, 8), np.float32), np.full((1, 8), 3, np.float32)
    assert (layers.ngram_gate(zero, zero, value) == 1.5).all()
    # The smallest sum counts as 1e-6, with its sign: sigmoid(+-1e-3).
    tiny = np.full((1, 2, 8), 1e-10, np.float32)
    for sign in (1, -1):
        got = layers.ngram_gate(tiny, sign * tiny, value)
        assert np.allclose(got, 3 / (1 + np.exp(-sign * 1e-3)), rtol=1e-6)
        assert (got != 1.5).all()
