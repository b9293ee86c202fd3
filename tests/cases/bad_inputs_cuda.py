"""Bad arguments of the CUDA operations, which need no device: the simulator's functions are the same sources."""

import numpy as np

from qsa.reference.kv import PagedKV
from qsa.reference.sampler import Sampling
from support import simulated
from support.attention import SMALL

from .bad_inputs import Base, refused
from .bad_inputs_operations import append_index, append_kv, attend, block_scores, select, steps

SAMPLE = simulated.simulator.load("sampler").sample
DEVICE = simulated.simulator.load("device")


def on_device(make, *names):
    """The arguments of ``make`` with its containers on the device."""

    def made():
        given = make()
        return {name: simulated.to_device(value) if name in names else value for name, value in given.items()}

    return made


def strided(name):
    return lambda given: np.repeat(given[name], 2, axis=-1)[..., ::2]


APPEND_KV = {
    "k a list": ({"k": lambda given: given["k"].tolist()}, ValueError, ("k: list", "array on the device")),
    "k of float64": (
        {"k": lambda given: given["k"].astype(float)},
        ValueError,
        ("k: float64", "must be float32 (2, 2, 64)"),
    ),
    "v of one row": ({"v": lambda given: given["v"][:1]}, ValueError, ("v: float32 (1, 2, 64)", "(2, 2, 64)")),
    "k strided": ({"k": strided("k")}, ValueError, ("k: strides", "C-contiguous")),
    "steps of 64 bits": (
        {"steps": lambda given: given["steps"].astype(np.int64)},
        ValueError,
        ("steps: int64", "int32"),
    ),
    "kv none": ({"kv": lambda given: []}, ValueError, ("kv: []", "DeviceKV")),
    "kv on the host": ({"kv": PagedKV.new("int8", 64, 4, SMALL)}, ValueError, ("kv: PagedKV", "DeviceKV")),
    "kv a number": ({"kv": 3}, ValueError, ("kv: int", "DeviceKV")),
    "no slots": ({"kv": lambda given: [given["kv"]] * 2}, ValueError, ("slots: missing", "2 slots")),
    "slots of one row": ({"slots": np.zeros(1, np.int32)}, ValueError, ("slots: int32 (1,)", "(2,)")),
    "one for two slots": (
        {"kv": lambda given: [given["kv"]] * 2, "slots": np.zeros(2, np.int32)},
        ValueError,
        ("slots 0 and 1", "one DeviceKV"),
    ),
}

ATTEND = {
    "q of float16": (
        {"q": lambda given: given["q"].astype(np.float16)},
        ValueError,
        ("q: float16", "float32 (2, 4, 64)"),
    ),
    "q of other heads": (
        {"q": lambda given: given["q"][:, :3].copy()},
        ValueError,
        ("q: float32 (2, 3, 64)", "(2, 4, 64)"),
    ),
    "ids of one axis": ({"ids": lambda given: given["ids"][0]}, ValueError, ("ids: shape (40,)", "[rows, cap]")),
    "ids of 64 bits": ({"ids": lambda given: given["ids"].astype(np.int64)}, ValueError, ("ids: int64", "int32")),
    "steps strided": ({"steps": strided("steps")}, ValueError, ("steps: strides", "C-contiguous")),
    "kv on the host": ({"kv": PagedKV.new("int8", 64, 4, SMALL)}, ValueError, ("kv: PagedKV", "DeviceKV")),
    "no slots": ({"kv": lambda given: [given["kv"]] * 2}, ValueError, ("slots: ", "every row", "list of 2")),
    "out of other rows": (
        {"out": np.zeros((1, 4, 64), np.float32)},
        ValueError,
        ("out: float32 (1, 4, 64)", "(2, 4, 64)"),
    ),
    "an unknown schedule": ({"schedule": "fast"}, ValueError, ("schedule = 'fast'", "batch, step, split")),
    "too many splits": ({"schedule": "split", "splits": 99}, ValueError, ("splits = 99", "from 1 to 20")),
    "splits of a step": ({"schedule": "step", "splits": 2}, ValueError, ("splits = 2", "'step'")),
    "an unknown arithmetic": ({"arithmetic": "bf16"}, ValueError, ("arithmetic = 'bf16'", "exact and float")),
}

