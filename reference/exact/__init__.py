"""The exact arithmetic, version 1, in NumPy: the same bytes for every split, batch, schedule and device.

Source: design section 4. One file per operation under the reference's own names; ``scalar.py`` holds the numbers they
share, ``layers`` has the operations of which layers are made; ``qsa.model`` makes a whole model of them
(``ExactModel``).
``append_kv`` is the reference's own, whose codes are exact to the bit. Rules the design leaves open are settled in the
docstrings here: a score is clamped to +-2^24, an empty selection gives 0 even to a non-finite query, a NaN is written
as 0x7fc00000.
"""

from ..append_kv import append_kv
from . import layers
from .append_index import append_index
from .attend import Maxima, Sums, attend
from .block_scores import block_scores
from .layers.linear import QuantisedLinear
from .sampler import Constants
from .select import select

CONTRACT = "exact-1"
"""Name of this arithmetic, kept with every golden."""

declaration = {"arithmetic": "exact", "index_formats": ["fp32", "int16"]}
"""What it declares as a backend under the judge (``parity/contract/declaration.py``)."""

__all__ = [
    "CONTRACT",
    "Constants",
    "Maxima",
    "QuantisedLinear",
    "Sums",
    "append_index",
    "append_kv",
    "attend",
    "block_scores",
    "declaration",
    "layers",
    "select",
]
