"""The text model in the float arithmetic, to which the exact arithmetic is compared.

It uses the checkpoint's weights in float32 instead of int8, ordinary float32 layers and the backend's float attention.
K/V may also be fp16.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from qsa.kernels.cpu import layers as cpu_layers
from qsa.reference.exact.layers.linear import QuantisedLinear, dequantise
from qsa.reference.formats import FORMATS
from qsa.reference.model.checkpoint import INTEGERS
from qsa.reference.model.config import Config

from .arithmetic import Arithmetic
from .checkpoint import TABLES
from .float_layers import FloatLayers
from .text_model import TextModel
from .weights import finite, plain


def _stored(name: str, tensor: Any) -> Any:
    """A tensor as the float model stores it: tables unchanged (a row becomes float32 when it is looked up), hash
    constants int64, all others finite float32."""
    if name.endswith(INTEGERS):
        return np.asarray(tensor)
    if name.endswith(TABLES):
        return tensor
    if isinstance(tensor, QuantisedLinear):
        return dequantise(tensor)
    if not plain(name, tensor.shape):
        tensor = tensor[np.arange(tensor.shape[0])]
    return finite(name, tensor)


class FloatModel(TextModel):
    """A text model in the float arithmetic. Arguments and errors are those of :class:`TextModel`.

    backend  a module with the five operations, whose ``attend`` supports ``arithmetic="float"``
    xp       the array module of the backend's arrays, ``numpy`` or ``cupy``
    """

    arithmetic, kv_formats = "float", tuple(name for name in FORMATS if name != "f64")

    def __init__(
        self,
        config: Config,
        tensors: Mapping[str, Any],
        *options: Any,
        backend: Any,
        xp: Any = np,
        **more: Any,
    ) -> None:
        layers = FloatLayers(xp, cpu_layers if xp is np else backend.layers)
        super().__init__(config, tensors, *options, backend=Arithmetic(backend, "float", layers), **more)

    @staticmethod
    def store(tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Name -> finite float32 array, int64 hash constant, or unchanged table. Raises ValueError that names a tensor
        with values that are not finite."""
        return {name: _stored(name, tensor) for name, tensor in tensors.items()}
