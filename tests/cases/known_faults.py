"""Faults that kernels like ours have had, each with the smallest input that shows it and the right value.

The letters are those of the list the project keeps: A are faults of one engine and its forks, B and C of others. Every
backend is held to the same tests: the reference's exact arithmetic, the CPU kernels, the CUDA kernels in the simulator
and on a device. They lie by operation in ``known_faults_index`` (keys, scores), ``known_faults_select``,
``known_faults_attend`` (K/V, attention), ``known_faults_step`` (several operations, graphs) and ``known_faults_large``.
The last are left out of the simulator: it needs minutes for a row of 65,537 blocks, and its grids, which end at the
device's limits, are tested there with the limit lowered (``tests/sim/test_block_scores.py``).

Rows whose subject is no kernel are tested where their subject is: A17 (order and histories of the sampler) in
``tests/cpu/reference/test_sampler.py``, ``test_speculative.py``, their namesakes ``test_exact_*.py`` and
``test_kernels_sample.py``, A18 (text that depends on the window) and C6 (verified by the draft's own K/V) in
``test_speculative.py``, C9 (query and gate interleaved) and C10 (the norm's unit offset) in
``test_reference_model.py`` and ``tests/oracle``. What the engine alone can get wrong is to be tested with the engine:
A13 (two blocks in one slot of the page cache), A20 (a staging buffer used again too early), B1 and C8 (a copied or
restored sequence without its indexer keys), C7 (the short convolution's state of another row).
"""

import contextlib

import numpy as np

from qsa.kernels.ops import OPERATIONS
from qsa.parity.backend import Backend
from qsa.parity.backend import call as checked_call
from qsa.reference.formats import EXACT_FORMATS
from qsa.reference.geometry import REAL, Geometry
from qsa.reference.index import Index
from support.attention import store

ACCURACY = 1e-6
"""Relative to float64 on the same codes; the project's bound for ordinary inputs, 16 roundings of 2^-24."""


class FaultBackend(Backend):
    """A backend in the exact arithmetic, called with NumPy arrays; ``small``: with the least sizes, for the simulator.

    ``geometry``: heads of attention problems, and the selection's budget. ``formats``: those that a test of pages goes
    through, K8V4 alone where small: it has a side of either coding. ``schedules``: operation -> the schedules
    that the module has, None where it takes no such keyword or has one kernel for all; where small, only those of
    ``attend`` that cut a row differently (``attend_cases`` compares them all). ``captured(call)``: a function that
    makes the call's launches again. ``machines``: context managers, one for each kind of machine that the backend can
    be run as. ``empty(shape, dtype)``: a new array of the module's own, of which nothing is written.
    """

    def __init__(
        self, module, small=False, captured=lambda call: call, machines=(contextlib.nullcontext,), empty=np.empty
    ):
        super().__init__(module)
        self.small, self.captured, self.machines, self.empty = small, captured, machines, empty
        self.geometry = Geometry(n_head=3, n_head_kv=1, budget=16) if small else Geometry(n_head=4, n_head_kv=2)
        self.formats = ("k8v4",) if small else EXACT_FORMATS
        self.on_device = hasattr(self.module, "to_device")
        if self.on_device:
            self.schedules = {name: operation.schedules for name, operation in OPERATIONS.items()}
            if small:
                self.schedules["attend"] = ("batch", "split")
        else:
            attend = ("batch", "split") if module == "exact" else OPERATIONS["attend"].schedules
            self.schedules = {"block_scores": (None,), "select": (None,), "attend": attend}

    def place(self, value):
        """``value`` as the module's own operations take it: a copy on its device, or itself."""
        return self._device(value)

    def write(self, placed, value):
        """Put NumPy ``value`` into an array of :meth:`place`."""
        placed[...] = self._device(value)

    def read(self, placed):
        """The inverse of :meth:`place`."""
        return self._host(placed)

    def call(self, operation, *placed, **keywords):
        """The operation on arrays of :meth:`place`; attention in the exact arithmetic."""
        function = self._function(operation)
        if operation == "attend":
            schedule, splits = keywords.pop("schedule", "batch"), keywords.pop("splits", None)
            keywords |= self._attend_keywords(function, schedule, splits)
            if splits is None:
                keywords.pop("splits", None)
        return checked_call(operation, function, *placed, **keywords)


def queries(rng, rows, geometry):
    """Normal queries [rows, n_head, head_dim] float32."""
    return rng.standard_normal((rows, geometry.n_head, geometry.head_dim)).astype(np.float32)


def vectors(rng, n, geometry):
    """Normal K and V [n, n_head_kv, head_dim] float32."""
    return rng.standard_normal((2, n, geometry.n_head_kv, geometry.head_dim)).astype(np.float32)


def cells(rng, n, geometry, page_size=4, fmt="int8"):
    """A PagedKV of ``n`` normal cells behind a shuffled page table."""
    return store(*vectors(rng, n, geometry), fmt, page_size, geometry, rng)


def index_queries(rng, rows):
    """Normal indexer queries [rows, 4, 128] float32."""
    return rng.standard_normal((rows, REAL.idx_heads, REAL.idx_dim)).astype(np.float32)


def new_index(blocks, **options):
    """An Index of the real geometry with a norm weight of ones."""
    return Index(blocks, np.ones(REAL.idx_dim, np.float32), **options)


def raw_keys(rng, rows):
    """Normal raw indexer keys [rows, idx_dim] float32."""
    return rng.standard_normal((rows, REAL.idx_dim)).astype(np.float32)
