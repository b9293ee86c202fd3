"""A backend's own storage and the values that it holds: the backend gets the handle, truth is made of the values."""

from dataclasses import dataclass
from typing import Any

from qsa.reference.index import Index
from qsa.reference.kv import PagedKV


@dataclass(frozen=True)
class Own:
    """Something of the backend's own, which goes to its functions as it is: ``handle``."""

    handle: Any


@dataclass(frozen=True)
class OwnKV(Own):
    """K and V of one slot in a backend's own storage.

    ``handle`` is what the backend's ``cache`` returned. ``paged`` has the values that its ``read`` gave, in a pool of
    format f64 and the capacity of the slot.
    """

    paged: PagedKV


@dataclass(frozen=True)
class OwnIndex(Own):
    """An index in a backend's own storage.

    ``handle`` is what the backend's ``index_cache`` returned. ``index`` has the pooled keys that its ``index_read``
    gave, in float64; its tail and dead key are those of the reference.
    """

    index: Index
