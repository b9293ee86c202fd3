"""The compiler, and all that the kernels ask of it.

Kernel files import ``cuda``, ``int32``, ``kernel`` and the like from here and know nothing else of the compiler, which
is the one that ``QSA_COMPILER`` names (choice.py), under its :data:`NAME`. The simulator (simulator/launch.py) puts a
module of its own in the place of this one and runs the same sources without a GPU. Launches go to the driver by way of
driver.py, which this module alone imports.

Importing this module needs the compiler, but neither a GPU nor CuPy: kernels compile to PTX without them.
"""

from collections.abc import Callable, Sequence
from functools import cache
from threading import get_ident
from types import ModuleType
from typing import Any

import numpy as np

from . import choice, driver
from .constants import OVERLAPPING, STATIC_SHARED
from .host import Argument, DeviceArray, Numbers, Properties, per_device

_chosen = choice.chosen()
cuda, types, libdevice, intrinsic = _chosen.cuda, _chosen.types, _chosen.libdevice, _chosen.intrinsic
int8, uint8, int32, uint32 = types.int8, types.uint8, types.int32, types.uint32
int64, uint64, float32, float64 = types.int64, types.uint64, types.float32, types.float64

NAME = choice.compiler_name()
"""The compiler's name."""

__all__ = [
    "NAME",
    "STATIC_SHARED",
    "Properties",
    "address",
    "addresses",
    "array_module",
    "as_numpy",
    "can_overlap",
    "capturing",
    "compile_ptx",
    "cuda",
    "current_device",
    "device_function",
    "float32",
    "float64",
    "int8",
    "int32",
    "int64",
    "intrinsic",
    "kernel",
    "lasting",
    "launch",
    "libdevice",
    "max_clusters",
    "pinned",
    "places",
    "prepare",
    "properties",
    "resident_blocks",
    "specialised",
    "stream_key",
    "types",
    "uint8",
    "uint32",
    "uint64",
]


def kernel(
    max_registers: int | None = None,
    shared_memory_carveout: int | None = None,
    launch_bounds: tuple[int, int] | None = None,
) -> Callable[[Callable[..., None]], Any]:
    """Decorator of a kernel. ``max_registers`` per lane; ``shared_memory_carveout`` in percent of the L1 cache;
    ``launch_bounds`` (threads, blocks per multiprocessor).

    Without link-time optimisation: what the tests read in the PTX is then what runs.
    """
    options = {
        "max_registers": max_registers,
        "shared_memory_carveout": shared_memory_carveout,
        "launch_bounds": launch_bounds,
    }
    return _chosen.kernel(**{name: value for name, value in options.items() if value is not None})


device_function = _chosen.device_function
"""Decorator of a function called from kernels; always inlined."""


def array_module() -> ModuleType:
    """The module of device arrays: CuPy. Raises ImportError, saying what to install, where it is missing."""
    try:
        import cupy
    except ImportError as error:
        raise ImportError(f"the CUDA backend needs CuPy (extra cuda12 or cuda13): {error}") from error
    return cupy


@cache
def _require_device():
    if not cuda.is_available():
        raise ImportError("the CUDA backend needs a CUDA device and its driver: none was found")


def current_device() -> int:
    """Ordinal of the current device. Raises ImportError where there is none, which says that the backend is missing."""
    _require_device()
    return array_module().cuda.runtime.getDevice()


specialised = per_device(current_device)


@cache
def _properties(ordinal):
    p = array_module().cuda.runtime.getDeviceProperties(ordinal)
    return Properties(
        name=p["name"].decode(),
        compute_capability=(p["major"], p["minor"]),
        multiprocessors=p["multiProcessorCount"],
        shared_per_block=p["sharedMemPerBlockOptin"],
        shared_per_multiprocessor=p["sharedMemPerMultiprocessor"],
        l2=p["l2CacheSize"],
    )


def properties() -> Properties:
    """:class:`Properties` of the current device."""
    return _properties(current_device())


def stream_key(stream: Any = None) -> tuple[int, int, int]:
    """What tells ``stream``, or the current one, on the current device from every other stream of every device: a
    default stream has the same handle on all devices, and that of a thread the same in all threads."""
    streams = array_module().cuda
    pointer = (streams.get_current_stream() if stream is None else stream).ptr
    return current_device(), pointer, get_ident() if pointer == streams.Stream.ptds.ptr else 0


def capturing(stream: int) -> bool:
    """Whether what is launched on the stream of this handle, of the current device, goes into a graph."""
    return bool(array_module().cuda.runtime.streamIsCapturing(stream))


@cache
def _lasting_pool():
    return array_module().cuda.MemoryPool()


def lasting(shape: Sequence[int], dtype: str) -> DeviceArray:
    """A new array of unset values for what is kept long, on the current stream: out of memory that no other arrays
    share, whoever's allocator is in use. As a piece of a block of theirs it would keep all of that block."""
    cupy = array_module()
    with cupy.cuda.using_allocator(_lasting_pool().malloc):
        return cupy.empty(shape, dtype)


def as_numpy(array: DeviceArray) -> np.ndarray:
    """A NumPy copy of a CuPy array; waits for the current stream."""
    return array_module().asnumpy(array)


def pinned(shape: Sequence[int], dtype: Any) -> tuple[np.ndarray, DeviceArray]:
    """(NumPy array, CuPy array) of the same zeroed, page-locked memory of the host, which kernels write directly."""
    cupy = array_module()
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    memory = cupy.cuda.alloc_pinned_memory(max(1, count * dtype.itemsize))
    host = np.frombuffer(memory, dtype, count).reshape(shape)
    host[...] = 0
    pointer = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(memory.ptr, memory.size(), memory), 0)
    return host, cupy.ndarray(shape, dtype, pointer)


