"""Causal depthwise convolution with a history, for Gated DeltaNet and PLE. Source: published model code."""

import numpy as np
import numpy.typing as npt


def history(channels: int, kernel: int, dilation: int = 1) -> np.ndarray:
    """The history of a sequence that has not begun: zeros [(kernel - 1) · dilation, channels] float64."""
    return np.zeros(((kernel - 1) * dilation, channels))


def causal_conv(
    x: np.ndarray, weight: npt.ArrayLike, past: np.ndarray, dilation: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """One output per input, each from the input itself and earlier ones. No bias, no activation.

    ``x`` [n, channels] float64; ``weight`` [channels, 1, kernel]; ``past`` [(kernel - 1) · dilation, channels]: the
    inputs before x. Returns ``y`` [n, channels] and the next ``past``. Tap kernel - 1 meets the input itself, tap 0
    the oldest one.
    """
    taps = np.asarray(weight, np.float64)[:, 0, :]
    inputs = np.concatenate([past, x])
    y = np.zeros_like(x)
    for tap in range(taps.shape[1]):
        y += inputs[tap * dilation : tap * dilation + len(x)] * taps[:, tap]
    return y, inputs[len(x) :].copy()
