"""Kernels for CPUs, in numba: the five operations as a backend (``kernels/ops.py``), under the reference's own names.

The exact operations give the bytes of ``reference/exact`` on every processor and at every number of threads; the float
arithmetic of ``attend`` gives its own bits, also independent of both. They work in place on the NumPy arrays of
``PagedKV`` and ``Index``; a view of any layout is taken, at the price of a copy. Of the switches only ``split_attn``
and ``arithmetic`` matter here: the others choose between schedules that are one kernel on a CPU.

Threads are numba's (``NUMBA_NUM_THREADS``). Calls from several Python threads at once need numba's ``omp`` or ``tbb``
threading layer, not ``workqueue``. A process that is forked from one whose kernels have run (multiprocessing's old
default on Linux) needs ``tbb`` or ``workqueue``: with ``omp`` a parallel kernel raises RuntimeError there.
"""

from . import layers
from .append_index import append_index
from .append_kv import append_kv
from .attend import attend
from .block_scores import block_scores
from .layers.linear import LoadedLinear
from .sampler import Lists
from .select import select

__all__ = [
    "Lists",
    "LoadedLinear",
    "append_index",
    "append_kv",
    "attend",
    "block_scores",
    "declaration",
    "layers",
    "select",
]

declaration = {"arithmetic": ["exact", "float"], "invariance": ["repeat", "batch", "schedule", "pages"]}
"""What the backend declares under the judge (``parity/contract/declaration.py``)."""
