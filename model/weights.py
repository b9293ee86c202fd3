"""Weights of the exact arithmetic: which tensors are int8, which stay float32, and the forms that layers use.

Every matrix is a :class:`QuantisedLinear`: projections, experts, router, streams' mixes, head, and the two tables
(embedding and n-grams), whose rows are looked up. What multiplies element by element stays float32: norms, convolution
taps, A_log, dt_bias. The router is int8 like any other matrix: its fixed-point rows and exact sums leave the weights'
own rounding as its only error, and one operation fewer has to be exact. The hash constants stay int64.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qsa.reference.exact.layers.linear import GROUP, QuantisedLinear, dequantise, quantise
from qsa.reference.exact.scalar import exp
from qsa.reference.model.checkpoint import INTEGERS

PLAIN = "dt_bias", "linear_attn.norm.weight"
"""Endings of the names of float32 tensors that layers use unchanged."""

PIECE = 1 << 22
"""Weights quantised at a time: a table, or the experts of a layer, may not fit into memory in float32."""


def plain(name: str, shape: tuple[int, ...]) -> bool:
    """Whether the tensor stays float32, because it multiplies element by element."""
    return len(shape) == 1 or name.endswith("conv1d.weight")


def _quantised(tensor: Any) -> QuantisedLinear:
    """Quantise ``tensor`` [..., out, in]: an array of any float dtype, or the Shards of a checkpoint."""
    rows, size = tensor.shape[0], int(np.prod(tensor.shape[1:], dtype=np.int64))
    codes = np.empty(tensor.shape, np.int8)
    scale = np.empty((*tensor.shape[:-1], -(-tensor.shape[-1] // GROUP)), np.float16)
    step = max(1, PIECE // max(1, size))
    for start in range(0, rows, step):
        piece = np.arange(start, min(start + step, rows))
        codes[piece], scale[piece] = quantise(tensor[piece])
    return QuantisedLinear(codes, scale)


def _checked(name: str, tensor: QuantisedLinear) -> QuantisedLinear:
    """``tensor``, which is quantised already. Raises ValueError when its codes or scales are malformed."""
    codes, scale = tensor
    if plain(name, codes.shape):
        raise ValueError(f"tensor {name}: int8 codes: it multiplies element by element and must be float")
    shape = (*codes.shape[:-1], -(-codes.shape[-1] // GROUP))
    if codes.dtype != np.int8 or scale.dtype != np.float16 or scale.shape != shape:
        kinds = f"codes {codes.dtype} {codes.shape}, scales {scale.dtype} {scale.shape}"
        raise ValueError(f"tensor {name}: {kinds}: int8 and float16 {shape} are required")
    if codes.min(initial=0) < -127 or not (np.isfinite(scale) & (scale >= 0)).all():
        raise ValueError(f"tensor {name}: codes from -127 on and finite scales from 0 on are required")
    return tensor


def finite(name: str, tensor: Any) -> np.ndarray:
    """``tensor`` as float32. Raises ValueError when a value is not finite."""
    with np.errstate(over="ignore"):
        values = np.asarray(tensor, np.float32)
    if not np.isfinite(values).all():
        raise ValueError(f"tensor {name}: values must be finite in float32")
    return values


def quantise_tensors(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors of a checkpoint (name -> array) as the exact arithmetic stores them.

    Returns name -> :class:`QuantisedLinear`, float32 or int64 array; a QuantisedLinear is kept. Raises ValueError that
    names the tensor when a weight is not finite or too large, or a QuantisedLinear is malformed.
    """
    stored: dict[str, Any] = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, QuantisedLinear):
            stored[name] = _checked(name, tensor)
        elif name.endswith(INTEGERS):
            stored[name] = np.asarray(tensor)
        elif plain(name, tensor.shape):
            stored[name] = finite(name, tensor)
        else:
            try:
                stored[name] = _quantised(tensor)
            except ValueError as error:
                raise ValueError(f"tensor {name}: {error}") from error
    return stored


def dequantise_tensors(stored: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The tensors of :func:`quantise_tensors` as plain arrays (name -> float32 or int64 array) of the same values."""
    return {
        name: dequantise(tensor) if isinstance(tensor, QuantisedLinear) else tensor for name, tensor in stored.items()
    }


def runtime_tensors(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Stored tensors in the forms that layers use (name -> array); matrices and tables are unchanged.

    A norm's weight becomes its factor 1 + w, rounded once (DeltaNet's output norm: w itself); conv1d's [channels, 1,
    kernel] becomes taps [kernel, channels]; A_log becomes ``rate`` = exp(A_log).
    """
    forms = {}
    for name, tensor in stored.items():
        if name.endswith("conv1d.weight"):
            forms[name] = np.ascontiguousarray(tensor[:, 0].T)
        elif name.endswith("A_log"):
            forms[name.removesuffix("A_log") + "rate"] = exp(tensor)
        elif len(tensor.shape) > 1 or name.endswith((*PLAIN, *INTEGERS)):
            forms[name] = tensor
        else:
            forms[name] = np.float32(1) + tensor
    return forms


def placed(forms: Mapping[str, Any], to_device: Callable[[Any], Any]) -> dict[str, Any]:
    """Runtime forms in which ``to_device`` has moved the tensors that multiply element by element.

    The norm of indexer keys stays on the host, since an Index is made with it there. Matrices and tables are moved by
    ``load_linear`` and ``load_table``.
    """
    return {
        name: to_device(form)
        if plain(name, form.shape) and not name.endswith((*INTEGERS, "indexer.k_layernorm.weight"))
        else form
        for name, form in forms.items()
    }
