"""What the driver is asked for itself: launches with packed arguments, dynamic shared memory, clusters of blocks,
launches that start before the one ahead of them is over.

``compiler.py`` alone calls these. ``kernel`` is one of the compiler's, ``types`` are numba's of its arguments;
``device`` is the current one's ordinal, by which answers are remembered. Every function raises RuntimeError when the
driver refuses, unless it says otherwise.
"""

import ctypes
from collections.abc import Iterator, Sequence
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from . import cubins
from .choice import chosen
from .constants import STATIC_SHARED
from .host import Argument, Numbers, count_launch, waits_for_earlier

WORD = 8
"""Bytes of a packed parameter, whatever its own size: the driver reads as many bytes as the kernel's parameter has."""


class Function(NamedTuple):
    """A kernel compiled for some types of arguments and loaded: its name, the driver's library that holds it, the
    driver's handle as an int; ``waits``: whether it waits itself for what it depends on, so that it may be launched
    early."""

    name: str
    library: Any
    handle: int
    waits: bool = False


_functions: dict[tuple[Any, tuple[Any, ...], int], Function] = {}


def function_of(kernel: Any, types: tuple[Any, ...], device: int, capability: tuple[int, int]) -> Function:
    """:class:`Function` of ``kernel`` for ``types``, loaded once for each device, which has this compute
    ``capability``; compiled where the disk does not have its code (cubins.py)."""
    key = (kernel, types, device)
    found = _functions.get(key)
    if found is None:
        entry = cubins.key(kernel, types, capability)
        made = cubins.find(entry)
        if made is None:
            made = chosen().machine_code(kernel, types, capability)
            cubins.keep(entry, made)
        found = _loaded(made, kernel, device)
        _functions[key] = found
    return found


def _loaded(made, kernel, device):
    """The :class:`Function` of the ``made`` machine code of ``kernel``."""
    from cuda.bindings import driver

    name = kernel.py_func.__name__
    what = f"loading {name}"
    # A library's kernel: what is set on it below and elsewhere would be refused for a module's function.
    library = _succeeded(driver.cuLibraryLoadData(made.code, None, None, 0, None, None, 0), what)
    found = _succeeded(driver.cuLibraryGetKernel(library, made.name.encode()), what)
    carveout = kernel.targetoptions.get("shared_memory_carveout")
    if carveout is not None:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        _succeeded(driver.cuKernelSetAttribute(attribute, carveout, found, driver.CUdevice(device)), what)
    return Function(name, library, int(found), waits_for_earlier(kernel))


def _succeeded(answer, what):
    """The values that a call of the driver returned. Raises RuntimeError, saying ``what``, when it failed."""
    status, *values = answer
    if int(status):
        raise RuntimeError(f"{what}: {status}")
    return values[0] if values else None


_dynamic_shared: dict[Function, int] = {}


def set_dynamic_shared(function: Function, nbytes: int, device: int) -> None:
    """Allow ``function`` ``nbytes`` of dynamic shared memory: beyond :data:`STATIC_SHARED` the driver wants an
    attribute on it, which no compiler sets."""
    if nbytes <= STATIC_SHARED or _dynamic_shared.get(function, 0) >= nbytes:
        return
    from cuda.bindings import driver

    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    answer = driver.cuKernelSetAttribute(attribute, nbytes, driver.CUkernel(function.handle), driver.CUdevice(device))
    _succeeded(answer, f"{nbytes} bytes of dynamic shared memory for {function.name}")
    _dynamic_shared[function] = nbytes


def _configuration(grid, block, shared, cluster, early=False):
    """A driver's launch configuration; its stream is unset. ``cluster``: blocks of a cluster, of a grid of one axis;
    ``early``: it may start before the launch ahead of it is over."""
    from cuda.bindings import driver

    attributes = []
    if cluster > 1:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        size = attribute.value.clusterDim
        size.x, size.y, size.z = cluster, 1, 1
        attributes.append(attribute)
    if early:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        attributes.append(attribute)
    made = driver.CUlaunchConfig()
    made.gridDimX, made.gridDimY, made.gridDimZ = grid
    made.blockDimX, made.blockDimY, made.blockDimZ = block
    made.sharedMemBytes = shared
    made.attrs, made.numAttrs = attributes, len(attributes)
    return made


EARLY_DRIVER = 12030
"""The least version of the driver (CUDA 12.3) that keeps early launches early in a captured graph."""


@cache
def launches_early() -> bool:
    """Whether the driver lets a launch start before the one ahead of it is over, captured in a graph too."""
    from cuda.bindings import driver

    return int(_succeeded(driver.cuDriverGetVersion(), "version of the driver")) >= EARLY_DRIVER


def _strides(shape: Sequence[int], itemsize: int) -> Iterator[int]:
    """Strides in bytes of a C-contiguous array."""
    for axis in range(len(shape)):
        yield itemsize * prod(shape[axis + 1 :])


def _words(value: Any) -> list[int]:
    """The packed parameters of a launch's argument ``value``: a device array, a number or a tuple of such."""
    if type(value) is int:
        return [value]
    if isinstance(value, Argument):
        itemsize = np.dtype(value.dtype).itemsize
        return chosen().array_words(0, itemsize, value.shape, tuple(_strides(value.shape, itemsize)))
    if isinstance(value, Numbers):
        return [0] * value.length
    if isinstance(value, tuple):
        return [word for item in value for word in _words(item)]
    if isinstance(value, (bool, float, np.generic)):
        bits = np.zeros(WORD, np.uint8)
        own = np.frombuffer(np.asarray(value).tobytes(), np.uint8)
        bits[: own.size] = own
        return [int(bits.view(np.int64)[0])]
    return chosen().array_words(value.data.ptr, value.dtype.itemsize, value.shape, value.strides)


