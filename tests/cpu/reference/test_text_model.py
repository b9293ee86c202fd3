"""The whole float64 model: chunks against the whole sequence, causality, states, rules, draft layer, ids."""

import numpy as np
import pytest

from qsa.reference import TINY_CONFIG, random_model
from qsa.reference.model.random_model import random_tensors
from qsa.reference.model.text_model import Model, Trace

EOS = TINY_CONFIG.eos_token_id
N = 61

# Whole and chunked run the same code on matrices of other heights, so they differ by rounding alone, which the issue
# bounds by 1e-12 relative. Measured: 2e-15 of the largest value.
BOUND = 1e-12


def draw_ids(n, seed=5):
    return (np.random.PCG64(seed).random_raw(n) % np.uint64(TINY_CONFIG.vocab_size)).astype(np.int64)


@pytest.fixture(scope="module")
def model():
    return random_model(TINY_CONFIG, 1, draft=True)


@pytest.fixture(scope="module")
def ids():
    out = draw_ids(N)
    # End of text: inside, twice in a row, and where n-grams are cut in the middle of a chunk.
    out[[11, 22, 23, 40]] = EOS
    return out


@pytest.fixture(scope="module")
def whole(model, ids):
    return run(model, ids, [N])


def run(model, ids, lengths):
    """Logits, streams, selection of layer 3 and the state, the sequence being cut into chunks of ``lengths``."""
    state, outputs, begin = model.init_state(), [], 0
    selected = np.zeros((len(ids), len(ids)), bool)
    for length in lengths:
        trace = Trace()
        outputs.append(model.forward(ids[begin : begin + length], state, trace))
        selected[begin : begin + length, : begin + length] = trace.selected[3]
        begin += length
    assert begin == len(ids)
    logits, streams = (np.concatenate(arrays) for arrays in zip(*outputs, strict=True))
    return logits, streams, selected, state


def close(ours, theirs):
    return ours.shape == theirs.shape and np.abs(ours - theirs).max(initial=0) <= BOUND * np.abs(theirs).max(initial=1)


def same_state(ours, theirs):
    """Every array of two states, in order; counts and token ids equal."""
    assert ours.n == theirs.n
    for one, other in zip(ours.attention + ours.ple, theirs.attention + theirs.ple, strict=True):
        assert type(one) is type(other)
        for name, value in vars(one).items() if one is not None else ():
            assert close(value, vars(other)[name]), name


CUTS = {
    "a token at a time": [1] * N,
    "inside blocks and convolutions": [3, 2, 6, 1, 4, 9, 36],
    "a chunk of 2 at position 5, shorter than a block": [5, 2, N - 7],
    "before, at and after an end of text": [11, 1, 10, 1, 1, 16, 1, 20],
    "shorter than every history": [1, 1, 2, 1, 2, 1, 3, N - 11],
    "blocks": [4] * 15 + [1],
    "not blocks": [7] * 8 + [5],
    "one token, then the rest": [1, N - 1],
    "the rest, then one token": [N - 1, 1],
    "at the width where selection begins": [19, 1, 1, N - 21],
}


@pytest.mark.parametrize("lengths", CUTS.values(), ids=CUTS)
def test_chunks_agree_with_the_whole_sequence(model, ids, whole, lengths):
    logits, streams, selected, state = run(model, ids, lengths)
    assert close(logits, whole[0])
    assert close(streams, whole[1])
    assert np.array_equal(selected, whole[2])
    same_state(state, whole[3])


def test_every_single_cut(model, ids):
    expected = run(model, ids[:29], [29])
    for cut in range(1, 29):
        logits, _, _, state = run(model, ids[:29], [cut, 29 - cut])
        assert close(logits, expected[0]), cut
        same_state(state, expected[3])


def test_logits_and_trace_are_the_forward_of_one_chunk(model, ids, whole):
    assert np.array_equal(model.logits(ids), whole[0])
    trace = model.trace(ids)
    assert np.array_equal(trace.selected[3], whole[2])
    assert [hidden.shape for hidden in trace.hidden] == [(N, 4 * 48)] * 4 + [(N, 48)]


def test_a_row_never_sees_its_future(model, ids, whole):
    assert not np.triu(whole[2], 1).any()
    # Positions 20 to 23 are one block: row 20 to 22 see it as tail, row 23 as a block that competes.
    for last in (19, 20, 21, 22, 23):
        other = ids.copy()
        other[last + 1 :] = (other[last + 1 :] + 7) % TINY_CONFIG.vocab_size
        changed = model.logits(other)
        # Other tokens later change which rows meet in an expert's product, hence its rounding, and nothing else.
        assert close(changed[: last + 1], whole[0][: last + 1])
        assert not close(changed[last + 1 :], whole[0][last + 1 :])


