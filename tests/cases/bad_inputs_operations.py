"""Bad arguments of the five operations, of the reference, the exact arithmetic and the CPU kernels alike."""

import copy

import numpy as np

import qsa.reference
from qsa.kernels import cpu
from qsa.reference import exact
from qsa.reference.geometry import step_records
from qsa.reference.index import Index
from qsa.reference.kv import PagedKV
from support.arrays import generator
from support.attention import SMALL, fill

from .bad_inputs import Bad, Base, refused

CELLS = 64


def normal(*shape):
    return generator(1).standard_normal(shape).astype(np.float32)


def readonly(array):
    array = np.array(array)
    array.setflags(write=False)
    return array


def steps(*positions):
    return step_records(positions, geometry=SMALL)


def changed_step(column, value, row=1):
    def change(given):
        given["steps"] = given["steps"].copy()
        given["steps"][row, column] = value

    return change


def append_kv():
    k = normal(2, SMALL.n_head_kv, SMALL.head_dim)
    return {"k": k, "v": -k, "kv": PagedKV.new("int8", CELLS, 4, SMALL, host=True), "steps": steps(0, 7)}


def two(given):
    return [given["kv"], copy.deepcopy(given["kv"])]


def put(name, index, value):
    def change(given):
        given[name] = given[name].copy()
        given[name][index] = value

    return change


def entry(index, value):
    def change(given):
        given["kv"].table[index] = value

    return change


def frozen_pool(given):
    given["kv"].pool.k.codes.setflags(write=False)


APPEND_KV = {
    "k a list": ({"k": lambda given: given["k"].tolist()}, ValueError, ("k: list", "NumPy array")),
    "k complex": ({"k": lambda given: given["k"] * 1j}, ValueError, ("k: complex64", "float32")),
    "v of strings": ({"v": lambda given: given["v"].astype(str)}, ValueError, ("v: <U", "float32")),
    "k of two axes": ({"k": lambda given: given["k"][0]}, ValueError, ("k, v: (2, 64)", "[rows, n_head_kv, head_dim]")),
    "v of fewer rows": ({"v": lambda given: given["v"][:1]}, ValueError, ("k, v: (2, 2, 64), (1, 2, 64)", "both")),
    "one head": (
        {"k": lambda given: given["k"][:, :1], "v": lambda given: given["v"][:, :1]},
        ValueError,
        ("k, v: (2, 1, 64)", "[2, 2, 64]"),
    ),
    "k not finite": ({"k": put("k", (1, 0, 3), np.nan)}, ValueError, ("k: row 1", "finite")),
    "v infinite": ({"v": put("v", (0, 1, 3), -np.inf)}, ValueError, ("v: row 0", "finite")),
    "v beyond its scale": ({"v": put("v", (1, 1, 0), 1e7)}, ValueError, ("v: row 1", "65504")),
    "steps a list": ({"steps": [[0, 1, 0, 1]] * 2}, ValueError, ("steps: list", "NumPy array")),
    "steps of 64 bits": (
        {"steps": lambda given: given["steps"].astype(np.int64)},
        ValueError,
        ("steps: int64", "int32"),
    ),
    "steps of one row": ({"steps": lambda given: given["steps"][:1]}, ValueError, ("steps: int32 (1, 4)", "(2, 4)")),
    "a position below -1": ({"steps": changed_step(0, -2)}, ValueError, ("steps: row 1: pos = -2", "at least -1")),
    "a negative count": ({"steps": changed_step(1, -5)}, ValueError, ("steps: row 1: n_kv = -5", "at least 0")),
    "a position beyond": ({"steps": changed_step(0, CELLS)}, ValueError, ("steps: pos = 64", "holds 64 cells")),
    "a position twice": ({"steps": steps(3, 3)}, ValueError, ("steps: two rows of slot 0", "position")),
    "kv missing": ({"kv": lambda given: []}, ValueError, ("kv: []", "PagedKV")),
    "kv a pool": ({"kv": lambda given: given["kv"].pool}, ValueError, ("kv: ", "PagedKV")),
    "kv with a number": ({"kv": lambda given: [given["kv"], 3]}, ValueError, ("kv: a list with a int", "PagedKV")),
    "no slots": ({"kv": two}, ValueError, ("slots: missing", "2 slots")),
    "slots of floats": ({"kv": two, "slots": np.zeros(2)}, ValueError, ("slots: float64", "int32")),
    "a slot beyond": ({"kv": two, "slots": np.array([0, 2], np.int32)}, ValueError, ("slots: 0 to 2", "from 0 to 1")),
    "slots too many": ({"slots": np.zeros(3, np.int32)}, ValueError, ("slots: int32 (3,)", "(2,)")),
    "a table entry beyond": ({"kv": entry(9, 16)}, IndexError, ("kv[0].table[9] = 16", "0 to 15", "-1")),
    "a table entry below": ({"kv": entry(9, -3)}, IndexError, ("kv[0].table[9] = -3", "16 pages")),
    "a page twice": ({"kv": entry(1, 0)}, ValueError, ("kv[0].table", "logical pages 0 and 1", "page 0")),
    "a page of two slots": (
        {"kv": lambda given: [given["kv"], given["kv"]], "slots": np.array([0, 1], np.int32), "steps": steps(5, 6)},
        ValueError,
        ("slots 0 and 1", "page 1", "its own"),
    ),
    "a read-only pool": ({"kv": frozen_pool}, ValueError, ("kv[0]", "read-only")),
}


