"""What the recurrences share: the states of several sequences in one launch, and which rows are whose.

A call takes the rows of up to 8 sequences in one launch, further ones in further launches: the addresses of their
states and the bounds of their rows are arguments, so a captured launch holds them; of :class:`RowBounds` it holds the
address alone, and every replay reads them.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from qsa.reference.exact.layers.recurrent import check_spans

from ..common.checks import check_array
from ..toolchain.compiler import address
from ..toolchain.host import DeviceArray

MAX_SEQUENCES = 8
"""Sequences of one launch."""


class RowBounds(NamedTuple):
    """In the place of ``spans``: which rows of each sequence are taken, read on the device.

    ``bounds`` int64 [16] on the device: first row and the row after the last of each of up to 8 sequences, which need
    not follow one another. ``most``: rows of a sequence at most.
    """

    bounds: DeviceArray
    most: int


def launches_of(states: Any, spans: Any, rows: int) -> Iterator[tuple[tuple[int, ...], Any, int, int]]:
    """(addresses of the states, bounds of their rows, sequences, most rows) of every launch, filled up to 8."""
    if isinstance(spans, RowBounds):
        yield (*map(address, states), *(0,) * (MAX_SEQUENCES - len(states))), spans.bounds, len(states), spans.most
        return
    if spans is None:
        states, spans = [states], [slice(0, rows)]
    for first in range(0, len(spans), MAX_SEQUENCES):
        part, held = spans[first : first + MAX_SEQUENCES], states[first : first + MAX_SEQUENCES]
        fill = MAX_SEQUENCES - len(part)
        bounds = (*(end for span in part for end in (span.start, span.stop)), *(0,) * (2 * fill))
        addresses = (*map(address, held), *(0,) * fill)
        yield addresses, bounds, len(part), max(span.stop - span.start for span in part)


def check_bounds(spans: Any, states: Any, rows: int) -> None:
    """As ``reference.exact.layers.recurrent.check_spans``, of :class:`RowBounds` too."""
    if not isinstance(spans, RowBounds):
        check_spans(spans, states, rows)
        return
    check_array("bounds", spans.bounds, "int64", (2 * MAX_SEQUENCES,), alignment=8)
    if len(states) > MAX_SEQUENCES or not 0 <= spans.most <= rows:
        raise ValueError(f"spans: {len(states)} states, {spans.most} rows: at most {MAX_SEQUENCES}, and {rows} rows")


def check_state(name: str, state: DeviceArray, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless ``state`` is float32 of ``shape``, C-contiguous."""
    if state.shape != shape or state.dtype != "float32" or not state.flags.c_contiguous:
        raise ValueError(f"{name}: {state.dtype} {state.shape}: must be float32 {shape}, C-contiguous")


def check_rows(name: str, x: DeviceArray, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless ``x`` is float32 of ``shape``."""
    if x.shape != shape or x.dtype != "float32":
        raise ValueError(f"{name}: {x.dtype} {x.shape}: must be float32 {shape}")
