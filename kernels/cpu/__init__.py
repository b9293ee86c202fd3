"""Kernels for CPUs, in numba: the five operations as a backend (``kernels/ops.py``), under the reference's own names.

The exact operations give the bytes of ``reference/exact`` on every processor and at every number of threads; the float
arithmetic of ``attend`` gives its own bits, also independent of both. They work in place on the NumPy arrays of
``PagedKV`` and ``Index``; a view of any layout is taken, at the price of a copy. Of the switches only ``split_attn``
and ``arithmetic`` matter here: the others choose between schedules that are one kernel on a CPU.

The threads are as many as numba is told (``NUMBA_NUM_THREADS``, ``numba.set_num_threads``); ``threads.py`` has them.
Several Python threads may call at once, and so may a process that was forked from one whose kernels have run.
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

declaration = {
    "arithmetic": ["exact", "float"],
    "index_formats": ["fp32", "int16"],
    "domain": {"overflow": True},
    "invariance": ["repeat", "batch", "schedule", "pages", "value_scale", "value_sign", "signs", "heads"],
}
"""What the backend declares under the judge (``parity/contract/declaration.py``)."""