def attend():
    kv, _, _ = fill(generator(1), CELLS, "int8", 4, SMALL)
    q, ids = normal(2, SMALL.n_head, SMALL.head_dim), np.full((2, 40), -1, np.int32)
    records = steps(20, 35)
    for row, width in enumerate(records[:, 3]):
        ids[row, :width] = np.arange(width)
    return {"q": q, "kv": kv, "ids": ids, "steps": records, "slots": None, "out": np.full(q.shape, 7, np.float32)}


ATTEND = {
    "q a list": ({"q": lambda given: given["q"].tolist()}, ValueError, ("q: list", "NumPy array")),
    "q complex": ({"q": lambda given: given["q"] * 1j}, ValueError, ("q: complex64", "float32")),
    "q of two axes": ({"q": lambda given: given["q"][0]}, ValueError, ("q: shape (4, 64)", "[rows, n_head, head_dim]")),
    "q of other heads": ({"q": lambda given: given["q"][:, :3]}, ValueError, ("q: shape (2, 3, 64)", "[rows, 4, 64]")),
    "q of other dims": ({"q": lambda given: given["q"][..., :8]}, ValueError, ("q: shape (2, 4, 8)", "[rows, 4, 64]")),
    "ids a list": ({"ids": lambda given: given["ids"].tolist()}, ValueError, ("ids: list", "NumPy array")),
    "ids of floats": ({"ids": lambda given: given["ids"] * 1.0}, ValueError, ("ids: float64", "int32")),
    "ids of one axis": ({"ids": lambda given: given["ids"][0]}, ValueError, ("ids: shape (40,)", "[2, ")),
    "ids too narrow": ({"ids": lambda given: given["ids"][:, :9]}, ValueError, ("ids: shape (2, 9)", "or more")),
    "an id beyond": ({"ids": put("ids", (1, 4), 64)}, IndexError, ("cell 64", "0 to 63")),
    "an id below": ({"ids": put("ids", (0, 4), -2)}, IndexError, ("cell -2", "0 to 63")),
    "an id of 64 bits": (
        {"ids": lambda given: given["ids"].astype(np.int64) + (np.arange(40) == 3) * 2**32},
        IndexError,
        ("cell 4294967299", "0 to 63"),
    ),
    "steps of one row": ({"steps": lambda given: given["steps"][:1]}, ValueError, ("steps: int32 (1, 4)", "(2, 4)")),
    "steps of floats": ({"steps": lambda given: given["steps"] * 1.0}, ValueError, ("steps: float64", "int32")),
    "a negative width": ({"steps": changed_step(3, -3)}, ValueError, ("steps: row 1: width = -3", "at least 0")),
    "kv none": ({"kv": lambda given: ()}, ValueError, ("kv: ()", "PagedKV")),
    "kv a string": ({"kv": "int8"}, ValueError, ("kv: 'int8'", "PagedKV")),
    "no slots": ({"kv": two}, ValueError, ("slots: missing", "2 slots")),
    "a slot below": ({"kv": two, "slots": np.array([-1, 0], np.int32)}, ValueError, ("slots: -1 to 0", "0 to 1")),
    "a table entry beyond": ({"kv": entry(0, 99)}, IndexError, ("kv[0].table[0] = 99", "0 to 15")),
    "out of other rows": (
        {"out": np.zeros((1, 4, 64), np.float32)},
        ValueError,
        ("out: shape (1, 4, 64)", "(2, 4, 64)"),
    ),
    "out of integers": ({"out": np.zeros((2, 4, 64), np.int32)}, ValueError, ("out: int32", "float")),
    "out read-only": ({"out": readonly(np.zeros((2, 4, 64), np.float32))}, ValueError, ("out: read-only", "written")),
    "out a list": ({"out": lambda given: [0.0]}, ValueError, ("out: list", "NumPy array")),
}