def test_the_block_of_the_row_itself_competes(whole):
    """At (position + 1) % 4 == 0 there is no tail, and the row's own block may lose."""
    ends = np.arange(23, N, 4)
    own = whole[2][ends, ends]
    assert (whole[2][ends].sum(axis=1) == 16).all()
    assert own.any() and not own.all()


def test_widths_of_both_rules_and_where_they_first_differ(ids, whole):
    cells = random_model(TINY_CONFIG, 1, draft=True, rule="cells").trace(ids).selected[3]
    n_kv = np.arange(1, N + 1)
    assert whole[2].sum(axis=1).tolist() == [min(n, n // 4 * 4, 16) + n % 4 for n in n_kv]
    assert cells.sum(axis=1).tolist() == [min(n, 19) for n in n_kv]
    differs = (cells != whole[2]).any(axis=1)
    # The budget is 16 cells: 16 + 3 is the last count at which both rules take everything.
    assert n_kv[differs].min() == 20
    assert differs.tolist() == [n >= 20 and n % 4 != 3 for n in n_kv]
    assert (cells >= whole[2]).all()


def test_an_unknown_rule_is_refused():
    with pytest.raises(ValueError, match="rule = 'tokens': allowed are blocks, cells"):
        random_model(TINY_CONFIG, 1, rule="tokens")


def test_a_copied_state_is_a_sequence_of_its_own(model, ids):
    """B1: everything goes with the copy, the indexer's keys too, and nothing is shared."""
    state = model.init_state()
    model.forward(ids[:30], state)
    fork = state.copy()
    other = draw_ids(20, seed=6)
    on_fork = model.forward(other, fork).logits
    on_original = model.forward(ids[30:], state).logits
    assert close(on_fork, model.logits(np.concatenate([ids[:30], other]))[30:])
    assert close(on_original, model.logits(ids)[30:])


def test_sequences_in_turn_do_not_touch_each_other(model, ids):
    """C7: one sequence decodes while another one starts."""
    states = [model.init_state(), model.init_state()]
    other = draw_ids(25, seed=7)
    model.forward(ids[:40], states[0])
    model.forward(other[:9], states[1])
    first = [model.forward(ids[40:41], states[0]).logits]
    second = [model.forward(other[9:], states[1]).logits]
    first.append(model.forward(ids[41:], states[0]).logits)
    assert close(np.concatenate(first), model.logits(ids)[40:])
    assert close(second[0], model.logits(other)[9:])


BAD_IDS = {
    "none": (np.zeros(0, np.int64), "non-empty"),
    "two dimensions": (np.zeros((2, 3), np.int64), "one-dimensional"),
    "floats": (np.zeros(3), "float64"),
    "booleans": (np.zeros(3, bool), "bool"),
    "negative": (np.array([1, -2]), "-2: 0 to 96"),
    "past the vocabulary": (np.array([1, 97]), "97: 0 to 96"),
    "past int64": (np.array([2**63], np.uint64), "9223372036854775808: 0 to 96"),
}


@pytest.mark.parametrize("bad, message", BAD_IDS.values(), ids=BAD_IDS)
def test_bad_ids_change_nothing(model, ids, bad, message):
    state = model.init_state()
    model.forward(ids[:5], state)
    before = state.copy()
    with pytest.raises(ValueError, match=message):
        model.forward(bad, state)
    same_state(state, before)


# The draft layer. Its inputs are the model's streams of position i and the token of position i + 1.


@pytest.mark.parametrize("lengths", [[1] * 40, [2, 3, 35], [19, 1, 20]], ids=str)
def test_draft_layer_in_chunks(model, ids, whole, lengths):
    streams, next_ids = whole[1][:40], ids[1:41]
    expected_logits, expected_streams = model.draft.forward(streams, next_ids, model.draft.init_state())
    state, begin, outputs = model.draft.init_state(), 0, []
    for length in lengths:
        rows = slice(begin, begin + length)
        outputs.append(model.draft.forward(streams[rows], next_ids[rows], state))
        begin += length
    logits, out = (np.concatenate(arrays) for arrays in zip(*outputs, strict=True))
    assert logits.shape == (40, TINY_CONFIG.vocab_size)
    assert close(logits, expected_logits) and close(out, expected_streams)


def test_draft_layer_takes_its_own_streams_for_a_further_step(model, ids, whole):
    state = model.draft.init_state()
    logits, streams = model.draft.forward(whole[1][:30], ids[1:31], state)
    proposed = logits[-1:].argmax(axis=1)
    further, _ = model.draft.forward(streams[-1:], proposed, state)
    # The same as if the proposed token's streams had been known from the start.
    joined = np.concatenate([whole[1][:30], streams[-1:]]), np.concatenate([ids[1:31], proposed])
    expected, _ = model.draft.forward(*joined, model.draft.init_state())
    assert close(further, expected[-1:])
    assert not close(further, logits[-1:])


@pytest.mark.parametrize("norm", ["whole", "streams"])
def test_draft_layer_starts_from_both_inputs(ids, whole, norm):
    """With blocks that give nothing, the streams that leave the layer are those that enter it."""
    tensors = random_tensors(TINY_CONFIG, 1, draft=True)
    for name in tensors:
        if name.startswith("mtp.") and name.endswith(("o_proj.weight", "down_proj", "down_proj.weight")):
            tensors[name] = np.zeros_like(tensors[name])
    draft = Model(TINY_CONFIG, tensors, draft_norm=norm).draft
    _, out = draft.forward(whole[1][:9], ids[1:10], draft.init_state())
    embedding = tensors["model.embed_tokens.weight"][ids[1:10]]
    embedding = embedding / np.sqrt((embedding**2).mean(axis=1, keepdims=True) + 1e-6)
    embedding = embedding * (1 + tensors["mtp.pre_fc_norm_embedding.weight"]) @ tensors["mtp.fc_embedding.weight"].T
    square = (whole[1][:9] ** 2).mean(axis=(1, 2) if norm == "whole" else 2).reshape(9, -1, 1)
    hidden = whole[1][:9] / np.sqrt(square + 1e-6) * (1 + tensors["mtp.pre_fc_norm_hidden.weight"].reshape(4, 48))
    assert close(out, hidden @ tensors["mtp.fc_hidden.weight"].T + embedding[:, None])


def test_draft_norms_agree_on_equal_streams_alone(ids, whole):
    tensors = random_tensors(TINY_CONFIG, 1, draft=True)
    outputs = {}
    for norm in ("whole", "streams"):
        draft = Model(TINY_CONFIG, tensors, draft_norm=norm).draft
        equal = np.repeat(whole[1][:9, :1], 4, axis=1)
        outputs[norm] = [draft.forward(x, ids[:9], draft.init_state())[0] for x in (equal, whole[1][:9])]
    # Four equal streams have the mean square of each one, so there is nothing to disagree about.
    assert close(outputs["whole"][0], outputs["streams"][0])
    assert not close(outputs["whole"][1], outputs["streams"][1])


def test_draft_layer_refuses(model, ids, whole):
    state = model.draft.init_state()
    with pytest.raises(ValueError, match=r"streams: shape \(3, 4, 48\): \[2, 4, 48\] is required"):
        model.draft.forward(whole[1][:3], ids[:2], state)
    with pytest.raises(ValueError, match="97: 0 to 96"):
        model.draft.forward(whole[1][:1], [97], state)
    with pytest.raises(ValueError, match="draft_norm = 'rows': allowed are whole, streams"):
        random_model(TINY_CONFIG, 1, draft=True, draft_norm="rows")
    assert len(state.k) == 0


def test_a_model_without_draft_layer_has_none_and_the_same_logits(ids, whole):
    tensors = {name: value for name, value in random_tensors(TINY_CONFIG, 1, draft=True).items() if name[:4] != "mtp."}
    plain = Model(TINY_CONFIG, tensors)
    assert plain.draft is None
    assert np.array_equal(plain.logits(ids), whole[0])


def test_random_tensors_are_a_function_of_the_seed():
    one, same, other = (random_tensors(TINY_CONFIG, seed) for seed in (3, 3, 4))
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert not np.array_equal(one["lm_head.weight"], other["lm_head.weight"])
    # lm_head.weight is the first name in order, and its scale is sqrt(12 / 48) = 1/2.
    words = np.random.PCG64(3).random_raw(2)
    assert one["lm_head.weight"][0, :2].tolist() == [((int(word) >> 40) / 2**24 - 0.5) / 2 for word in words]
    for name, value in one.items():
        assert value.dtype == np.int64 or np.array_equal(value.astype(np.float32), value), name
