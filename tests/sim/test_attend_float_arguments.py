"""The float attention on CUDA, in the simulator: what it refuses, and what it raises for."""

from dataclasses import replace

import numpy as np
import pytest

from qsa.kernels import ops
from qsa.kernels.cuda import simulator
from qsa.reference.geometry import Geometry
from support.float_attention import SMALL, float_problem

module, device = simulator.load("attend_float.launch"), simulator.load("device")


def _scratch(rows=2, cap=70, dtype=np.float32, geometry=SMALL):
    return np.zeros(module.scratch_shape(rows, cap, geometry), dtype)


@pytest.mark.parametrize(
    ("reason", "fmt", "geometry", "capability", "options"),
    [
        ("format", "fp16", SMALL, (9, 0), {"schedule": "split"}),
        ("format", "k8v4", SMALL, (9, 0), {"schedule": "split"}),
        ("device", "int8", SMALL, (7, 5), {"schedule": "split"}),
        ("geometry", "int8", Geometry(4, 2, 128, 16), (9, 0), {}),
        ("geometry", "int8", Geometry(96, 1), (9, 0), {}),
        ("scratch", "int8", SMALL, (9, 0), {"scratch": _scratch()[1:]}),
        ("scratch", "int8", SMALL, (9, 0), {"scratch": _scratch(4)[::2]}),
        ("scratch", "int8", SMALL, (9, 0), {"scratch": _scratch(dtype=np.float64)}),
        ("scratch", "int8", SMALL, (9, 0), {"scratch": _scratch()[4:], "schedule": "split"}),
        ("scratch", "int8", SMALL, (9, 0), {"scratch": _scratch(1)[4:], "schedule": "step"}),
        ("scratch", "int8", SMALL, (9, 0), {"scratch": _scratch(1)[4:], "schedule": "prompt"}),
    ],
)
def test_refusals_launch_and_write_nothing(reason, fmt, geometry, capability, options):
    q, kv, ids, steps = float_problem(17, [70, 70], fmt, geometry=geometry, cells=80)
    out = np.full(q.shape, np.nan, np.float32)
    launched, refused = simulator.launches(), ops.refusals()
    scratch = options.get("scratch")
    before = None if scratch is None else scratch.copy()
    properties = replace(simulator.settings.properties, compute_capability=capability)
    with simulator.configured(properties=properties):
        assert module.attend_float(q, device.to_device(kv), ids, steps, None, out, **options) is False
    assert np.isnan(out).all() and simulator.launches() == launched
    assert before is None or np.array_equal(scratch, before)
    assert ops.refusals()["attend", reason] == refused.get(("attend", reason), 0) + 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"schedule": "rows"}, "schedule = 'rows'"),
        ({"splits": 2}, "splits = 2"),
        ({"schedule": "split", "splits": 21}, "splits = 21"),
        ({"schedule": "split", "splits": 1.5}, "splits = 1.5: must be an integer from 1 to 20"),
        ({"slots": np.zeros(2, np.int64)}, "slots: int64"),
        ({"slots": np.zeros(3, np.int32)}, "slots: int32"),
        ({"kv": []}, "kv: "),
        ({"q": np.zeros((2, 4, 32), np.float32)}, "q: float32 "),
        ({"q": np.zeros((2, 64, 4), np.float32).transpose(0, 2, 1)}, "q: strides"),
        ({"ids": np.zeros((2, 70), np.int64)}, "ids: int64"),
        ({"ids": np.zeros(70, np.int32)}, "ids: shape"),
        ({"steps": np.zeros((1, 4), np.int32)}, "steps: int32"),
        ({"out": np.zeros((2, 4, 64), np.float64)}, "out: float64"),
    ],
)
def test_mismatched_arguments_are_named(changes, says):
    q, kv, ids, steps = float_problem(18, [70, 70])
    arguments = {"q": q, "kv": device.to_device(kv), "ids": ids, "steps": steps} | changes
    with pytest.raises(ValueError, match=says):
        module.attend_float(**arguments)


def test_a_list_of_slots_needs_their_numbers():
    q, kv, ids, steps = float_problem(19, [70, 70])
    kvs = [device.to_device(kv)] * 2
    with pytest.raises(ValueError, match="slots"):
        module.attend_float(q, kvs, ids, steps)
    with pytest.raises(ValueError, match="slots: int64"):
        module.attend_float(q, kvs, ids, steps, np.zeros(2, np.int64))