def address(array: DeviceArray) -> int:
    """Address in device memory (int) of a CuPy array, for tables of addresses that a kernel reads."""
    return array.data.ptr


def places(arrays: Sequence[DeviceArray]) -> list[int]:
    """Addresses of many device arrays, which are not looked at otherwise."""
    return [array.data.ptr for array in arrays]


def addresses(arrays: Sequence[Any], expected: Sequence[tuple[tuple[int, ...], np.dtype, int]]) -> list[int] | None:
    """Addresses of C-contiguous device arrays of the ``expected`` (shape, dtype, bits that are 0 in the address); None
    where one of them is otherwise, or no device array at all. A few hundred nanoseconds an array: every call of an
    operation asks this."""
    found = []
    try:
        for array, (shape, dtype, mask) in zip(arrays, expected, strict=False):
            at = array.data.ptr
            # What ``flags.c_contiguous`` says, without making a Flags object.
            if array.shape != shape or array.dtype != dtype or at & mask or not array._c_contiguous:
                return None
            found.append(at)
    except AttributeError:
        return None
    return found


@cache
def _array_type(dtype, ndim, layout):
    return _chosen.array_type(np.dtype(dtype), ndim, layout)


def _type_of(kernel, value):
    """numba's type of a launch's argument: of the value that will stand there, where it is one of a plan's."""
    kind = type(value)
    if kind is int:
        return types.int64
    if kind is Argument:
        return _array_type(value.dtype, len(value.shape), "C")
    if kind is Numbers:
        return types.UniTuple(types.int64, value.length)
    if isinstance(value, array_module().ndarray):
        return _array_type(value.dtype, value.ndim, "C" if value.flags.c_contiguous else "A")
    return kernel.typeof_pyval(value)


def _function(kernel, args):
    """The driver's function of ``kernel`` for ``args``. Raises ValueError on a NumPy array."""
    if any(isinstance(x, np.ndarray) for x in args):
        raise ValueError(f"{kernel.py_func.__name__}: an argument is a NumPy array: must be on the device")
    capability = properties().compute_capability
    return driver.function_of(kernel, tuple(_type_of(kernel, x) for x in args), current_device(), capability)


def _axes(size):
    """A grid or a block as three numbers."""
    return (size, 1, 1) if isinstance(size, int) else (*size, *(1,) * (3 - len(size)))


def prepare(
    kernel: Any,
    grid: int | tuple[int, ...],
    block: int | tuple[int, ...],
    args: Sequence[Any],
    shared: int = 0,
    cluster: int = 1,
) -> "driver.PackedLaunch":
    """A launch of ``kernel`` on the current device whose arguments are packed once, to be submitted many times.

    ``args``: Argument, Numbers, CuPy arrays, numbers and tuples of numbers; the other arguments are those of
    :func:`launch`. Compiles and loads the kernel. Raises ValueError as :func:`launch` does.
    """
    if cluster > 1 and not (isinstance(grid, int) and isinstance(block, int)):
        raise ValueError(f"grid = {grid}, block = {block}: a launch in clusters has one axis each")
    function = _function(kernel, args)
    return driver.PackedLaunch(function, _axes(grid), _axes(block), args, shared, cluster, current_device())


def launch(
    kernel: Any,
    grid: int | tuple[int, ...],
    block: int | tuple[int, ...],
    args: Sequence[Any],
    shared: int = 0,
    stream: Any = None,
    cluster: int = 1,
) -> None:
    """Launch ``kernel`` on ``grid`` blocks of ``block`` lanes with ``shared`` bytes of dynamic shared memory.

    ``args``: CuPy arrays, numbers and tuples of numbers. ``stream``: a CuPy stream, the current one when None.
    ``cluster``: so many neighbouring blocks of a one-dimensional grid make a cluster (sm_90). Returns at once. Raises
    ValueError on a NumPy array.
    """
    stream = array_module().cuda.get_current_stream() if stream is None else stream
    prepare(kernel, grid, block, args, shared, cluster).submit(stream.ptr)


def resident_blocks(kernel: Any, args: Sequence[Any], block: int, shared: int) -> int:
    """Blocks of ``kernel`` that a multiprocessor of the current device holds at once, at least 1.

    Arguments as :func:`prepare`; asked of the driver once for each kernel and size.
    """
    return max(1, driver.resident_blocks(_function(kernel, args), block, shared, current_device()))


def max_clusters(kernel: Any, args: Sequence[Any], block: int, shared: int, cluster: int) -> int:
    """Clusters of ``cluster`` blocks of ``kernel`` that the current device holds at once; 0 where it cannot have them.

    Arguments as :func:`prepare`; asked of the driver once for each kernel and size. Clusters beyond the portable 8
    blocks are allowed to ``kernel`` by this.
    """
    if properties().compute_capability < (9, 0):
        return 0
    return driver.max_clusters(_function(kernel, args), block, shared, cluster, current_device())


def can_overlap() -> bool:
    """Whether launches on the current device may start before the one ahead of them is over."""
    return properties().compute_capability >= OVERLAPPING and driver.launches_early()


def compile_ptx(kernel: Any, signature: Any, compute_capability: tuple[int, int]) -> str:
    """PTX text of ``kernel`` for a signature such as ``"void(float32[:, ::1], int32)"``. Needs no GPU.

    Not for several threads at a time: meanwhile the compiler believes in a device of this capability.
    """
    return _chosen.compile_ptx(kernel, signature, compute_capability)
