"""The index format ``int16`` under the judge: declared or not, and kernels that are wrong in it alone."""

import types

import numpy as np
import pytest

from qsa.parity import suite
from qsa.parity.backend import Backend, UnsupportedError
from qsa.parity.checks.designs import code_limits
from qsa.parity.contract import Kernel, declared
from qsa.reference import exact
from qsa.reference.append_index import append_index as append_float64
from qsa.reference.geometry import REAL, step_records
from qsa.reference.index import Index
from qsa.reference.key_codes import LARGEST_CODE, NOT_FINITE, encode

BOTH = ["fp32", "int16"]
CYCLE = "accuracy:op=index_cycle,rows=8,values=ordinary,unused=none,start=0,base=0,index_format=int16,seed=51"
KEYS = "accuracy:op=append_index,context=64,index_format=int16,seed=5"
SCORES = "accuracy:op=block_scores,context=1024,rows=2,tail=2,index_format=int16,seed=6"
COVER = "accuracy:op=score_cover,keys={},blocks=65,rows=3,tail=1,unused=none,index_format=int16,seed=33"
CORNERS = "accuracy:op=score_corners,rows=3,index_format=int16,seed=10"


def backend(arithmetic="exact", formats=("fp32", "int16"), **functions):
    """A backend of the exact operations but for ``functions``, in one arithmetic."""
    domain = dict.fromkeys(("nan", "infinity", "subnormal", "unused_rows"), True)
    declaration = {"arithmetic": arithmetic, "index_formats": list(formats), "tail_score": True, "domain": domain}
    given = {"append_index": exact.append_index, "block_scores": exact.block_scores} | functions
    module = types.SimpleNamespace(declaration=declaration, **given)
    return Backend("mine", arithmetic, Kernel(module, declared(module)))


def run(text, under_test):
    return suite.run_case(suite.parse(text), under_test)


def changed(change):
    """block_scores with a changed copy of the index."""

    def block_scores(q_idx, index, steps):
        other = Index(index.max_blocks, index.weight, format=index.format)
        for name in ("pooled", "dead", "pooled_exponent", "dead_exponent"):
            getattr(other, name)[...] = getattr(index, name)
        change(other)
        return exact.block_scores(q_idx, other, steps)

    return block_scores


def no_poison(index):
    for exponents in (index.pooled_exponent, index.dead_exponent):
        exponents[exponents == NOT_FINITE] = 0


def set_to(name, value):
    return lambda index: getattr(index, name).__setitem__(..., value)


@pytest.mark.parametrize("arithmetic", ["exact", "float"])
@pytest.mark.parametrize("text", [KEYS, CYCLE, SCORES, CORNERS, COVER.format("sizes"), COVER.format("special")])
def test_right_kernels_pass(text, arithmetic):
    result = run(text, backend(arithmetic))
    assert result.status == "passed" and result.comparisons


@pytest.mark.parametrize(
    ("text", "change"),
    [
        (COVER.format("sizes"), set_to("pooled_exponent", 2)),
        (COVER.format("ordinary"), set_to("dead_exponent", 9)),
        (COVER.format("dead"), set_to("dead_exponent", 0)),
        (COVER.format("special"), no_poison),
        (CORNERS, no_poison),
        (SCORES, lambda index: np.copyto(index.pooled, index.pooled & -256)),
        (SCORES, lambda index: np.copyto(index.pooled, np.roll(index.pooled, 1, axis=0))),
    ],
    ids=["exponents", "tail", "dead exponent", "special", "corners", "one limb", "off by one"],
)
@pytest.mark.parametrize("arithmetic", ["exact", "float"])
def test_wrong_scores_fail(text, change, arithmetic):
    assert run(text, backend(arithmetic, block_scores=changed(change))).status == "failed"