def index(dtype):
    made = Index(6, np.ones(SMALL.idx_dim), SMALL, dtype)
    made.pooled[:], made.dead[:] = 1, 2
    return made


def append_index(dtype):
    return lambda: {"raw": normal(2, SMALL.idx_dim), "steps": steps(4, 5), "index": index(dtype)}


def frozen_tail(given):
    given["index"].tail.setflags(write=False)


APPEND_INDEX = {
    "raw a list": ({"raw": lambda given: given["raw"].tolist()}, ValueError, ("raw: list", "NumPy array")),
    "raw of one axis": ({"raw": lambda given: given["raw"][0]}, ValueError, ("raw: shape (32,)", "[rows, 32]")),
    "raw of other dims": ({"raw": lambda given: given["raw"][:, :5]}, ValueError, ("raw: shape (2, 5)", "[rows, 32]")),
    "raw complex": ({"raw": lambda given: given["raw"] * 1j}, ValueError, ("raw: complex64", "float32")),
    "index none": ({"index": 3}, ValueError, ("index: int", "Index")),
    "a block beyond": ({"steps": steps(4, 24)}, ValueError, ("steps: n_bid = 6", "6 blocks")),
    "a position beyond its count": ({"steps": changed_step(0, 24)}, ValueError, ("steps: pos = 24", "6 blocks")),
    "a position below": ({"steps": changed_step(0, -9)}, ValueError, ("steps: row 1: pos = -9", "at least -1")),
    "steps of three": ({"steps": lambda given: given["steps"][:, :3]}, ValueError, ("steps: int32 (2, 3)", "(2, 4)")),
    "a read-only tail": ({"index": frozen_tail}, ValueError, ("index.tail: read-only", "written")),
}


def block_scores(dtype):
    def make():
        out = np.full((2, 6), 7, dtype)
        q_idx = normal(2, SMALL.idx_heads, SMALL.idx_dim)
        return {"q_idx": q_idx, "index": index(dtype), "steps": steps(4, 18), "out": out}

    return make


BLOCK_SCORES = {
    "q_idx a list": ({"q_idx": [[1.0]]}, ValueError, ("q_idx: list", "NumPy array")),
    "q_idx of two axes": (
        {"q_idx": lambda given: given["q_idx"][0]},
        ValueError,
        ("q_idx: shape (2, 32)", "[rows, 2, 32]"),
    ),
    "q_idx of one head": (
        {"q_idx": lambda given: given["q_idx"][:, :1]},
        ValueError,
        ("q_idx: shape", "[rows, 2, 32]"),
    ),
    "index a dict": ({"index": lambda given: {}}, ValueError, ("index: dict", "Index")),
    "a block beyond": ({"steps": steps(4, 24)}, ValueError, ("steps: n_bid = 6", "6 blocks")),
    "a negative block": ({"steps": changed_step(2, -1)}, ValueError, ("steps: row 1: n_bid = -1", "at least 0")),
    "steps of other rows": ({"steps": steps(4)}, ValueError, ("steps: int32 (1, 4)", "(2, 4)")),
    "out of other blocks": ({"out": np.zeros((2, 5), np.float32)}, ValueError, ("out: shape (2, 5)", "(2, 6)")),
    "out of integers": ({"out": np.zeros((2, 6), np.int64)}, ValueError, ("out: int64", "float")),
    "out read-only": ({"out": readonly(np.zeros((2, 6), np.float32))}, ValueError, ("out: read-only", "written")),
}


