"""One QSA layer of the real geometry against stored outputs of the published model code."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from qsa.reference.geometry import REAL
from qsa.reference.model import qsa
from qsa.reference.model.random_model import uniform

HIDDEN, TOKENS = 2560, 2300

# In the order in which the oracle drew them.
SCALES = {
    "q_proj.weight": 0.06,
    "k_proj.weight": 0.2,
    "v_proj.weight": 0.2,
    "o_proj.weight": 0.05,
    "q_norm.weight": 0.6,
    "k_norm.weight": 0.6,
    "indexer.index_qk_proj.weight": 0.1,
    "indexer.q_layernorm.weight": 0.6,
    "indexer.k_layernorm.weight": 0.6,
}

# Rows with an exact tie at the cut: 513 or 514 blocks for 512 places, several of score 0 (see data/README.md).
TIED = [2051, 2052, 2053, 2054, 2055]


@pytest.fixture(scope="module")
def oracle():
    with np.load(Path(__file__).parent / "data" / "layer.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def layer():
    """Weights, input [2300, 2560], and the state that holds all its cells."""
    generator, shapes = np.random.PCG64(2026), qsa.shapes(REAL, HIDDEN)

    def draw(shape, scale):
        return uniform(generator.random_raw(int(np.prod(shape))).reshape(shape), scale)

    weights = {name: draw(shapes[name], scale) for name, scale in SCALES.items()}
    x = draw((TOKENS, HIDDEN), 2.0)
    state = qsa.init_state(REAL)
    qsa.append(x, weights, REAL, state)
    return weights, x, state


def test_the_drawn_input_is_the_oracles(layer, oracle):
    assert hashlib.sha256(layer[1].tobytes()).hexdigest() == str(oracle["sha256_of_x"])


def test_output_and_selection(layer, oracle, follow):
    weights, x, state = layer
    rows = oracle["rows"]
    stored = np.unpackbits(oracle["selected"], axis=1)[:, :TOKENS].astype(bool)
    tied = follow(dict(zip(rows.tolist(), stored, strict=True)))
    out, selected = qsa.query(x[rows], rows, weights, REAL, state)
    assert tied == TIED
    assert np.array_equal(selected, stored)
    # float64 on both sides, in different orders; measured 1e-14. 1e-10 is the bound of the oracle. A gate taken from
    # the wrong half (C9) or a norm without its offset (C10) misses it by ten orders of magnitude.
    scale = np.abs(oracle["out"]).max(axis=1, keepdims=True)
    assert (np.abs(out - oracle["out"]) <= 1e-10 * scale).all()


def test_rule_cells_first_differs_at_2052_cells(layer):
    weights, x, state = layer
    rows = np.array([2046, 2047, 2050, 2051, 2052, 2053, 2054, 2055])
    _, blocks = qsa.query(x[rows], rows, weights, REAL, state, rule="blocks")
    _, cells = qsa.query(x[rows], rows, weights, REAL, state, rule="cells")
    assert cells.sum(axis=1).tolist() == [2047, 2048, 2051, 2051, 2051, 2051, 2051, 2051]
    assert blocks.sum(axis=1).tolist() == [2047, 2048, 2051, 2048, 2049, 2050, 2051, 2048]
    assert (cells >= blocks).all()
