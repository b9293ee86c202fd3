"""The text model in the float arithmetic.

It has the weights of the checkpoint, not rounded to int8 (float32 where the checkpoint has more), ordinary
float32 layers and the backend's float attention; K/V may be fp16 too. It is there to be compared with.
"""

import numpy as np

from qsa.kernels.cpu import layers as cpu_layers
from qsa.reference.exact.layers.linear import QuantisedLinear, dequantise
from qsa.reference.formats import FORMATS
from qsa.reference.model.checkpoint import INTEGERS

from .arithmetic import Arithmetic
from .checkpoint import TABLES
from .float_layers import FloatLayers
from .text_model import TextModel
from .weights import finite, plain


def _stored(name, tensor):
    """A tensor as the float model keeps it: tables as they are (their rows are lifted when they are looked up), hash
    constants int64, all else finite float32."""
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
    """A text model in the float arithmetic; arguments and errors as ``reference.exact.model.TextModel``.

    backend  a module with the five operations, whose ``attend`` takes ``arithmetic="float"``
    xp       the array module of its arrays: ``numpy`` or ``cupy``
    """

    arithmetic, kv_formats = "float", tuple(name for name in FORMATS if name != "f64")

    def __init__(self, config, tensors, *options, backend, xp=np, **more):
        layers = FloatLayers(xp, cpu_layers if xp is np else backend.layers)
        super().__init__(config, tensors, *options, backend=Arithmetic(backend, "float", layers), **more)

    @staticmethod
    def store(tensors):
        """name -> finite float32 array, int64 hash constants, tables as they come."""
        return {name: _stored(name, tensor) for name, tensor in tensors.items()}
