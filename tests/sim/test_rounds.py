"""What a round of drafts does on the device, in the simulator: the host's decisions, hashes and copies."""

import numpy as np
import pytest

from cases.model_cases import GOLDEN_CONFIG, NARROW_CONFIG
from cases.round_cases import copies, hashed, judged
from qsa.kernels.cuda import simulator

rounds, Lists = simulator.load("rounds"), simulator.load("sampler").Lists


@pytest.mark.parametrize("seed", [1, 2])
def test_rows_are_judged_as_on_the_host(seed):
    rows = 45
    (own, drawn, drafts, listed, which, seeds, positions), accepted, expected = judged(rows, seed=seed)
    tokens, stood = np.full(rows, 77, np.int32), np.full(rows, 77, np.int32)
    rounds.judge(Lists(*own), drawn, drafts, Lists(*listed), which, seeds, positions, tokens, stood)
    assert tokens.tolist() == expected.tolist() and stood.astype(bool).tolist() == accepted.tolist()
    assert accepted.any() and not accepted.all() and (tokens < 0).any()


@pytest.mark.parametrize("config", [NARROW_CONFIG, GOLDEN_CONFIG], ids=["narrow", "golden"])
def test_ngrams_of_ids_that_the_host_has_not_seen(config):
    ids, before, places, constants, expected = hashed(config, 0)
    table = rounds.hash_table(constants, config.eos_token_id)
    assert rounds.ngram_rows(ids, before, places, table).tolist() == expected.tolist()


def test_copies_of_every_length_and_of_chosen_rows():
    copies(rounds, lambda x: x, lambda x: x)


def test_wrong_arrays_are_named():
    with pytest.raises(ValueError, match="arrays: none"):
        rounds.array_table([])
    with pytest.raises(ValueError, match="8 and 4 bytes"):
        rounds.array_table([(np.zeros(2, np.float32), np.zeros(1, np.float32))])
    with pytest.raises(ValueError, match="C-contiguous"):
        rounds.gather_table([np.zeros((4, 4), np.float32)[:, 1]])


def test_a_draft_goes_wherever_it_is_read():
    tokens, places = np.array([9, -1], np.int32), np.array([[1, 0, 3], [4, 2, 8]], np.int32)
    next_ids, ids = np.full(2, 5), np.array([7, 0, 0, 8, 0])
    history, drafts, seen = np.full((3, 8), 6, np.int32), np.full(5, -9, np.int32), np.zeros(2, np.int32)
    rounds.push_drafts(tokens, places, next_ids, ids, history, drafts, seen)
    assert next_ids.tolist() == [9, 0] and ids.tolist() == [7, 9, 0, 8, 0]
    assert drafts.tolist() == [9, -9, -9, -1, -9] and seen.tolist() == [9, -1]
    assert history[0].tolist() == [6, 6, 6, 9, 6, 6, 6, 6] and (history[1:] == 6).all()  # the line has no ninth place
    with pytest.raises(ValueError, match="places"):
        rounds.push_drafts(tokens, places[:1], next_ids, ids, history, drafts, seen)
