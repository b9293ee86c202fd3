"""The ports that tests run, what each needs, the cases of a quick run, and wrong twins of a port."""

import functools
import importlib.util
import os
import shutil
import sys

import numpy as np
import pytest

from qsa.parity import suite
from qsa.parity.backend import Backend
from qsa.parity.contract.arrays import to_numpy

MODULES = ("accuracy", "selection", "split", "pages")

TORCH = ("torch_sdpa:Float32", "torch_sdpa:BFloat16")
PUBLISHED = tuple(f"transformers_qsa:{kind}{type}" for kind in ("Eager", "Sdpa") for type in ("Float32", "BFloat16"))
TRITON = ("triton_attend:Float32", "triton_attend:BFloat16")
GGML = ("ggml:Q8_0", "ggml:Q4_0")
PLAIN = ("numpy_float", "c_kernel")
ELSEWHERE = ("vllm", "sglang", "flashinfer")
"""Ports of packages that no test environment has."""

RUNNING = [
    *PLAIN,
    *GGML,
    *(pytest.param(name, marks=pytest.mark.torch) for name in (*TORCH, *PUBLISHED, *TRITON)),
]

SMALL = {"accuracy": 1024, "selection": 8192, "split": 500, "pages": 300}
"""Module -> the longest context of a quick run."""


def missing(name):
    """What a port needs and does not find here, or None. An ImportError of any other cause is a fault of the port."""
    if name == "c_kernel":
        return None if shutil.which(os.environ.get("CC", "cc")) else "a C compiler"
    needs = {
        "numpy_float": (),
        "ggml": ("gguf",),
        "torch_sdpa": ("torch",),
        "transformers_qsa": ("torch", "transformers"),
    }
    needs["triton_attend"] = ("torch", "triton")
    for library in needs[name.partition(":")[0]]:
        if importlib.util.find_spec(library) is None:
            return f"{library} (extra `ports`)"
    if name in TRITON and os.environ.get("TRITON_INTERPRET") != "1":
        import torch

        return None if torch.cuda.is_available() else "a CUDA device, or TRITON_INTERPRET=1"
    return None


def port(name):
    """The Backend of a port; the test is skipped where the port's library is missing."""
    absent = missing(name)
    if absent:
        pytest.skip(f"{name} needs {absent}")
    return Backend(f"qsa.parity.ports.{name}")


def quick(backend):
    """The cases of a quick run: short contexts, and of the long ones a case of each operation."""
    long = {
        "op=attend,format=own,scores=peaked,context=16384",
        "op=block_scores,context=16384",
        "op=append_index",
        "op=sparse_attention",
    }
    return [
        case
        for case in suite.collect(MODULES, "float", backend=backend)
        if case.recipe.get("context", 0) <= SMALL[case.module] or any(part in case.text for part in long)
    ]


def report(results, status):
    """The text of the results that have ``status``."""
    return "\n".join(f"{one.case.text}: {line}" for one in results if one.status == status for line in one.lines(None))


def like(array, values):
    """``values`` as the kind of array that ``array`` is, in its dtype."""
    if type(array).__module__ == "torch":
        return sys.modules["torch"].from_numpy(np.ascontiguousarray(values)).to(array.dtype).to(array.device)
    return values.astype(array.dtype)


OTHER_HEADS = [*range(12, 24), *range(12)]


def _dropped_cell(attend, q, kv, ids, steps):
    steps = steps + 0
    steps[:, 3] -= 1
    return attend(q, kv, ids, steps)


def _other_kv_head(attend, q, kv, ids, steps):
    return attend(q[:, OTHER_HEADS], kv, ids, steps)[:, OTHER_HEADS]


def _scale(attend, q, kv, ids, steps):
    return attend(q * 1.02, kv, ids, steps)


def _no_gate(attend_gated, q, gate, kv, ids, steps):
    return attend_gated(q, gate * 0 + 100, kv, ids, steps)


def _lower_scores(select, scores, steps, **options):
    # Scores that share their leading 4 bits are taken for equal.
    coarse = to_numpy(scores).astype(np.float32).view(np.int32) & ~0xFFFFF
    return select(like(scores, coarse.view(np.float32)), steps, **options)


def _late_block(indexer, q_idx, raw, *rest, **options):
    return indexer(q_idx, raw[[0, *range(len(raw) - 1)]], *rest, **options)


def _late_in_one_call(sparse_attention, q, q_idx, raw, *rest, **options):
    return sparse_attention(q, q_idx, raw[[0, *range(len(raw) - 1)]], *rest, **options)


def _dropped_head(block_scores, q_idx, index, steps):
    q_idx = q_idx + 0
    q_idx[:, 3] = 0
    return block_scores(q_idx, index, steps)


def _swapped(append, cache, k, v, positions):
    return append(cache, k[:, [1, 0]], v, positions)


_ATTEND = "accuracy:op=attend,format=own,scores={},context={},rows=2,tail={},seed={}"
WRONG = {
    "dropped cell": ("attend", _dropped_cell, _ATTEND.format("ordinary", 500, 0, 1)),
    "dropped cell among other cells": (
        "attend",
        _dropped_cell,
        "pages:op=attend,format=own,page=4,order=identity,missing=none,context=300,tail=2,seed=1",
    ),
    "other KV head": ("attend", _other_kv_head, _ATTEND.format("ordinary", 500, 0, 1)),
    "scale off by 2 %": ("attend", _scale, _ATTEND.format("ordinary", 500, 0, 1)),
    "KV heads swapped in storage": ("append", _swapped, "accuracy:op=append_kv,format=own,rows=16,seed=4"),
    "gate left out": ("attend_gated", _no_gate, "accuracy:op=gated,format=own,context=60,rows=1,tail=3,seed=8"),
    "lower scores": (
        "select",
        _lower_scores,
        "selection:op=select,rule={},scores=continuous,context=8192,rows=2,tail=1,seed=2",
    ),
    "block a cell late": ("indexer", _late_block, "selection:op=indexer,rule={},context=8192,rows=4,tail=3,seed=4"),
    "block a cell late in one call": (
        "sparse_attention",
        _late_in_one_call,
        "accuracy:op=sparse_attention,format=own,rule={},context=8192,rows=3,tail=1,seed=9",
    ),
    "indexer head left out": (
        "block_scores",
        _dropped_head,
        "accuracy:op=block_scores,context=1024,rows=1,tail=0,seed=6",
    ),
}
"""Fault -> (the function that has it, the wrong function, the case that finds it)."""


class Twin:
    """A port with one wrong function."""

    def __init__(self, port, name, wrong):
        right = getattr(port, name)
        self.port = port
        setattr(self, name, functools.wraps(right)(functools.partial(wrong, right)))

    def __getattr__(self, name):
        return getattr(self.port, name)


def twin(backend, name, wrong, monkeypatch):
    """The Backend of ``backend``'s port with the function ``name`` replaced by ``wrong``, which gets the right one."""
    monkeypatch.setattr(sys.modules[__name__], "TWIN", Twin(backend.module, name, wrong), raising=False)
    return Backend(f"{__name__}:TWIN")