APPEND_INDEX = {
    "raw of float64": (
        {"raw": lambda given: given["raw"].astype(float)},
        ValueError,
        ("raw: float64", "float32 (2, 32)"),
    ),
    "raw of other dims": (
        {"raw": lambda given: given["raw"][:, :16].copy()},
        ValueError,
        ("raw: float32 (2, 16)", "(2, 32)"),
    ),
    "steps of one row": ({"steps": steps(4)}, ValueError, ("steps: int32 (1, 4)", "(2, 4)")),
    "index a number": ({"index": 3}, ValueError, ("index: int", "DeviceIndex")),
}

BLOCK_SCORES = {
    "q_idx of float64": (
        {"q_idx": lambda given: given["q_idx"] * np.float64(1)},
        ValueError,
        ("q_idx: float64", "float32"),
    ),
    "q_idx of one head": (
        {"q_idx": lambda given: given["q_idx"][:, :1].copy()},
        ValueError,
        ("q_idx: float32 (2, 1, 32)",),
    ),
    "index on the host": ({"index": lambda given: given["steps"]}, ValueError, ("index: ndarray", "DeviceIndex")),
    "out of other blocks": ({"out": np.zeros((2, 5), np.float32)}, ValueError, ("out: float32 (2, 5)", "(2, 6)")),
    "an unknown schedule": ({"schedule": "fast"}, ValueError, ("schedule = 'fast'", "warp, multi_query")),
}

SELECT = {
    "scores of one axis": (
        {"scores": lambda given: given["scores"][0]},
        ValueError,
        ("scores: shape (16,)", "[rows, bl"),
    ),
    "scores of float64": ({"scores": lambda given: given["scores"].astype(float)}, ValueError, ("scores: float64",)),
    "an unknown rule": ({"rule": "best"}, ValueError, ("rule = 'best'", "blocks, cells")),
    "ids too narrow": ({"ids": np.zeros((2, 8), np.int32)}, ValueError, ("ids: shape (2, 8)", "or more")),
    "an unknown schedule": ({"schedule": "fast"}, ValueError, ("schedule = 'fast'", "registers, wide")),
}


def sample():
    return {
        "logits": np.zeros((2, 40), np.float32),
        "options": Sampling(),
        "history": np.zeros((2, 4), np.int32),
        "lengths": np.zeros(2, np.int32),
        "seeds": np.zeros(2, np.uint64),
        "positions": np.zeros(2, np.int64),
    }


SAMPLING = {
    "logits of one axis": ({"logits": np.zeros(40, np.float32)}, ValueError, ("logits: shape (40,)", "[rows, vocab]")),
    "logits of float64": ({"logits": np.zeros((2, 40))}, ValueError, ("logits: float64", "float32")),
    "history without room": (
        {"history": np.zeros((2, 0), np.int32)},
        ValueError,
        ("history: shape (2, 0)", "[slots, capacity]"),
    ),
    "lengths of one row": ({"lengths": np.zeros(1, np.int32)}, ValueError, ("lengths: int32 (1,)", "(2,)")),
    "signed seeds": ({"seeds": np.zeros(2, np.int64)}, ValueError, ("seeds: int64", "uint64")),
    "positions of 32 bits": ({"positions": np.zeros(2, np.int32)}, ValueError, ("positions: int32", "int64")),
    "options of three rows": ({"options": lambda given: [Sampling()] * 3}, ValueError, ("options: 3 given", "2 rows")),
}

DEVICE_TABLE = {
    "f64": ({"x": PagedKV.new("f64", 8, 4, SMALL)}, ValueError, ("format = 'f64'", "int8, q4_0, k8v4 or fp16")),
}


def _rows():
    found = {}
    kv, index = ("kv",), ("index",)
    for name, function, make, rows in (
        ("append_kv", simulated.append_kv, on_device(append_kv, *kv), APPEND_KV),
        ("attend", simulated.attend, on_device(attend, *kv), ATTEND),
        ("append_index", simulated.append_index, on_device(append_index(np.float32), *index), APPEND_INDEX),
        ("block_scores", simulated.block_scores, on_device(block_scores(np.float32), *index), BLOCK_SCORES),
        ("select", simulated.select, select, SELECT),
        ("sample", SAMPLE, sample, SAMPLING),
        ("to_device", simulated.to_device, lambda: {"x": PagedKV.new("int8", 8, 4, SMALL)}, DEVICE_TABLE),
    ):
        found |= {f"cuda {name}: {row}": bad for row, bad in refused(Base(function, make), rows).items()}
    return found


ROWS = _rows()
