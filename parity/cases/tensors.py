"""Arguments of a call as named tensors, plain values and numbers of handles; tensor files written and read.

A file that somebody else wrote is data: its size and header are held to limits before anything is mapped, its path must
lie in the folder of the cases, and no link is followed out of it.
"""

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from safetensors.numpy import save_file

from qsa.reference.index import Index
from qsa.reference.kv import PagedKV, Pool
from qsa.reference.model.checkpoint import BITS, read_safetensors

MAX_HEADER = 4 << 20
"""Bytes of the header of a tensor file at most: about 30,000 tensors."""

DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
"""Name of a dtype of NumPy or ml_dtypes -> its name in safetensors."""

assert set(DTYPES.values()) <= set(BITS)


class Handle:
    """Storage of the engine's own, by its number in the case. ``values`` is the reference's storage behind it."""

    def __init__(self, number: int, values: Any = None) -> None:
        self.number, self.values = number, values


class Arguments(NamedTuple):
    """The arguments of a call: ``tensors``, plain ``options``, and ``handles`` by number; names have dots."""

    tensors: dict[str, np.ndarray]
    options: dict[str, bool | int | str]
    handles: dict[str, int]


def flat(arguments: Mapping[str, Any]) -> Arguments:
    """``arguments`` of a function in parts. The arrays are those of the arguments themselves, not copies.

    A PagedKV ``kv`` becomes ``kv.table``, ``kv.k.codes``, ``kv.k.scale``, ``kv.v.codes``, ``kv.v.scale`` (the same of
    ``kv.host``), ``kv.format`` and ``kv.page_size``; an Index ``index`` becomes ``index.pooled`` and so on; the n-th
    item of a list has its number as a name. Arrays without elements and None are left out.
    """
    found = Arguments({}, {}, {})
    for name, value in arguments.items():
        _add(found, name, value)
    return found


def _add(found: Arguments, name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, np.ndarray):
        if value.size or name.count(".") == 0:
            found.tensors[name] = value
    elif isinstance(value, Handle):
        found.handles[name] = value.number
    elif isinstance(value, PagedKV):
        _add(found, f"{name}.table", value.table)
        _pool(found, name, value.pool)
        if value.host is not None:
            _pool(found, f"{name}.host", value.host)
        found.options.update({f"{name}.format": value.pool.format, f"{name}.page_size": value.pool.page_size})
    elif isinstance(value, Index):
        for part in ("tail", "dead", "pooled", "weight", "rope", "rope0", "dead_exponent", "pooled_exponent"):
            _add(found, f"{name}.{part}", getattr(value, part))
        if value.format != "fp32":
            found.options[f"{name}.format"] = value.format
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _add(found, f"{name}.{number}", item)
    elif isinstance(value, (bool, str)):
        found.options[name] = value
    elif isinstance(value, (int, np.integer)):
        found.options[name] = int(value)
    else:
        raise ValueError(f"{name}: is a {type(value).__name__}: cannot be written to a file")


def _pool(found: Arguments, name: str, pool: Pool) -> None:
    for side in ("k", "v"):
        for part in ("codes", "scale"):
            _add(found, f"{name}.{side}.{part}", getattr(getattr(pool, side), part))


def dtype_name(array: np.ndarray) -> str:
    """The name of the array's dtype in safetensors. Raises ValueError on a dtype that the format has not."""
    name = DTYPES.get(array.dtype.name)
    if name is None:
        raise ValueError(f"dtype {array.dtype}: allowed are {', '.join(DTYPES)}")
    return name


def digest(array: np.ndarray) -> str:
    """xxh3_128 in hexadecimal over dtype, shape and bytes (C order, little-endian)."""
    found = xxhash.xxh3_128(f"{dtype_name(array)} {list(array.shape)} ".encode())
    found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def write(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write a safetensors file. Raises OSError."""
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, path)
    # safetensors creates files that only their owner may read.
    path.chmod(0o644)


def read(path: Path) -> dict[str, np.ndarray]:
    """name -> array, mapped and read-only, of a safetensors file that is not trusted.

    Raises ValueError on a file that is none, a header beyond its limit, a malformed one or a dtype of no array, and
    OSError.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path.name}: is no regular file")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER:
        raise ValueError(f"{path.name}: header of {length} bytes: allowed are {MAX_HEADER}")
    found = {}
    for name, (dtype, array) in read_safetensors(path).items():
        if array is None:
            raise ValueError(
                f"{path.name}: tensor {name[:100]!r}: dtype {dtype}: allowed are {', '.join(DTYPES.values())}"
            )
        found[name] = array
    return found
