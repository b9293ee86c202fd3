"""Runs the CUDA kernels lane by lane on the CPU: the same sources, no GPU, no compiler.

    from qsa.kernels.cuda import simulator

    append = simulator.load("append_kv")         # kernels/cuda/append_kv.py, its imports of compiler and ptx replaced
    append.append_kv(k, v, kv, steps)            # whole operations: the host's side runs as it is, on NumPy arrays
    append.some_kernel[grid, block](a, b, 3)     # or one kernel: grid and block an int or up to three
    simulator.launch(append.some_kernel, grid, block, (a, b, 3), shared=1024)

Arguments are NumPy arrays (written in place) and numbers. A kernel file takes everything from ``toolchain.compiler``
and ``toolchain.ptx``; it may import ``qsa.reference`` and ``math`` for constants, and must not import numba.

What is found, each as a :class:`SimulationError` that names kernel, block, lane and source line (``kind``):

``barrier``     not reached by all its lanes; lanes of one warp at different lines; a wait on memory that never ends;
                an mbarrier that other bytes come to than it expects, or whose block ends before they come
``divergence``  a shuffle, vote, ``mma`` or ``ldmatrix`` that lanes of its mask do not reach, or reach elsewhere
``unwritten``   a read of shared or local memory never written, or to which an asynchronous copy is still under way; an
                mbarrier never initialised
``bounds``      shared, local or global access outside its array; negative indices
``alignment``   an address that is no multiple of the access's size
``race``        two lanes at one shared word, one of them writing, without a barrier or ``syncwarp`` between. Shuffles
                and votes order registers, not memory; what blocks of a cluster send each other has rules of its own
                (cluster.py)
``overflow``    a global store of an integer its array cannot hold; a float out of an integer's range
``dependency``  a kernel that waits for earlier launches (``wait_for_earlier``) and touches global memory before that,
                or ends without it
``device``      an instruction that the simulated device does not have: those of clusters and mbarriers (sm_90), ``mma``
                and ``cp.async`` (sm_80), ``ldmatrix`` (sm_75). Nothing older than sm_75 is simulated
``python``      any other exception

``cp.async`` data land at the lane's wait, not before. Blocks run one after another; one that only polls global memory
(atomics, volatile and acquire loads) lets the next begin, up to ``settings.resident``; those of a cluster begin
together. ``settings.order = "backwards"`` runs blocks and warps in the opposite order.

Where it differs from a device: integers are unbounded between typed constructors (numba widens to 64 bits); an int
times a float32 stays float32 (numba: float64; the PTX checks look for that); ``clz`` counts from bit 31 (numba: from
bit 63 of a widened value, so convert first); float ``a * b + c`` is not contracted;
NaN have other bits; two lanes that store one value into one word still count as a race. Functions of ``math`` would
compute in double: use ``libdevice``.

Speed: exact attention of one row, 24 heads, 128 cells on 4 blocks of 384 lanes takes about 1.5 s of one core.
"""

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from ..toolchain import host
from ..toolchain.constants import OVERLAPPING
from ..toolchain.host import Argument, Numbers, Properties, count_launch, launches, per_device, waits_for_earlier
from . import memory, numbers, ops, ptx
from .arrays import GlobalArray
from .block_scheduler import Block, run_grid
from .cluster import Cluster, ClusterMemory
from .memory import GlobalMemory, SharedMemory
from .state import Dim3, SimulationError, State

__all__ = ["SimulationError", "configured", "launch", "launches", "load", "settings"]

_SOURCES = __package__.rpartition(".")[0]
PACKAGE = f"{_SOURCES}_simulated"
"""Name of the package under which kernel files are loaded for the simulator."""

settings = SimpleNamespace(
    order="forwards",
    resident=1024,
    clusters=None,
    resident_blocks=1,
    properties=Properties("simulator", (9, 0), 4, 227 * 1024, 228 * 1024, 50 << 20),
)
"""How launches run, and the device that kernels are told they run on. ``clusters``: a tuple of (blocks of a cluster,
how many such clusters it holds at once), of which a size that is missing cannot be had; None: as many as its
multiprocessors hold at a block each. ``resident_blocks``: of any kernel that a multiprocessor holds at once."""


