"""Norms. Source: published model code.

Every norm of the model multiplies by 1 + w, w being stored around 0, except the output norm of Gated DeltaNet, which
multiplies by the stored weight itself.
"""

import numpy as np
import numpy.typing as npt

from .functions import ACTIVATIONS


def rms(x: np.ndarray, eps: float) -> np.ndarray:
    """x / sqrt(mean(x²) + eps) over the last axis. ``x`` [..., dim] float64; returns the same shape."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


def rms_norm(x: np.ndarray, weight: npt.ArrayLike, eps: float) -> np.ndarray:
    """rms(x) · (1 + weight). ``x`` [..., dim]; ``weight`` [dim] as stored; returns [..., dim]."""
    return rms(x, eps) * (1.0 + np.asarray(weight, np.float64))


def group_norm(streams: np.ndarray, weight: npt.ArrayLike, eps: float) -> np.ndarray:
    """Each residual stream normed on its own. ``streams`` [n, hc_count, hidden]; ``weight`` [hc_count · hidden]."""
    return rms_norm(streams, np.asarray(weight).reshape(streams.shape[-2:]), eps)


def whole_norm(streams: np.ndarray, weight: npt.ArrayLike, eps: float) -> np.ndarray:
    """All streams of a row normed together. ``streams`` [n, hc_count, hidden]; ``weight`` [hc_count · hidden].

    Only the draft layer may use it (see model/mtp.py).
    """
    flat = streams.reshape(len(streams), -1)
    return rms_norm(flat, weight, eps).reshape(streams.shape)


def gated_norm(x: np.ndarray, gate: np.ndarray, weight: npt.ArrayLike, eps: float, activation: str) -> np.ndarray:
    """rms(x) · weight · activation(gate), weight without the offset of 1. ``x``, ``gate`` [..., dim]; ``weight`` [dim].

    ``activation`` is ``sigmoid`` or ``silu`` (``output_gate_type`` of the configuration).
    """
    return rms(x, eps) * np.asarray(weight, np.float64) * ACTIVATIONS[activation](gate)


def l2_norm(x: np.ndarray, eps: float = 1e-6) -> np.ndarray:
    """x / sqrt(sum(x²) + eps) over the last axis. The eps is a constant of the published model code."""
    return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + eps)
