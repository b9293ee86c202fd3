"""The disagreements that docs/ports.md reports and that a CPU can show, each with its case."""

import math

import numpy as np
import pytest

import support.ports as ports
from qsa.parity import suite
from qsa.parity.backend import Backend
from qsa.reference.geometry import step_records
from qsa.reference.index import Index

ATTEND = "accuracy:op=attend,format=own,scores={},context=500,rows=2,tail=0,seed=1"
GATED = "accuracy:op=gated,format=own,context=60,rows=1,tail=3,seed=8"
INDEXER = "selection:op=indexer,rule=blocks,context=8192,rows=4,tail=3,seed=4"
KEYS = "accuracy:op=append_index,context=66,seed=5"
LEVELS = "selection:op=select,rule=blocks,scores=equal,context=2052,rows=1,tail=2,seed=1"
SPECIAL = "selection:op=select,rule=blocks,scores=special,context=2056,rows=1,tail=3,seed=1"


@pytest.fixture
def first(monkeypatch):
    """A function that gives the first comparison of a case on an object."""

    def comparison(kernel, text):
        monkeypatch.setattr(ports, "TWIN", kernel, raising=False)
        result = suite.run_case(suite.parse(text), Backend("support.ports:TWIN"))
        assert result.comparisons, result.reason
        return result.comparisons[0]

    return comparison


def declaring(kernel, **declaration):
    """``kernel`` with more declared."""
    kernel.declaration = kernel.declaration | declaration
    return kernel


@pytest.mark.torch
def test_torch_topk_breaks_ties_by_no_order_of_ids(first):
    port = ports.port("torch_sdpa:Float32").module
    assert first(port, LEVELS).passed
    strict = first(declaring(port, ties="lowest"), LEVELS)
    assert not strict.passed and strict.figures["tie"] and not strict.figures["wrong"]


@pytest.mark.torch
def test_torch_topk_takes_nan_first(first):
    port = ports.port("torch_sdpa:Float32").module
    assert first(port, SPECIAL).passed
    assert first(declaring(port, domain={"nan": True}), SPECIAL).figures["wrong"]


@pytest.mark.torch
def test_the_published_indexer_leaves_out_another_of_513_equal_blocks():
    torch = pytest.importorskip("torch")
    port = ports.port("transformers_qsa:EagerFloat32").module
    cells = 513 * 4
    rope, steps = torch.from_numpy(Index(514, np.ones(128)).rope), torch.from_numpy(step_records([cells - 1]))
    (ids,) = port.indexer(torch.ones(1, 4, 128), torch.zeros(cells, 128), torch.ones(128), rope, steps)
    # Block 512 where ties go to the lower index.
    assert len(set(ids.tolist())) == 2048 and set(range(cells)) - set(ids.tolist()) != {2048, 2049, 2050, 2051}


@pytest.mark.torch
def test_bf16_keys_of_the_published_indexer_select_other_blocks(first):
    port = ports.port("transformers_qsa:SdpaBFloat16").module
    declared = first(port, INDEXER)
    assert declared.passed and declared.figures["rounding"]
    types = port.declaration["types"] | {"index_keys": "float32"}
    assert first(declaring(port, types=types), INDEXER).figures["wrong"] == declared.figures["rounding"]


@pytest.mark.torch
@pytest.mark.parametrize(("scores", "share"), [("flat", 0.3), ("ordinary", 0.3), ("peaked", None)])
def test_a_scaled_query_that_is_rounded_again_is_off_on_peaked_scores(scores, share, first):
    """What SGLang's kernel does: q times scale times log2 e, rounded to bf16. Shown by a kernel that does the same."""
    right = ports.port("torch_sdpa:BFloat16").module

    class Twice(type(right)):
        def attend(self, q, kv, ids, steps):
            # The kernel multiplies by 1/16 itself, and e^(x ln 2) is 2^x.
            again = (q * (math.log2(math.e) / 16)).to(q.dtype).float() * (16 * math.log(2))
            wide = super().attend(again, kv.float(), ids, steps)
            return wide.to(q.dtype)

    assert first(right, ATTEND.format(scores)).share < 0.3
    found = first(Twice(), ATTEND.format(scores))
    assert found.share > 1.5 if share is None else found.share < share


@pytest.mark.torch
def test_an_output_that_is_rounded_before_the_gate_stays_within_its_bound(first):
    """What vLLM and the published code in bf16 do. The bound has room for it: two roundings of the gated output."""
    once = ports.port("torch_sdpa:BFloat16").module

    class Gated(type(once)):
        early = False

        def attend_gated(self, q, gate, kv, ids, steps):
            out = super().attend(q.float(), kv.float(), ids, steps)
            out = out.to(q.dtype).float() if self.early else out
            return (out * gate.float().sigmoid()).to(q.dtype)

    late, early = Gated(), Gated()
    early.early = True
    late, early = first(late, GATED), first(early, GATED)
    assert late.passed and early.passed and early.measure > 1.2 * late.measure


def test_raw_keys_in_fp16_are_hundreds_of_bounds_off_where_they_are_not_declared(first):
    port = ports.port("ggml:Q8_0").module
    assert first(port, KEYS).passed
    assert 100 < first(declaring(port, types={}), KEYS).share < 1000
