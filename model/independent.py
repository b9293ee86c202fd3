"""Calls that do not depend on each other, as a backend may make them at the same time."""

from collections.abc import Callable, Sequence
from typing import Any


def together(backend: Any, calls: Sequence[Callable[[], Any]]) -> None:
    """Make ``calls``, of which none reads or writes what another one writes: by the backend's own ``together``, else in
    order. All are over, or ordered before what follows, when it returns."""
    run = getattr(backend, "together", None)
    if run is not None:
        run(calls)
        return
    for call in calls:
        call()
