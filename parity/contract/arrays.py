"""Arrays of other libraries to NumPy and back, without importing a library that the backend does not use.

To NumPy: NumPy arrays, torch tensors (bf16 and fp8 too), CuPy arrays, anything with DLPack, ``__array_interface__`` or
``__cuda_array_interface__``. To a backend: NumPy, torch or CuPy, as it declares.
"""

import copy
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from qsa.reference.index import Index
from qsa.reference.kv import PagedKV, Pool, Side

_TORCH = {
    "bfloat16": (ml_dtypes.bfloat16, "int16"),
    "float8_e4m3fn": (ml_dtypes.float8_e4m3fn, "uint8"),
    "float8_e5m2": (ml_dtypes.float8_e5m2, "uint8"),
}
"""dtype of torch -> (the same in NumPy, an integer dtype of its size, which NumPy takes)."""


def is_array(value: Any) -> bool:
    """Whether :func:`to_numpy` takes ``value``."""
    if isinstance(value, np.generic):
        return False
    return isinstance(value, np.ndarray) or any(
        hasattr(value, name) for name in ("__dlpack__", "__array_interface__", "__cuda_array_interface__")
    )


def to_numpy(value: Any) -> np.ndarray:
    """``value`` as a NumPy array, brought from its device. Raises TypeError for what is no array."""
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    if _of(value, "torch"):
        return _from_torch(value)
    if _of(value, "cupy"):
        return value.get()
    if hasattr(value, "__cuda_array_interface__"):
        import cupy

        return cupy.asarray(value).get()
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(value)
    if hasattr(value, "__array_interface__"):
        return np.asarray(value)
    raise TypeError(f"is a {type(value).__name__}: must be an array (NumPy, DLPack or an array interface)")


def _of(value: Any, library: str) -> bool:
    return type(value).__module__.split(".")[0] == library and library in sys.modules


def _from_torch(tensor: Any) -> np.ndarray:
    import torch

    tensor = tensor.detach().cpu().contiguous()
    special = _TORCH.get(str(tensor.dtype).removeprefix("torch."))
    if special:
        dtype, carrier = special
        return tensor.view(getattr(torch, carrier)).numpy().view(dtype)
    return tensor.numpy()


def _from_dlpack(value: Any) -> np.ndarray:
    kind, _ = value.__dlpack_device__()
    if int(kind) in (2, 13):  # kDLCUDA, kDLCUDAManaged
        import cupy

        return cupy.from_dlpack(value).get()
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError):
        # A dtype that NumPy has not, such as bf16.
        import torch

        return _from_torch(torch.from_dlpack(value))


def from_numpy(array: np.ndarray, arrays: str, device: str) -> Any:
    """``array`` as the library ``arrays`` has it on ``device``; on the CPU it shares the memory where it can."""
    if arrays == "numpy":
        return array
    if arrays == "cupy":
        import cupy

        return cupy.asarray(array)
    import torch

    for name, (dtype, carrier) in _TORCH.items():
        if array.dtype == dtype:
            carried = torch.from_numpy(_writable(array).view(carrier))
            return carried.view(getattr(torch, name)).to(device)
    return torch.from_numpy(_writable(array)).to(device)


def _writable(array: np.ndarray) -> np.ndarray:
    """torch takes writable arrays of the machine's byte order alone."""
    array = np.ascontiguousarray(array)
    return array if array.flags.writeable else array.copy()


def arrays_of(value: Any) -> list[Any]:
    """Every array in ``value`` (of a list, a PagedKV, an Index), in order."""
    found: list[Any] = []

    def keep(array: Any) -> Any:
        found.append(array)
        return array

    mapped(value, keep)
    return found


def mapped(value: Any, move: Callable[[Any], Any], is_leaf: Callable[[Any], bool] = is_array) -> Any:
    """``value`` with every array in it (of a list, a PagedKV, an Index) replaced by ``move(array)``; ``is_leaf`` says
    what counts as an array."""
    if isinstance(value, list):
        return [mapped(item, move, is_leaf) for item in value]
    if isinstance(value, Side):
        return Side(value.coding, move(value.codes), move(value.scale))
    if isinstance(value, (PagedKV, Pool, Index)):
        other = copy.copy(value)
        for name, part in vars(value).items():
            if is_leaf(part) or isinstance(part, (Side, Pool)):
                setattr(other, name, mapped(part, move, is_leaf))
        return other
    return move(value) if is_leaf(value) else value
