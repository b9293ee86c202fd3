"""Follow an oracle's selection where, and only where, it broke an exact tie in another way than ours."""

import numpy as np
import pytest

from qsa.reference.model import qsa


@pytest.fixture
def follow_layers(monkeypatch):
    """``follow_layers(stored)`` makes the reference use the selections of ``stored``, layer → position → bool [cells].

    A row that differs from the reference's own selection must have the same width and the same block scores to the
    last bit, that is, lie on the other side of a tie; else the test fails. Returns the list that gathers these rows.
    """

    def start(stored):
        tied, order = [], sorted(stored)
        layer = order[-1]

        def query(x, positions, *args, **kwargs):
            nonlocal layer
            layer = order[(order.index(layer) + 1) % len(order)]
            return own_query(x, positions, *args, **kwargs)

        def select(scores, steps, *, rule, geometry):
            ids = own_select(scores, steps, rule=rule, geometry=geometry)
            pos, _, _, width = steps[0].tolist()
            cells = np.flatnonzero(stored[layer][pos])
            if not np.array_equal(cells, ids[0, :width]):
                assert len(cells) == width, f"row {pos}: {len(cells)} cells, the rule gives {width}"
                ours, theirs = (_cell_scores(scores[0], one, geometry.ratio) for one in (ids[0, :width], cells))
                assert np.array_equal(ours, theirs), f"row {pos}: another selection, and it is no tie"
                tied.append(pos)
                ids[0, :width] = cells
            return ids

        own_query, own_select = qsa.query, qsa.select
        monkeypatch.setattr(qsa, "query", query)
        monkeypatch.setattr(qsa, "select", select)
        return tied

    return start


@pytest.fixture
def follow(follow_layers):
    """As ``follow_layers``, for a model with one QSA layer: ``follow(stored)``, position → bool [cells]."""
    return lambda stored: follow_layers({0: stored})


def _cell_scores(scores, cells, ratio):
    """Scores of the selected cells, sorted; a cell of the tail counts as +inf, so no block may stand in for it."""
    blocks = cells // ratio
    return np.sort(np.where(blocks < len(scores), np.append(scores, np.inf)[np.minimum(blocks, len(scores))], np.inf))
