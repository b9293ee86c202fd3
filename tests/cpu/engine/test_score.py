"""Teacher forcing: every window and chunk gives the same scores, and they are what the logits say."""

import numpy as np
import pytest

from qsa.engine import Scores, score, teacher_forced
from qsa.engine.runner import Runner
from qsa.kernels.switches import override
from qsa.reference import exact
from support.engine_models import POISON, VOCAB, engine_model, poisoned_model, prompt

IDS = prompt(75, seed=13)


@pytest.fixture(scope="module")
def model():
    return engine_model()


@pytest.fixture(scope="module")
def logits(model):
    """float32 [74, vocab]: the whole text in one call."""
    return model.forward(IDS[:-1], model.init_state(80))[0]


def test_scores_are_what_the_logits_say(model, logits):
    x = logits.astype(np.float64)
    total = np.log(np.exp(x).sum(axis=1))
    nll = total - x[np.arange(74), IDS[1:]]
    scores = score(model, IDS)
    assert scores.nll.dtype == np.float64 and scores.nll.shape == scores.top.shape == (74,)
    # exp and log are good to an ULP of about 10.
    assert np.abs(scores.nll - nll).max() < 1e-12 and scores.mean == scores.nll.mean()
    assert np.array_equal(scores.top, logits.argmax(axis=1))


@pytest.mark.parametrize(
    "options", [{"window": n} for n in range(1, 8)] + [{"chunk": 1}, {"chunk": 20}, {"chunk": 999}]
)
def test_neither_window_nor_chunk_changes_a_byte(model, options):
    whole, cut = score(model, IDS), score(model, IDS, **options)
    assert np.array_equal(whole.nll, cut.nll) and np.array_equal(whole.top, cut.top)


@pytest.mark.parametrize("switch", ["split_attn", "batch_qsa_attn"])
def test_no_switch_does_either(model, switch):
    with override(**{switch: True}):
        assert np.array_equal(score(model, IDS[:50]).nll, score(model, IDS, page_size=64).nll[:49])


def test_numpy_scores_as_numba_does(model):
    assert np.array_equal(score(engine_model(exact), IDS[:45], window=4).nll, score(model, IDS).nll[:44])


def test_rows_come_piece_by_piece(model, logits):
    """For divergences: every position once, in order, no more than a window at a time."""
    pieces = list(teacher_forced(model, IDS, window=5))
    assert [start for start, _ in pieces] == list(range(0, 74, 5))
    assert np.array_equal(np.concatenate([rows for _, rows in pieces]), logits)
    pieces_by_start = {}
    score(model, IDS, window=5, on_result=lambda start, logs: pieces_by_start.update({start: logs}))
    logs = np.concatenate([pieces_by_start[start] for start in sorted(pieces_by_start)])
    assert np.abs(np.exp(logs).sum(axis=1) - 1).max() < 1e-12
    assert np.array_equal(-logs[np.arange(74), IDS[1:]], score(model, IDS).nll)


class Broken(Runner):
    """Says NaN of the row at position 12."""

    def logits(self, x):
        out = super().logits(x)
        self.seen = getattr(self, "seen", 0) + len(out)
        if self.seen - len(out) <= 12 and self.seen > 12:
            out[12 - self.seen] = np.nan
        return out


@pytest.mark.parametrize("options", [{"window": 8}, {"window": 1}, {"chunk": 20}])
def test_a_token_that_cannot_run_says_so_wherever_it_stands_in_a_window(options):
    """What comes before its window is scored; it is not the window that is to blame."""
    ids = [*IDS[:12], POISON, *IDS[12:20]]
    scored = []

    def on_result(start, logs):
        scored.extend(range(start, start + len(logs)))

    with pytest.raises(ValueError, match="values must be finite"):
        score(poisoned_model(), ids, on_result=on_result, **options)
    assert scored == list(range(12 // next(iter(options.values())) * next(iter(options.values()))))


def test_what_cannot_be_scored_is_refused(model):
    for ids, options, message in (
        ([3], {}, "1 token: scoring needs at least 2"),
        ([], {}, "ids: shape"),
        ([1, VOCAB], {}, f"ids: {VOCAB}"),
        (IDS, {"window": 0}, "window = 0"),
        (IDS, {"window": 9}, "window = 9"),
        (IDS, {"chunk": 0}, "chunk = 0"),
        (IDS, {"capacity": 73}, "75 tokens need 74 cells: capacity = 73"),
        (IDS, {"kv_format": "fp16"}, "kv_format = 'fp16'"),
        (IDS, {"runner": Broken(model)}, "not finite at position 12"),
    ):
        with pytest.raises(ValueError, match=message):
            score(model, ids, **options)
    assert isinstance(score(model, [1, 2]), Scores)
