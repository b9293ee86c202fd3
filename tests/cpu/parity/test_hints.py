"""The hint at the arithmetic: where a kernel of somebody else's fails in bytes alone (known-faults N2)."""

import types

import numpy as np
import pytest

from qsa.parity import suite
from qsa.parity.backend import Backend
from qsa.parity.compare import hints
from qsa.parity.compare.comparison import equal, verdict
from qsa.parity.contract import Kernel, declared
from qsa.reference import exact

SCORES = "accuracy:op=block_scores,context=1024,rows=2,tail=2,seed=6"
BYTES = equal("bytes", np.zeros(4), np.ones(4), ("dim",))
TEXT = verdict("golden text", 1, 0, "a text has one right wording", size=1, bad=1)
BOUND = verdict("kernel", 3, 2, "four roundings", size=1, bad=1)
GOOD = verdict("kernel", 1, 2, "four roundings", size=1)


@pytest.mark.parametrize("found", [[BYTES], [TEXT], [GOOD, TEXT, BYTES]])
def test_bytes_alone_are_hinted_at(found):
    assert 'declare {"arithmetic": "float"}' in hints.arithmetic("mine.py", "exact", ["exact"], found)
    assert "pass --arithmetic float" in hints.arithmetic("mine.py", "exact", ["exact", "float"], found)


@pytest.mark.parametrize(
    ("name", "asked", "found"),
    [
        ("mine.py", "exact", [BYTES, BOUND]),
        ("mine.py", "exact", [GOOD]),
        ("mine.py", "exact", []),
        ("mine.py", "float", [BYTES]),
        ("cpu", "exact", [BYTES]),
        ("cuda", "exact", [TEXT]),
    ],
)
def test_where_it_would_mislead_there_is_none(name, asked, found):
    assert hints.arithmetic(name, asked, ["exact", "float"], found) == ""


@pytest.mark.parametrize("arithmetic", ["exact", ["exact", "float"], "float"])
def test_a_right_float32_kernel_is_told(arithmetic):
    def block_scores(q_idx, index, steps):
        keys = np.concatenate([index.pooled, index.dead[None]])
        dots = np.maximum(np.einsum("rhd,bd->rbh", q_idx, keys), 0).sum(-1, dtype=np.float32)
        for row, (_, n_kv, n_bid, _) in enumerate(steps.tolist()):
            dots[row, n_bid] = dots[row, -1] + np.float32(1e9 if n_kv % 4 else 0)
        return np.ascontiguousarray(dots[:, :-1])

    module = types.SimpleNamespace(
        declaration={"arithmetic": arithmetic, "tail_score": True}, block_scores=block_scores, select=exact.select
    )
    backend = Backend("mine", None, Kernel(module, declared(module)))
    result = suite.run_case(suite.parse("accuracy:op=score_corners,rows=3,seed=10"), backend)
    lines = list(result.lines(backend))
    assert result.status == ("passed" if arithmetic == "float" else "failed")
    assert sum("hint: held to bytes" in line for line in lines) == (arithmetic != "float")
    if arithmetic != "float":
        assert suite.run_case(suite.parse(SCORES), backend).status == "passed"
