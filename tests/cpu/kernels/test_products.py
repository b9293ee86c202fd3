"""Packed integer products give the exact sums, whatever the shapes and the codes, in the processor's own instructions.

Processors without these instructions are in ``test_machine.py``, which runs every kernel as if on one.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from llvmlite import binding

from qsa.kernels import cpu
from qsa.kernels.cpu.products.form import GROUP, WIDE, form_of
from qsa.kernels.cpu.products.records import fixed_row
from qsa.kernels.cpu.products.values import FOLD
from qsa.reference.exact import attend, layers
from qsa.reference.exact.layers.linear import QuantisedLinear, quantise
from qsa.reference.exact.scalar import fixed_point
from qsa.reference.geometry import Geometry
from support.arrays import bits, generator
from support.attention import fill, record
from support.kernel_hashes import extreme_attention, extreme_linear
from support.product_tile import assembly, sums

TESTS = Path(__file__).parents[2]


@pytest.mark.parametrize("number", [0, 1, -1, 127, 128, -128, -129, 1 << 15, 1023, 1024, 1 << 22, -(1 << 22)])
@pytest.mark.parametrize("code", [0, 1, -1, 127, -127, -128])
def test_sums_of_equal_products(number, code):
    """Every limb at its ends: the largest sums that can arise."""
    got = sums(np.full((4, GROUP), number, np.int32), np.full((WIDE, GROUP), code, np.int8))
    assert np.array_equal(got, np.full((4, WIDE), np.float32(GROUP * number * code)))


def test_sums_of_any_products():
    rng = generator(1)
    for _ in range(50):
        numbers = rng.integers(-(1 << 22), (1 << 22) + 1, (4, GROUP)).astype(np.int32)
        codes = rng.integers(-128, 128, (WIDE, GROUP)).astype(np.int8)
        want = numbers.astype(np.int64) @ codes.T.astype(np.int64)
        assert np.array_equal(sums(numbers, codes), want.astype(np.float32))


@pytest.mark.parametrize("outputs", [1, 15, 16, 17, 48, 63, 64, 65, 130])
@pytest.mark.parametrize("inputs", [1, 63, 65, 130, 600])
def test_linear_of_ragged_shapes(outputs, inputs):
    """Blocks and groups that are not full, of every number of columns, and every number of rows in the last tile."""
    rng = generator(outputs + inputs)
    weight = quantise(rng.standard_normal((outputs, inputs)))
    for rows in (1, 2, 3, 4, 5, 65, 67):
        x = rng.standard_normal((rows, inputs)).astype(np.float32)
        x[rows // 2] *= np.float32(1e-20)
        got = cpu.layers.linear(x, cpu.layers.load_linear(weight))
        assert np.array_equal(bits(got), bits(layers.linear(x, weight)))


def test_linear_of_extreme_codes():
    x, weight = extreme_linear()
    got = cpu.layers.linear(x, cpu.layers.load_linear(weight))
    assert np.array_equal(bits(got), bits(layers.linear(x, weight)))


def test_linear_shared_among_threads():
    rng = generator(4)
    weight = QuantisedLinear(rng.integers(-127, 128, (300, 600)).astype(np.int8), np.ones((300, 10), np.float16))
    x = rng.standard_normal((130, 600)).astype(np.float32)
    x[70, 3] = np.nan
    got = cpu.layers.linear(x, cpu.layers.load_linear(weight))
    assert np.array_equal(bits(got), bits(layers.linear(x, weight)))


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 9])
def test_experts_of_few_and_many_rows(rows):
    """Tiles of 1 to 4 shares of an expert: every row asks for expert 1, and then for one of the others."""
    rng = generator(rows)
    gate_up, down = quantise(rng.standard_normal((5, 38, 70))), quantise(rng.standard_normal((5, 70, 19)))
    x = rng.standard_normal((rows, 70)).astype(np.float32)
    ids = np.stack([np.ones(rows, np.int64), rng.choice([0, 2, 3, 4], rows)], axis=1)
    shares = rng.random((rows, 2)).astype(np.float32)
    got = cpu.layers.experts(x, ids, shares, cpu.layers.load_linear(gate_up), cpu.layers.load_linear(down))
    assert np.array_equal(bits(got), bits(layers.experts(x, ids, shares, gate_up, down)))


@pytest.mark.parametrize("fmt", ["int8", "q4_0", "k8v4"])
def test_attention_of_extreme_codes(fmt):
    """Codes of -128, negative scales, queries at the ends of the fixed-point range."""
    arguments = extreme_attention(fmt)
    for schedule in ("batch", "split"):
        got = cpu.attend(*arguments, schedule=schedule)
        assert np.array_equal(bits(got), bits(attend(*arguments)))


@pytest.mark.parametrize("group", range(1, 8))
def test_attention_of_any_number_of_heads(group):
    """Query heads meet a tile four, two or one at a time."""
    rng = generator(group)
    geometry = Geometry(n_head=2 * group, n_head_kv=2, head_dim=128, n_rot=16)
    for width in (1, 15, 16, 17, 63, 65, 130):
        kv, _, _ = fill(rng, 130, "int8", geometry=geometry)
        q = rng.standard_normal((1, 2 * group, 128)).astype(np.float32)
        ids = np.sort(rng.permutation(130)[:width]).astype(np.int32)[None]
        got = cpu.attend(q, kv, ids, record(width))
        assert np.array_equal(bits(got), bits(attend(q, kv, ids, record(width))))


def test_sums_of_values_are_moved_before_they_are_full():
    """More cells than an int32 sum holds, all of one weight and the largest code."""
    geometry = Geometry(n_head=1, n_head_kv=1, head_dim=64, n_rot=16)
    n = FOLD + 1000
    assert 255 * 128 * FOLD < 1 << 31 <= 255 * 128 * n
    kv, _, _ = fill(generator(2), n, "int8", page_size=512, geometry=geometry, shuffle=False)
    kv.pool.k.codes[:] = 0
    kv.pool.v.codes[:] = -128
    # r = 1 and mu just below 1: the lower three bytes of every weight are 255 or nearly so.
    kv.pool.v.scale[:] = np.float16(1 - 2**-11)
    q, ids = np.ones((1, 1, 64), np.float32), np.arange(n, dtype=np.int32)[None]
    got = cpu.attend(q, kv, ids, record(n))
    assert np.array_equal(bits(got), bits(attend(q, kv, ids, record(n))))


@pytest.mark.parametrize(
    ("features", "limbs", "part", "vnni"),
    [
        ("+avx512vnni,+avx512bw,+avx512f,+avxvnni", 3, 64, True),
        ("+avx512vnni,-avx512bw,+avxvnni", 3, 32, True),
        ("-avx512vnni,+avxvnni,+avx2", 3, 32, True),
        ("-avx512vnni,-avxvnni,+avx512bw", 2, 32, False),
        ("+avx2,-avxvnni", 2, 16, False),
        ("+neon", 2, 16, False),
        ("", 2, 16, False),
    ],
)
def test_the_form_follows_the_features(features, limbs, part, vnni):
    form = form_of(features)
    assert (form.limbs, form.part, form.vnni) == (limbs, part, vnni)
    assert form.shift * form.limbs >= 22


def test_the_processors_own_instruction_is_used():
    features = binding.get_host_cpu_features()
    text = assembly()
    if features.get("avx512vnni") or features.get("avxvnni"):
        assert len(re.findall("vpdpbusd", text)) >= 4 * 3 * 16
    elif features.get("avx2"):
        assert len(re.findall("vpmaddwd", text)) >= 4 * 2 * 16
    else:
        pytest.skip("neither VNNI nor AVX2")


def test_pairs_are_multiplied_and_added_in_one_instruction():
    """As on an AVX2 processor without VNNI: compiled, which takes no such processor, and run, which takes AVX2."""
    if not binding.get_host_cpu_features().get("avx2"):
        pytest.skip("no AVX2")
    environment = os.environ | {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2"}
    command = [sys.executable, "-m", "support.product_tile"]
    run = subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    text = run.stdout
    assert "vpdpbusd" not in text and "vpmulld" not in text
    assert len(re.findall("vpmaddwd", text)) >= 4 * 2 * 16


@pytest.mark.parametrize("last", [0.0, 1e-45, 1.0, 3.4e38, np.inf, np.nan])
def test_fixed_point_rows(last):
    """Against the reference's query, and padded with zeros."""
    x = generator(3).standard_normal((1, 37)).astype(np.float32)
    x[0, -1] = last
    xi = np.full(64, 5, np.int32)
    e, finite = fixed_row(x[0], xi)
    want, want_e = fixed_point(x)
    assert finite == np.isfinite(last) and not xi[37:].any()
    assert np.array_equal(xi[:37], want[0]) and e == want_e[0]
