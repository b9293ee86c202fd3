"""What numba-cuda's own launch cannot ask of the driver: much dynamic shared memory, and clusters of blocks (sm_90).

``compiler.py`` alone calls these, and only for a launch that needs them. ``kernel`` is one of numba-cuda's, ``args``
are what its own launch takes; ``device`` is the current one's ordinal, by which answers are remembered. Every function
raises RuntimeError when the driver refuses, unless it says otherwise.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

from .constants import STATIC_SHARED


def _compiled(kernel, args):
    """(what ``kernel`` compiled to for arguments like ``args``, its handle as an int)."""
    compiled = kernel.compile(tuple(kernel.typeof_pyval(x) for x in args))
    handle = compiled._codelibrary.get_cufunc().kernel
    return compiled, int(getattr(handle, "handle", None) or handle._handle)


def _succeeded(answer, what):
    """The values that a call of the driver returned. Raises RuntimeError, saying ``what``, when it failed."""
    status, *values = answer
    if int(status):
        raise RuntimeError(f"{what}: {status}")
    return values[0] if values else None


_dynamic_shared: dict[tuple[Any, int], int] = {}


def set_dynamic_shared(kernel: Any, args: Sequence[Any], nbytes: int, device: int) -> None:
    """Allow ``kernel``, compiled for arguments like ``args``, ``nbytes`` of dynamic shared memory: beyond
    :data:`STATIC_SHARED` the driver wants an attribute on the function, which numba-cuda does not set."""
    compiled, handle = _compiled(kernel, args)
    key = (compiled, device)
    if _dynamic_shared.get(key, 0) >= nbytes:
        return
    from cuda.bindings import driver

    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    answer = driver.cuKernelSetAttribute(attribute, nbytes, driver.CUkernel(handle), driver.CUdevice(device))
    _succeeded(answer, f"{nbytes} bytes of dynamic shared memory for {kernel.py_func.__name__}")
    _dynamic_shared[key] = nbytes


def _configuration(grid, block, shared, stream, cluster):
    """A driver's launch configuration of one-dimensional ``grid`` and ``block`` in clusters."""
    from cuda.bindings import driver

    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    size = attribute.value.clusterDim
    size.x, size.y, size.z = cluster, 1, 1
    made = driver.CUlaunchConfig()
    made.gridDimX, made.gridDimY, made.gridDimZ = grid, 1, 1
    made.blockDimX, made.blockDimY, made.blockDimZ = block, 1, 1
    made.sharedMemBytes, made.hStream = shared, driver.CUstream(stream)
    made.attrs, made.numAttrs = [attribute], 1
    return made


def launch_clusters(
    kernel: Any, grid: int, block: int, args: Sequence[Any], shared: int, stream: int, cluster: int
) -> None:
    """Launch ``kernel`` on ``grid`` blocks of ``block`` lanes, every ``cluster`` neighbours together; ``stream``: its
    handle (int)."""
    from cuda.bindings import driver

    compiled, handle = _compiled(kernel, args)
    values: list[Any] = []
    for type_, value in zip(compiled.argument_types, args, strict=True):
        compiled._prepare_args(type_, value, 0, [], values)
    # Addresses and sizes come as Python integers, numbers in a ctypes object of their own size.
    held = [value if isinstance(value, ctypes._SimpleCData) else ctypes.c_int64(value) for value in values]
    pointers = (ctypes.c_void_p * len(held))(*map(ctypes.addressof, held))
    configuration = _configuration(grid, block, shared, stream, cluster)
    answer = driver.cuLaunchKernelEx(configuration, driver.CUfunction(handle), ctypes.addressof(pointers), 0)
    _succeeded(answer, f"{kernel.py_func.__name__} in clusters of {cluster}")


_clusters: dict[tuple[Any, int, int, int, int], int] = {}


def max_clusters(kernel: Any, args: Sequence[Any], block: int, shared: int, cluster: int, device: int) -> int:
    """Clusters of ``cluster`` blocks of ``kernel`` that ``device`` holds at once; 0 where it says that it cannot have
    them. Asked once for each kernel and size; clusters beyond the portable 8 blocks are allowed to ``kernel`` by it."""
    compiled, handle = _compiled(kernel, args)
    key = (compiled, device, block, shared, cluster)
    if key not in _clusters:
        from cuda.bindings import driver

        if shared > STATIC_SHARED:
            set_dynamic_shared(kernel, args, shared, device)
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        answer = driver.cuKernelSetAttribute(attribute, 1, driver.CUkernel(handle), driver.CUdevice(device))
        _succeeded(answer, f"{kernel.py_func.__name__} in clusters of {cluster}")
        configuration = _configuration(cluster, block, shared, 0, cluster)
        status, count = driver.cuOccupancyMaxActiveClusters(driver.CUfunction(handle), configuration)
        _clusters[key] = 0 if int(status) else int(count)
    return _clusters[key]