class Kernel:
    """A kernel's source, ready to be launched."""

    def __init__(self, function: Callable[..., None], options: dict[str, Any]) -> None:
        self.py_func, self.options = function, options
        self.__name__ = function.__name__

    def __getitem__(self, configuration: Any) -> Any:
        grid, block, *rest = configuration
        shared = rest[1] if len(rest) > 1 else 0
        return lambda *args: launch(self, grid, block, args, shared)


def _dim3(size):
    return Dim3(*map(int, size)) if isinstance(size, (tuple, list)) else Dim3(int(size))


def launch(
    kernel: Kernel,
    grid: int | tuple[int, ...],
    block: int | tuple[int, ...],
    args: Sequence[Any],
    shared: int = 0,
    stream: Any = None,
    cluster: int = 1,
) -> None:
    """Run ``kernel`` to its end; arguments as ``compiler.launch``. Raises :class:`SimulationError` on a fault."""
    count_launch(kernel.__name__)
    blocks_of, lanes_of = _dim3(grid), _dim3(block)
    memory = GlobalMemory()
    seen = tuple(memory.register(x) if isinstance(x, np.ndarray) else _scalar(x) for x in args)
    blocks = blocks_of.x * blocks_of.y * blocks_of.z
    backwards = settings.order == "backwards"
    overlaps = waits_for_earlier(kernel)

    if blocks % cluster:
        raise ValueError(f"cluster = {cluster}: must divide the grid's {blocks} blocks")

    def make(i, own):
        index = Dim3(i % blocks_of.x, i // blocks_of.x % blocks_of.y, i // (blocks_of.x * blocks_of.y))
        made = Block(kernel.__name__, kernel.py_func, seen, index, blocks_of, lanes_of, own, memory, backwards)
        made.overlaps = overlaps
        return made

    def start(i):
        if cluster == 1:
            return [make(i, SharedMemory(shared))]
        together = Cluster(cluster)
        together.blocks = [make(i * cluster + rank, ClusterMemory(shared)) for rank in range(cluster)]
        for held in together.blocks:
            held.cluster = together
        return together.blocks[::-1] if backwards else together.blocks

    State.capability = settings.properties.compute_capability
    run_grid(start, blocks // cluster, settings.order, settings.resident)
    # The last lane knows the launch's arrays, which must not outlive it.
    State.lane = None


class SimulatedLaunch:
    """A prepared launch, as ``toolchain.driver.PackedLaunch``, that runs here."""

    def __init__(
        self,
        kernel: Kernel,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        args: Sequence[Any],
        shared: int,
        cluster: int,
    ) -> None:
        self.name, self.kernel, self.args = kernel.__name__, kernel, tuple(args)
        self.grid, self.block, self.shared, self.cluster = grid, block, shared, cluster
        self.early = False
        self._arrays: Sequence[Any] = ()
        self._given: Sequence[int] = ()

    def start_early(self) -> None:
        """As ``PackedLaunch``; launches run one after another here."""
        self.early = waits_for_earlier(self.kernel)

    def point(self, addresses: Sequence[int], arrays: Sequence[Any] = ()) -> None:
        """Take a call's arrays; their ``addresses`` are for a device."""
        self._arrays = arrays

    def number(self, numbers: Sequence[int]) -> None:
        """Take the numbers of a call."""
        self._given = numbers

    def submit(self, stream: int) -> None:
        """Run it to its end with the arrays of the last :meth:`point`."""
        values = [self._value(value) for value in self.args]
        self._arrays = ()
        launch(self.kernel, self.grid, self.block, values, shared=self.shared, cluster=self.cluster)

    def _value(self, value):
        if isinstance(value, Argument):
            array = self._arrays[value.position]
            if value.row:
                array = array[value.first : value.first + value.shape[0]]
            return array.reshape(value.shape)
        return value.of(self._given) if isinstance(value, Numbers) else value


def _prepare(kernel, grid, block, args, shared=0, cluster=1):
    return SimulatedLaunch(kernel, grid, block, args, shared, cluster)


def _addresses(arrays, expected):
    """As ``compiler.addresses``."""
    for array, (shape, dtype, mask) in zip(arrays, expected, strict=False):
        if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != dtype:
            return None
        if not array.flags.c_contiguous or memory.address(array) & mask:
            return None
    return [memory.address(array) for array in arrays]


def _places(arrays):
    """As ``compiler.places``."""
    return [memory.address(array) for array in arrays]


_devices: list[tuple[Properties, Any]] = [(settings.properties, (settings.clusters, settings.resident_blocks))]


def _current_device():
    """Ordinal of the simulated device: every set of properties is a device of its own."""
    now = settings.properties, (settings.clusters, settings.resident_blocks)
    if now not in _devices:
        _devices.append(now)
    return _devices.index(now)


def _scalar(x):
    if isinstance(x, np.integer):
        return int(x)
    return x if isinstance(x, (int, GlobalArray)) else np.float32(x) if isinstance(x, float) else x


def _kernel(max_registers=None, shared_memory_carveout=None, launch_bounds=None):
    options = {
        "max_registers": max_registers,
        "shared_memory_carveout": shared_memory_carveout,
        "launch_bounds": launch_bounds,
    }
    return lambda function: Kernel(function, options)


def _compiler():
    """The module put in the place of ``compiler``."""
    module = ModuleType(f"{PACKAGE}.toolchain.compiler", "The simulator's compiler: see simulator/launch.py.")
    module.NAME = "simulator"
    module.cuda, module.types, module.libdevice = ops.cuda, numbers.types, ops.libdevice
    for name in ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float32", "float64"):
        setattr(module, name, getattr(numbers, name))
    module.kernel, module.device_function = _kernel, lambda function: function
    module.launch, module.prepare = launch, _prepare
    module.address, module.addresses, module.places = memory.address, _addresses, _places
    module.capturing, module.lasting = lambda stream: False, np.empty
    module.array_module, module.as_numpy, module.pinned = lambda: np, np.array, _pinned
    module.current_device, module.stream_key = _current_device, lambda stream=None: (_current_device(), 0, 0)
    module.specialised = per_device(module.current_device)
    module.properties = lambda: settings.properties
    module.Properties = Properties
    module.max_clusters = _max_clusters
    module.can_overlap = lambda: settings.properties.compute_capability >= OVERLAPPING
    module.resident_blocks = lambda kernel, args, block, shared: settings.resident_blocks
    return module


def _max_clusters(kernel, args, block, shared, cluster):
    """As ``compiler.max_clusters``, from the ``settings``."""
    if settings.properties.compute_capability < (9, 0):
        return 0
    if settings.clusters is None:
        return settings.properties.multiprocessors // cluster
    return dict(settings.clusters).get(cluster, 0)


def _pinned(shape, dtype):
    array = np.zeros(shape, dtype)
    return array, array


def _package():
    if PACKAGE not in sys.modules:
        package = ModuleType(PACKAGE, "Kernel files, loaded for the simulator.")
        package.__path__ = list(sys.modules[_SOURCES].__path__)
        sys.modules[PACKAGE] = package
        toolchain = importlib.import_module(f"{PACKAGE}.toolchain")
        for name, module in (("compiler", _compiler()), ("ptx", ptx), ("host", host)):
            sys.modules[f"{PACKAGE}.toolchain.{name}"] = module
            setattr(toolchain, name, module)
    return sys.modules[PACKAGE]


def load(name: str) -> ModuleType:
    """The kernel file ``name``, such as ``select`` or ``layers.norm``, of ``kernels/cuda`` as a module of its own whose
    kernels run here."""
    _package()
    return importlib.import_module(f"{PACKAGE}.{name}")


@contextlib.contextmanager
def configured(**changes: Any) -> Iterator[None]:
    """Other ``settings`` for a while."""
    before = {name: getattr(settings, name) for name in changes}
    vars(settings).update(changes)
    try:
        yield
    finally:
        vars(settings).update(before)
