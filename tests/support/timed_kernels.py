"""Kernels for the tests of ``qsa bench``: right ones, and such as do less when they are timed."""

from typing import ClassVar

import numpy as np

from qsa.kernels import cpu


class Right:
    """The CPU kernels as somebody's own."""

    declaration: ClassVar[dict] = {"arithmetic": ["exact"]}

    def attend(self, q, kv, ids, steps):
        return cpu.attend(q, kv, ids, steps, arithmetic="exact")

    def select(self, scores, steps):
        return cpu.select(scores, steps)

    def block_scores(self, q_idx, index, steps):
        return cpu.block_scores(q_idx, index, steps)

    def append_kv(self, k, v, kv, steps):
        return cpu.append_kv(k, v, kv, steps)

    def append_index(self, raw, steps, index):
        return cpu.append_index(raw, steps, index)


class Wrong(Right):
    """Off by one percent."""

    def attend(self, q, kv, ids, steps):
        return super().attend(q, kv, ids, steps) * np.float32(1.01)


class KeptByAddress(Right):
    """Computes a query once for each place where it lies."""

    def __init__(self):
        self.kept = {}

    def attend(self, q, kv, ids, steps):
        key = q.ctypes.data
        if key not in self.kept:
            self.kept[key] = super().attend(q, kv, ids, steps)
        return self.kept[key].copy()


class KeptByContent(Right):
    """Computes a query once for each content: right, and not what is timed."""

    def __init__(self):
        self.kept = {}

    def attend(self, q, kv, ids, steps):
        key = q.tobytes()
        if key not in self.kept:
            self.kept[key] = super().attend(q, kv, ids, steps)
        return self.kept[key].copy()


class Tires(Right):
    """Right for ``CALLS`` calls, which are more than are judged before the timing."""

    CALLS = 40

    def __init__(self):
        self.calls = 0

    def attend(self, q, kv, ids, steps):
        self.calls += 1
        return super().attend(q, kv, ids, steps) if self.calls <= self.CALLS else np.zeros_like(q)


class Raises(Right):
    """Fails when it is called often."""

    def __init__(self):
        self.calls = 0

    def attend(self, q, kv, ids, steps):
        self.calls += 1
        if self.calls > 20:
            raise RuntimeError("out of steam")
        return super().attend(q, kv, ids, steps)


class DeviceArray(np.ndarray):
    """An array that looks as if it were CuPy's."""


DeviceArray.__module__ = "cupy.fake"


class OnDevice(Right):
    """The CPU kernels with arrays that look like a device's."""

    def to_device(self, x):
        return x.copy().view(DeviceArray) if isinstance(x, np.ndarray) else x

    def to_host(self, x):
        return np.asarray(x) if isinstance(x, np.ndarray) else x

    def attend(self, q, kv, ids, steps):
        given = (np.asarray(each) for each in (q, ids, steps))
        q, ids, steps = given
        return cpu.attend(q, kv, ids, steps, arithmetic="exact").view(DeviceArray)