NO_CONTEXT = 201
"""The driver's answer (CUDA_ERROR_INVALID_CONTEXT) to a thread that has not used the device before."""


def _make_current(device):
    """Make the device's primary context, in which everything lies, this thread's own."""
    from cuda.bindings import driver

    context = _succeeded(driver.cuDevicePrimaryCtxRetain(driver.CUdevice(device)), f"context of device {device}")
    _succeeded(driver.cuCtxSetCurrent(context), f"context of device {device}")


class PackedLaunch:
    """A launch whose arguments are packed once, for the driver to read again at every :meth:`submit`.

    ``args``: :class:`~.host.Argument`, :class:`~.host.Numbers`, device arrays, numbers and tuples of numbers. What an
    engine needs to launch it without Python: ``function`` (name, handle of a CUkernel), ``grid``, ``block``, ``shared``
    (bytes), ``cluster``, ``early`` (see :meth:`start_early`), ``parameters`` (address of the ``kernelParams``, which
    lives as long as this object).
    """

    def __init__(
        self,
        function: Function,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        args: Sequence[Any],
        shared: int,
        cluster: int,
        device: int,
    ) -> None:
        from cuda.bindings import driver

        set_dynamic_shared(function, shared, device)
        self.name, self.function = function.name, function
        self.grid, self.block, self.shared, self.cluster = grid, block, shared, cluster
        words: list[int] = []
        pointed: list[tuple[int, int, int]] = []
        self._numbers: list[tuple[int, Numbers]] = []
        for value in args:
            if isinstance(value, Argument):
                pointed.append((len(words) + chosen().ADDRESS, value.position, value.first * value.row))
            elif isinstance(value, Numbers):
                self._numbers.append((len(words), value))
            words += _words(value)
        self._pointed = tuple(pointed)
        self._words = (ctypes.c_int64 * len(words))(*words)
        start = ctypes.addressof(self._words)
        self._pointers = (ctypes.c_void_p * len(words))(*(start + WORD * i for i in range(len(words))))
        self.parameters = ctypes.addressof(self._pointers)
        self._handle = driver.CUfunction(function.handle)
        self._sizes = (*grid, *block, shared)
        self._device, self._stream = device, driver.CUstream
        self._launch, self._launch_configured = driver.cuLaunchKernel, driver.cuLaunchKernelEx
        self._configuration = _configuration(grid, block, shared, cluster) if cluster > 1 else None
        self.early = False

    @property
    def words(self) -> list[int]:
        """The packed parameters, each as int64."""
        return list(self._words)

    def start_early(self) -> None:
        """Let it start before the launch ahead of it on its stream is over (attribute programmatic stream
        serialization), where its kernel waits itself for what it depends on; nothing of any other kernel. The device
        and the driver must have it (``compiler.can_overlap``)."""
        if self.function.waits and not self.early:
            self.early = True
            self._configuration = _configuration(self.grid, self.block, self.shared, self.cluster, True)

    def point(self, addresses: Sequence[int], arrays: Sequence[Any] = ()) -> None:
        """Take the ``addresses`` of a call's arrays (``arrays`` are for the simulator)."""
        words = self._words
        for at, position, offset in self._pointed:
            words[at] = addresses[position] + offset

    def number(self, numbers: Sequence[int]) -> None:
        """Take the numbers of a call."""
        for at, part in self._numbers:
            self._words[at : at + part.length] = list(part.of(numbers))

    def submit(self, stream: int) -> None:
        """Launch on the stream of this handle; returns at once."""
        count_launch(self.name)
        status = self._submit(stream)
        if int(status) == NO_CONTEXT:
            _make_current(self._device)
            status = self._submit(stream)
        if int(status):
            raise RuntimeError(f"{self.name}, grid {self.grid}, block {self.block}, cluster {self.cluster}: {status}")

    def _submit(self, stream):
        if self._configuration is None:
            return self._launch(self._handle, *self._sizes, stream, self.parameters, 0)[0]
        self._configuration.hStream = self._stream(stream)
        return self._launch_configured(self._configuration, self._handle, self.parameters, 0)[0]


_resident: dict[tuple[Function, int, int], int] = {}


def resident_blocks(function: Function, block: int, shared: int, device: int) -> int:
    """Blocks of ``block`` lanes and ``shared`` bytes of ``function`` that a multiprocessor of ``device`` holds at once.
    Asked once for each function and size."""
    key = (function, block, shared)
    if key not in _resident:
        from cuda.bindings import driver

        set_dynamic_shared(function, shared, device)
        handle = driver.CUfunction(function.handle)
        answer = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(handle, block, shared)
        _resident[key] = int(_succeeded(answer, f"occupancy of {function.name}"))
    return _resident[key]


_clusters: dict[tuple[Function, int, int, int], int] = {}


def max_clusters(function: Function, block: int, shared: int, cluster: int, device: int) -> int:
    """Clusters of ``cluster`` blocks of ``function`` that ``device`` holds at once; 0 where it says that it cannot have
    them. Asked once for each function and size; clusters beyond the portable 8 blocks are allowed to it by this."""
    key = (function, block, shared, cluster)
    if key not in _clusters:
        from cuda.bindings import driver

        set_dynamic_shared(function, shared, device)
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        answer = driver.cuKernelSetAttribute(attribute, 1, driver.CUkernel(function.handle), driver.CUdevice(device))
        _succeeded(answer, f"{function.name} in clusters of {cluster}")
        configuration = _configuration((cluster, 1, 1), (block, 1, 1), shared, cluster)
        status, count = driver.cuOccupancyMaxActiveClusters(driver.CUfunction(function.handle), configuration)
        _clusters[key] = 0 if int(status) else int(count)
    return _clusters[key]
