"""The inputs of a window: what is made ahead or for one token has the values of the plain forms."""

import numpy as np
import pytest

from qsa.model import ple, qsa
from qsa.reference.geometry import REAL, RULES, Geometry, step_records
from qsa.reference.layers.rope import rope_table
from qsa.reference.model.config import Config
from qsa.reference.model.ple import hash_constants, ngram_rows
from support.exact_models import small_model

SMALL = Geometry(budget=16)
LAST = (1 << 31) - 2
"""The last position of a step record."""


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("geometry", [REAL, SMALL], ids=["real", "small"])
def test_rows_are_those_of_their_positions(rule, geometry):
    """Within the positions that are kept, across their ends, more than are kept, and at the last position of all."""
    starts, counts = [0, 60, 63, 64, 1000, LAST - 2], [1, 8, 1, 64, 200, 3]
    rows = qsa.rows_of(starts, counts, geometry, rule)
    positions = np.concatenate([np.arange(start, start + count) for start, count in zip(starts, counts, strict=True)])
    np.testing.assert_array_equal(rows.steps, step_records(positions, rule, geometry))
    table = rope_table(positions, geometry.n_rot, geometry.rope_base)
    np.testing.assert_array_equal(rows.table.view(np.uint32), table.view(np.uint32))
    np.testing.assert_array_equal(rows.slots, np.repeat(np.arange(6), counts))
    assert [span.stop - span.start for span in rows.spans] == counts and rows.spans[-1].stop == len(positions)
    assert rows.steps.dtype == rows.slots.dtype == np.int32


def test_rows_belong_to_their_caller():
    """A caller that writes to them changes no other call's."""
    first = qsa.rows_of([5], [2], REAL, "blocks")
    first.steps[:], first.table[:] = -7, -7
    again = qsa.rows_of([5], [2], REAL, "blocks")
    assert again.steps[0, 0] == 5 and (again.table >= -1).all()


@pytest.mark.parametrize("rule", RULES)
def test_records_are_those_of_each_width(rule):
    positions = [-1, 0, 3, 4, 14, 15, 16, 17, 2050, LAST]
    steps = step_records(positions, rule, SMALL)
    for record, position in zip(steps.tolist(), positions, strict=True):
        n_kv = position + 1
        assert record == [position, n_kv, n_kv // 4, SMALL.width(n_kv, rule)]
    for bad in (-2, LAST + 1):
        with pytest.raises(ValueError, match=f"position = {bad}"):
            step_records([0, bad], rule, SMALL)


def test_ngrams_of_one_token_are_those_of_many():
    """Ends of text among the tokens before it and the token itself."""
    config: Config = small_model().config
    rng, eos, before = np.random.default_rng(1), config.eos_token_id, config.ngram_size - 1
    hash_ = hash_constants(config, 0)
    for _ in range(60):
        tokens = rng.integers(0, config.vocab_size, before + 1)
        tokens[rng.random(before + 1) < 0.4] = eos
        state = ple.State(tokens[:-1].copy(), np.zeros(0, np.float32))
        got = ple.table_rows(tokens[-1:], [(slice(0, 1), state)], config, 0)
        wanted = ngram_rows(tokens[-1:], tokens[:-1], config, hash_)
        np.testing.assert_array_equal(got, wanted)
        assert got.dtype == wanted.dtype == np.int64


def test_what_is_made_ahead_is_what_the_next_window_asks_for():
    """Across the end of the kept positions, and at the last positions of all."""
    for start in (100 * qsa.KEPT - 3, LAST - 3):
        qsa.keep_rows(start, 8, REAL, "blocks")
        before = qsa._kept.cache_info().misses
        rows = qsa.rows_of([start], [3], REAL, "blocks")
        assert qsa._kept.cache_info().misses == before
        np.testing.assert_array_equal(rows.steps, step_records(range(start, start + 3)))