def after(change):
    def append_index(raw, steps, index):
        exact.append_index(raw, steps, index)
        change(index, sorted({pos // 4 for pos in steps[:, 0].tolist() if pos >= 0 and pos % 4 == 3}))
        return True

    return append_index


def bump(name, by):
    def change(index, blocks):
        array = getattr(index, name)
        array[blocks if name.startswith("pooled") else ...] += by

    return change


@pytest.mark.parametrize(
    ("change", "arithmetics"),
    [
        (bump("pooled_exponent", 1), ("exact", "float")),
        (bump("dead_exponent", -1), ("exact", "float")),
        (bump("pooled", 40), ("exact", "float")),
        (bump("pooled", 1), ("exact",)),
        (bump("dead", 1), ("exact",)),
    ],
    ids=["exponent", "dead exponent", "codes", "a unit", "a unit of the dead key"],
)
def test_wrong_keys_fail(change, arithmetics):
    for arithmetic in arithmetics:
        assert run(CYCLE, backend(arithmetic, append_index=after(change))).status == "failed", arithmetic


def test_codes_that_are_cut_instead_of_rounded_are_outside_the_bound():
    """The bound of encoded keys is half a unit in every dim, of which rounding uses about 1 / sqrt(3)."""

    def cut(raw, steps, index):
        truth = Index(index.max_blocks, index.weight, dtype=np.float64)
        append_float64(raw, steps, truth)
        e = index.pooled_exponent
        exact.append_index(raw, steps, index)
        unit = np.ldexp(1.0, e[:-1, None].astype(int) - 15)
        index.pooled[:-1] = np.trunc(truth.pooled[:-1] / unit)
        return True

    (right,) = [c for c in run(KEYS, backend("float")).comparisons if "pooled" in c.name]
    assert 0.4 < right.measure / right.bound < 0.9
    assert run(KEYS, backend("float", append_index=cut)).status == "failed"


def test_only_declared_formats_are_asked_for():
    few = [c for c in suite.collect(("accuracy",), "float", backend=backend("float", ["fp32"]))]
    assert few and not any("index_format" in case.recipe for case in few)
    both = [c for c in suite.collect(("accuracy",), "float", backend=backend("float"))]
    kinds = {case.recipe["op"] for case in both if case.recipe.get("index_format") == "int16"}
    assert kinds == {"append_index", "block_scores", "score_corners", "score_cover", "index_cycle"}
    for text in (KEYS, SCORES):
        result = run(text, backend("exact", ["fp32"]))
        assert result.status == "unsupported" and "index format int16: not declared (index_formats)" in result.reason


def test_the_declaration_is_checked():
    for wrong, words in ((["fp16"], "'fp16': allowed are fp32, int16"), ([], "is empty")):
        with pytest.raises(ValueError, match=f"declaration.index_formats: {words}"):
            declared(types.SimpleNamespace(declaration={"index_formats": wrong}))
    assert declared(types.SimpleNamespace()).index_formats == ["fp32"]
    index = Index(4, np.ones(REAL.idx_dim), format="int16")
    with pytest.raises(UnsupportedError, match="index format int16"):
        backend(formats=["fp32"]).append_index(np.zeros((1, 128), np.float32), np.zeros((1, 4), np.int32), index)


AGAIN = "pages:op=again,operation={},argument={},index_format=int16,seed=61"


@pytest.mark.parametrize("arithmetic", ["exact", "float"])
@pytest.mark.parametrize("argument", ["pooled", "pooled_exponent", "dead", "dead_exponent", "q_idx"])
def test_scores_kept_of_an_encoded_key_are_seen(arithmetic, argument):
    kept = {}

    def block_scores(q_idx, index, steps):
        if "scores" not in kept:
            kept["scores"] = exact.block_scores(q_idx, index, steps)
        return kept["scores"].copy()

    text = AGAIN.format("block_scores", argument)
    assert run(text, backend(arithmetic)).status == "passed"
    assert run(text, backend(arithmetic, block_scores=block_scores)).status == "failed"


def test_arguments_of_encoded_keys_are_those_of_their_format():
    for text in (
        "pages:op=again,operation=block_scores,argument=dead_exponent,seed=61",
        AGAIN.format("append_index", "dead_exponent"),
        AGAIN.format("select", "scores"),
    ):
        result = run(text, backend())
        assert result.status == "failed" and "argument = " in result.reason


def test_the_limits_of_codes_are_met():
    vectors = code_limits.vectors(np.arange(5 * code_limits.KINDS), np.ones((5 * code_limits.KINDS, 128), np.float32))
    codes, exponents = encode(vectors)
    assert np.abs(codes).max() == LARGEST_CODE and len(set(exponents.tolist())) >= 7
    low = codes.astype(int) - ((codes.astype(int) + 128) >> 8) * 256
    assert (low.min(), low.max()) == (-128, 127)
    scaled = np.ldexp(vectors.astype(np.float64), 15 - exponents[:, None])
    assert (scaled % 1 == 0.5).any()
    # Largest magnitudes that 15 bits hold and that need the next exponent all the same.
    top = np.abs(scaled).max(axis=1)
    assert {LARGEST_CODE, (LARGEST_CODE + 1) / 2, (2**15 - 1) / 2} <= set(top.tolist())
    assert 2**36 < int(codes[0].astype(int) @ codes[0].astype(int)) < 2**37


@pytest.mark.parametrize("again", [False, True])
def test_an_append_makes_keys_at_the_limits_of_their_codes(again):
    index = Index(6, code_limits.weight(51))
    exact.append_index(code_limits.raw_keys(20, again), step_records(np.arange(20)), index)
    top = np.ldexp(np.abs(index.pooled[:5]).max(axis=1).astype(np.float64), 13)
    assert np.abs(top - code_limits.LARGEST).max() < 2.0**-7
    assert encode(index.pooled[:5])[1].tolist() == [2, 3, 3, 3, 3]


def test_the_indexer_of_encoded_keys_is_seen_from_raw_keys_to_cells():
    case = "selection:op=indexer,rule=blocks,context=2048,rows=3,tail=1,index_format=int16,seed=4"

    def block_scores(q_idx, index, steps):
        plain = Index(index.max_blocks, index.weight)
        plain.pooled[:], plain.dead[:] = index.pooled_values(), index.dead_values()
        return exact.block_scores(q_idx, plain, steps)

    for arithmetic in ("exact", "float"):
        assert run(case, backend(arithmetic)).status == "passed"
    # Decoded keys and a float32 query: other bits, within the bound.
    assert run(case, backend(block_scores=block_scores)).status == "failed"
    assert run(case, backend("float", block_scores=block_scores)).status == "passed"
    assert run(case, backend(block_scores=changed(set_to("pooled_exponent", 1)))).status == "failed"
