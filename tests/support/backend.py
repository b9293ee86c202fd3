"""The backend that tests call: the operations and layers of one compiler, with NumPy arrays in and out."""

import contextlib
import importlib
from functools import cached_property, partial
from types import SimpleNamespace

import numpy as np

from qsa.kernels.cuda import simulator
from qsa.kernels.cuda.toolchain.host import launches
from qsa.kernels.ops import OPERATIONS
from qsa.parity.backend import Backend as ParityBackend
from qsa.parity.backend import call as checked_call
from qsa.reference.exact.layers.linear import QuantisedLinear
from qsa.reference.formats import EXACT_FORMATS
from qsa.reference.geometry import Geometry
from qsa.reference.kv import Side
from support.guarded import Guarded, replay

SIMULATOR = "support.simulated"
"""Name of the CUDA kernels in the simulator; ``cuda`` is the same on a device, ``cpu`` and ``exact`` are the host's."""


class Backend(ParityBackend):
    """The backend ``name`` in the exact arithmetic.

    ``attend``, ``block_scores``, ``select``, ``append_kv`` and ``append_index``, which it inherits, take and return
    NumPy arrays and compare their inputs after the call. ``layers`` has every layer in the same manner. Tests of
    launches, refusals and buffers use :meth:`launch` and :meth:`call`, or the functions of ``module`` themselves.

    ``small``: tests take the smallest sizes, as in the simulator. ``geometry``: heads of attention problems, and the
    budget of the selection. ``formats``: K/V formats of tests that go through all; in the simulator k8v4 alone, which
    has a side of either coding. ``schedules``: operation -> the schedules that the module has, (None,) where it takes
    no such keyword; in the simulator only those of ``attend`` that cut a row in different ways. ``machines``: context
    managers, one for each kind of machine that the backend can be run as.
    """

    def __init__(self, name, machines=(contextlib.nullcontext,)):
        super().__init__(name, "exact")
        self.machines, self.small = machines, name == SIMULATOR
        self.geometry = Geometry(n_head=3, n_head_kv=1, budget=16) if self.small else Geometry(n_head=4, n_head_kv=2)
        self.formats = ("k8v4",) if self.small else EXACT_FORMATS
        self.on_device = hasattr(self.module, "to_device")
        if self.on_device:
            self.schedules = {name: operation.schedules for name, operation in OPERATIONS.items()}
            if self.small:
                self.schedules["attend"] = ("batch", "split")
        else:
            attend = ("batch", "split") if name == "exact" else OPERATIONS["attend"].schedules
            self.schedules = {"block_scores": (None,), "select": (None,), "attend": attend}

    def load(self, name):
        """The module ``name`` of the CUDA kernels under this compiler: ``attend``, ``device.containers``, ..."""
        # By its full name: as an attribute of the package it may be the operation of the same name.
        return simulator.load(name) if self.name == SIMULATOR else importlib.import_module(f"qsa.kernels.cuda.{name}")

    @cached_property
    def xp(self):
        """The module of the backend's arrays: CuPy on a device, NumPy elsewhere."""
        return self.load("toolchain.compiler").array_module() if self.on_device else np

    def to_device(self, value):
        """A copy on the device of an array, a PagedKV, an Index, weights or a list of them; anything else stays."""
        if isinstance(value, QuantisedLinear):
            return self.module.layers.load_table(value)
        return self.kernel.device(value)

    def to_host(self, value):
        """The inverse of :meth:`to_device`."""
        return self.kernel.host(value)

    def write(self, array, value):
        """Copy the NumPy array ``value`` into an array of :meth:`to_device`."""
        array[...] = self.kernel.device(value)

    def launch(self, operation, *inputs, **keywords):
        """What the operation returns: an array on the device, True, or False for a refusal.

        NumPy arrays among ``inputs`` are moved to the device; ``keywords``, outputs among them, are passed as they are.
        """
        return getattr(self.module, operation)(*map(self.to_device, inputs), **keywords)

    def call(self, operation, *arrays, **keywords):
        """The operation on arrays of :meth:`to_device`; attention in the exact arithmetic. Raises UnsupportedError on
        a refusal."""
        function = self.kernel.function(operation)
        if operation == "attend":
            schedule, splits = keywords.pop("schedule", "batch"), keywords.pop("splits", None)
            keywords |= self.attend_keywords(schedule, splits)
            if splits is None:
                keywords.pop("splits", None)
        return checked_call(operation, function, *arrays, **keywords)

    @cached_property
    def layers(self):
        """The layers by name. They take NumPy arrays or arrays on the device; results are NumPy arrays. Functions that
        load weights return what the layers take."""
        layers = self.module.layers
        functions = {name: getattr(layers, name) for name in layers.__all__ if callable(getattr(layers, name))}
        wrapped = {name: self._with_numpy(call) for name, call in functions.items() if not name.startswith("load_")}
        return SimpleNamespace(**functions | wrapped)

    def _with_numpy(self, layer):
        def call(*arguments):
            result = layer(*map(self._layer_argument, arguments))
            return tuple(map(self.to_host, result)) if isinstance(result, tuple) else self.to_host(result)

        return call

    def _layer_argument(self, value):
        # The simulator's arrays are NumPy's: a view must stay a view.
        return value if self.xp is np and isinstance(value, np.ndarray) else self.to_device(value)

    def counted(self, call):
        """Number of launches that ``call()`` makes."""
        before = sum(launches().values())
        call()
        return sum(launches().values()) - before

    def captured(self, call):
        """A function that makes the launches of ``call`` again: from a graph on a device, by ``call`` elsewhere."""
        return partial(replay, self.load("device").Graph(call)) if self.name == "cuda" else call

    def guarded(self, shape, dtype, fill=None):
        """A :class:`Guarded` buffer on the device."""
        return Guarded(shape, dtype, fill, self.xp)

    def between_guards(self, kv):
        """(``kv`` on the device with the same bytes in its pool, the :class:`Guarded` buffers of the pool)."""
        moved, buffers = self.to_device(kv), []
        for name in ("k", "v"):
            side = getattr(moved.pool, name)
            for array in side[1:]:
                buffers.append(self.guarded(array.shape, array.dtype))
                buffers[-1].array[...] = array
            setattr(moved.pool, name, Side(side.coding, *(buffer.array for buffer in buffers[-2:])))
        return moved, buffers
