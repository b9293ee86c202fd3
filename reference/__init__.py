"""float64 reference of the `qwen4_exp` text model and of the five operations, in plain NumPy.

The operations are functions of this package and take NumPy arrays: :func:`append_kv`, :func:`append_index`,
:func:`block_scores`, :func:`select` and :func:`attend`. Each has its file of the same name, whose helpers are imported
with ``from qsa.reference.attend import ...``. They work on :class:`PagedKV` and :class:`Index`, with step records
[rows, 4] int32 of :func:`step_records`. ``qsa.reference.exact`` has the same operations in the exact arithmetic.
"""

from .append_index import append_index
from .append_kv import append_kv
from .attend import attend
from .block_scores import block_scores
from .geometry import REAL, Geometry, step_records
from .index import Index
from .kv import Cells, PagedKV, Pool, Side
from .model.checkpoint import CheckpointError, load_checkpoint
from .model.config import Config
from .model.presets import REAL_CONFIG, TINY_CONFIG
from .model.random_model import random_model
from .model.text_model import Model, Output, Trace
from .sampler import Sampling
from .select import select
from .validation import InvalidError

__all__ = [
    "REAL",
    "REAL_CONFIG",
    "TINY_CONFIG",
    "Cells",
    "CheckpointError",
    "Config",
    "Geometry",
    "Index",
    "InvalidError",
    "Model",
    "Output",
    "PagedKV",
    "Pool",
    "Sampling",
    "Side",
    "Trace",
    "append_index",
    "append_kv",
    "attend",
    "block_scores",
    "load_checkpoint",
    "random_model",
    "select",
    "step_records",
]