def select():
    return {
        "scores": normal(2, 16),
        "steps": steps(20, 51),
        "ids": np.full((2, 40), 7, np.int32),
        "rule": "blocks",
        "geometry": SMALL,
    }


SELECT = {
    "scores a list": ({"scores": [[1.0]]}, ValueError, ("scores: list", "NumPy array")),
    "scores of one axis": (
        {"scores": lambda given: given["scores"][0]},
        ValueError,
        ("scores: shape (16,)", "[rows, bl"),
    ),
    "scores complex": ({"scores": lambda given: given["scores"] * 1j}, ValueError, ("scores: complex64", "float32")),
    "too few scores": ({"scores": lambda given: given["scores"][:, :9]}, ValueError, ("row 1: n_bid = 13", "9 scores")),
    "an unknown rule": ({"rule": "best"}, ValueError, ("rule = 'best'", "blocks, cells")),
    "steps of the other rule": ({"rule": "cells"}, ValueError, ("steps: row 1", "under 'cells'")),
    "a step that is none": ({"steps": changed_step(3, 5)}, ValueError, ("steps: row 1", "52 cells")),
    "ids too narrow": ({"ids": np.zeros((2, 9), np.int32)}, ValueError, ("ids: shape (2, 9)", "or more")),
    "ids of floats": ({"ids": np.zeros((2, 40))}, ValueError, ("ids: float64", "int32")),
    "ids read-only": ({"ids": readonly(np.zeros((2, 40), np.int32))}, ValueError, ("ids: read-only", "written")),
}

CPU_ATTEND = {
    "an unknown schedule": (
        {"schedule": "fast"},
        ValueError,
        ("schedule = 'fast'", "batch, step, split, multi, prompt"),
    ),
    "no split": ({"schedule": "split", "splits": 0}, ValueError, ("splits = 0", "from 1 to 20")),
    "too many splits": ({"schedule": "split", "splits": 21}, ValueError, ("splits = 21", "from 1 to 20")),
    "half a split": ({"schedule": "split", "splits": 1.5}, ValueError, ("splits = 1.5", "integer")),
    "splits of a step": ({"schedule": "step", "splits": 2}, ValueError, ("splits = 2", "'step'")),
    "an unknown arithmetic": ({"arithmetic": "bf16"}, ValueError, ("arithmetic = 'bf16'", "exact, float")),
}


def _rows() -> dict[str, Bad]:
    found: dict[str, Bad] = {}
    for kind, module, wide in (
        ("reference", qsa.reference, np.float64),
        ("exact", exact, np.float32),
        ("cpu", cpu, np.float32),
    ):
        for name, make, rows in (
            ("append_kv", append_kv, APPEND_KV),
            ("attend", attend, ATTEND),
            ("append_index", append_index(wide), APPEND_INDEX),
            ("block_scores", block_scores(wide), BLOCK_SCORES),
            ("select", select, SELECT),
        ):
            base = Base(getattr(module, name), make)
            found |= {f"{kind} {name}: {row}": bad for row, bad in refused(base, rows).items()}
    more = {
        "attend": refused(Base(cpu.attend, attend), CPU_ATTEND),
        "block_scores": refused(
            Base(cpu.block_scores, block_scores(np.float32)),
            {"an unknown schedule": ({"schedule": "fast"}, ValueError, ("schedule = 'fast'", "warp, multi_query"))},
        ),
        "select": refused(
            Base(cpu.select, select),
            {"an unknown schedule": ({"schedule": "fast"}, ValueError, ("schedule = 'fast'", "registers, wide"))},
        ),
    }
    return found | {f"cpu {name}: {row}": bad for name, rows in more.items() for row, bad in rows.items()}


ROWS = _rows()
