"""The layers of the float arithmetic: names and arguments of ``reference/exact/layers``, ordinary float32 and matmul.

The same code serves NumPy and CuPy. Nothing fixes the order of a sum or the rounding of a transcendental, so the bits
depend on the library, the processor and the rows of a call; the bounds in ``tests/cpu/model/test_float_model.py`` hold
everywhere. The recurrences use the backend's kernels: row by row an array library would take a hundred times as long.
"""

from typing import Any

import numpy as np

from qsa.kernels.cpu import layers as cpu_layers
from qsa.reference.exact.layers.linear import QuantisedLinear, dequantise

MIN_MAGNITUDE = 1e-6
"""Smallest magnitude under PLE's root, and eps of the L2 norm: constants of the published model code."""

MAX_GATHERED = 64
"""Largest number of (row, expert) pairs for which CuPy gathers a copy of the weights for each pair. That way no call
waits for the device."""


class FloatLayers:
    """The namespace ``layers`` of a backend, over the array module ``xp`` (``numpy`` or ``cupy``).

    recurrent  namespace with ``causal_conv`` and ``delta_rule`` of ``reference/exact/layers/__init__.py`` for arrays of
               ``xp``

    All arrays are float32 unless their dtype is given. States are advanced in place. Shapes are those of
    ``reference/exact``.
    """

    def __init__(self, xp: Any = np, recurrent: Any = cpu_layers) -> None:
        self.xp = xp
        self.causal_conv, self.delta_rule = recurrent.causal_conv, recurrent.delta_rule

    def load_linear(self, weight: Any) -> Any:
        """A matrix or stacked matrices [..., out, in] in the form of :meth:`linear` and :meth:`experts`: float32 in
        ``xp``. A QuantisedLinear is dequantised. NumPy's are held in the order in which products read them, input by
        input: for the few rows of a window BLAS would take as long to turn them as to multiply."""
        loaded = self.xp.asarray(dequantise(weight) if isinstance(weight, QuantisedLinear) else weight, np.float32)
        if self.xp is np:
            loaded = np.ascontiguousarray(loaded.swapaxes(-1, -2)).swapaxes(-1, -2)
        return loaded

    def linear(self, x: Any, weight: Any) -> Any:
        """The product of x [rows, in] and a matrix [out, in]. Raises ValueError on mismatched shapes."""
        if x.ndim != 2 or x.shape[1] != weight.shape[1]:
            raise ValueError(f"x: shape {x.shape}: must be [rows, {weight.shape[1]}]")
        return x @ weight.T

    def load_table(self, table: Any) -> Any:
        """A table in the form of :meth:`embed`: unchanged, on the host."""
        return table

    def last_cells(self, steps: Any, cap: int) -> Any:
        """Ids [n, cap] int32 of the last cells of every row, as many as the width in its step record, then -1."""
        first, offset = steps[:, 1:2] - steps[:, 3:4], self.xp.arange(cap, dtype=np.int32)
        return self.xp.where(offset < steps[:, 3:4], first + offset, np.int32(-1))

    def embed(self, ids: Any, table: Any) -> Any:
        """Rows [..., dim] at ``ids`` [...] of a table on the host, a QuantisedLinear or an array of any float dtype."""
        ids = np.asarray(ids if self.xp is np else self.xp.asnumpy(ids))
        rows = dequantise(table.part(ids)) if isinstance(table, QuantisedLinear) else table[ids]
        return self.xp.asarray(np.asarray(rows, np.float32))

    def sigmoid(self, x: Any) -> Any:
        """1 / (1 + exp(-x)) without overflow at either end."""
        xp = self.xp
        # 1 or e^x over 1 + e^-|x|. A second exponential takes a third of the time of a choice between two arrays.
        share = xp.exp(xp.minimum(x, 0))
        share /= 1 + xp.exp(-xp.abs(x))
        return share

    def silu(self, x: Any) -> Any:
        """x * sigmoid(x)."""
        return x * self.sigmoid(x)

    def scaled_silu(self, x: Any, divisor: float) -> Any:
        """silu(x / divisor)."""
        return self.silu(x / np.float32(divisor))

    def swiglu(self, gate_up: Any) -> Any:
        """silu(gate) * up of ``gate_up`` [rows, 2 * width], the gate first."""
        width = gate_up.shape[-1] // 2
        return self.silu(gate_up[..., :width]) * gate_up[..., width:]

    def sigmoid_gate(self, x: Any, gate: Any) -> Any:
        """x * sigmoid(gate); ``gate`` [rows, 1] or in the shape of x."""
        return x * self.sigmoid(gate)

    def mix_streams(self, normed: Any, share: Any) -> Any:
        """Mean over the streams of sigmoid(share) * normed, both [rows, streams, hidden]."""
        return (self.sigmoid(share) * normed).mean(axis=1)

    def inject(self, streams: Any, share: Any, y: Any) -> Any:
        """streams [rows, streams, hidden] + 2 * sigmoid(share [rows, streams] / streams) * y [rows, hidden]."""
        factor = 2 * self.sigmoid(share / np.float32(streams.shape[1]))
        return streams + factor[:, :, None] * y[:, None]

    def ngram_gate(self, key: Any, query: Any, value: Any) -> Any:
        """sigmoid(signed root of key . query / sqrt(hidden)) * value: key, query [rows, streams, hidden], value
        [rows, hidden]."""
        xp = self.xp
        s = (key * query).sum(axis=-1) / np.float32(key.shape[-1] ** 0.5)
        root = xp.sign(s) * xp.sqrt(xp.maximum(xp.abs(s), np.float32(MIN_MAGNITUDE)))
        return self.sigmoid(root)[:, :, None] * value[:, None]

    def add(self, x: Any, y: Any) -> Any:
        """x + y; y in the shape of x, or [rows, 1, n]."""
        return x + y

    def add_gated(self, x: Any, gated: Any, mixed: Any) -> Any:
        """x + (gated + silu(mixed)), all of one shape."""
        return x + (gated + self.silu(mixed))

    def _normed(self, x: Any, eps: float) -> Any:
        return x / self.xp.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(eps))

    def rms_norm(self, x: Any, weight: Any, eps: float) -> Any:
        """x / sqrt(mean of squares + eps) * weight over the last axis; ``weight`` is the factor itself, 1 + w."""
        return self._normed(x, eps) * self.xp.asarray(weight)

    def gated_norm(self, x: Any, gate: Any, weight: Any, eps: float, activation: str) -> Any:
        """x / sqrt(mean of squares + eps) * weight * activation(gate); ``activation`` sigmoid or silu."""
        return self._normed(x, eps) * self.xp.asarray(weight) * getattr(self, activation)(gate)

    def l2_norm(self, x: Any, factor: float) -> Any:
        """x / sqrt(sum of squares + 1e-6) * factor over the last axis."""
        return x / self.xp.sqrt((x * x).sum(axis=-1, keepdims=True) + np.float32(MIN_MAGNITUDE)) * np.float32(factor)

    def rotate(self, x: Any, table: Any) -> Any:
        """Rotate the pairs (i, i + n_rot/2) of x [rows, heads, dim] by ``table`` [rows, n_rot], cos in its first
        half."""
        table = self.xp.asarray(table)
        half = table.shape[1] // 2
        cos, sin = table[:, None, :half], table[:, None, half:]
        a, b = x[..., :half], x[..., half : 2 * half]
        return self.xp.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], axis=-1)

    def route(self, logits: Any, top: int) -> tuple[Any, Any]:
        """Ids [rows, top] int64 and shares of the chosen experts, best first, ties to the lower id."""
        ids = self.xp.argsort(-logits, axis=1, kind="stable")[:, :top]
        chosen = self.xp.take_along_axis(logits, ids, axis=1)
        mass = self.xp.exp(chosen - chosen[:, :1])
        return ids, mass / mass.sum(axis=1, keepdims=True)

    def experts(self, x: Any, ids: Any, shares: Any, gate_up: Any, down: Any) -> Any:
        """The sum of the chosen experts' outputs weighted by share, in ascending id; gate_up [experts, 2 * width,
        hidden], down [experts, hidden, width]."""
        if self.xp is not np and ids.size <= MAX_GATHERED:
            return self._gathered(x, ids, shares, gate_up, down)
        if self.xp is np:
            return self._sorted(x, ids, shares, gate_up, down)
        out = self.xp.zeros_like(x)
        for expert in self.xp.unique(ids).tolist():
            rows, rank = self.xp.nonzero(ids == expert)
            y = self.swiglu(x[rows] @ gate_up[expert].T) @ down[expert].T
            # A row names an expert once, so no row occurs twice.
            out[rows] += shares[rows, rank][:, None] * y
        return out

    def _sorted(self, x: Any, ids: Any, shares: Any, gate_up: Any, down: Any) -> Any:
        """:meth:`experts` over the (row, expert) pairs sorted by expert: two products for each, the rest at once."""
        order = np.argsort(ids, axis=None, kind="stable")
        rows, chosen = order // ids.shape[1], ids.ravel()[order]
        begins = np.flatnonzero(np.diff(chosen, prepend=-1)).tolist()
        parts = [(chosen[begin], slice(begin, end)) for begin, end in zip(begins, [*begins[1:], None], strict=True)]
        sources, both = x[rows], np.empty((len(rows), gate_up.shape[1]), np.float32)
        for expert, own in parts:
            np.matmul(sources[own], gate_up[expert].T, out=both[own])
        hidden, outputs = self.swiglu(both), np.empty_like(sources)
        for expert, own in parts:
            np.matmul(hidden[own], down[expert].T, out=outputs[own])
        outputs *= shares.ravel()[order][:, None]
        # A row's pairs in ascending id again: sorted by row, which keeps the order of its experts.
        return outputs[np.argsort(rows, kind="stable")].reshape(*ids.shape, -1).sum(axis=1)

    def _gathered(self, x: Any, ids: Any, shares: Any, gate_up: Any, down: Any) -> Any:
        """:meth:`experts` for few rows, as products of stacked matrices."""
        y = self.swiglu((gate_up[ids] @ x[:, None, :, None])[..., 0])
        return (shares[..., None] * (down[ids] @ y[..., None])[..., 0]).sum(axis=1)

    def decay_beta(self, a: Any, b: Any, dt_bias: Any, rate: Any) -> tuple[Any, Any]:
        """exp(-rate * softplus(a + dt_bias)) and sigmoid(b): a, b [rows, heads]; dt_bias, rate [heads]."""
        step = self.xp.logaddexp(a + self.xp.asarray(dt_bias), np.float32(0))
        return self.xp.exp(-self.xp.asarray(rate) * step), self.sigmoid(b)
