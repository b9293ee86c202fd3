"""The table of the switches, off, on and unset: its rows as a record holds them, and as text. Needs no device."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple


class Row(NamedTuple):
    """One line of the table: ``switch``, ``what`` is timed, and for each of ``contexts`` (cells) a pair (off, on) in
    microseconds in ``times``. ``unset``: the same with the switch unset, where that may be neither; else empty."""

    switch: str
    what: str
    contexts: tuple[int, ...]
    times: tuple[tuple[float, float], ...]
    unset: tuple[float, ...] = ()


def as_json(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The rows as a record holds them (:class:`qsa.golden.device_records.Switch`)."""
    return [
        {
            "switch": row.switch,
            "what": row.what,
            "contexts": list(row.contexts),
            "off_us": [round(off, 3) for off, _ in row.times],
            "on_us": [round(on, 3) for _, on in row.times],
            **({"unset_us": [round(time, 3) for time in row.unset]} if row.unset else {}),
        }
        for row in rows
    ]


def from_json(found: Iterable[dict[str, Any]]) -> list[Row]:
    """The inverse of :func:`as_json`."""
    return [
        Row(
            row["switch"],
            row["what"],
            tuple(row["contexts"]),
            tuple(zip(row["off_us"], row["on_us"], strict=True)),
            tuple(row.get("unset_us", ())),
        )
        for row in found
    ]


def lines(rows: list[Row]) -> Iterator[str]:
    """The table as text, a line each; nothing without rows. All rows have the contexts of the first."""
    if not rows:
        return
    heads = "".join(f"{f'{cells >> 10}K: off -> on (unset)':>28}" for cells in rows[0].contexts)
    yield f"{'switch':18}{'timed':48}{heads}"
    for row in rows:
        unset = [f" ({time:.1f})" for time in row.unset] or [""] * len(row.times)
        texts = (f"{off:.1f} -> {on:.1f}{rest}" for (off, on), rest in zip(row.times, unset, strict=True))
        yield f"{row.switch:18}{row.what:48}" + "".join(f"{text:>28}" for text in texts)
    yield "microseconds, median of graph replays, hot; 24 heads, int8, capacity 200,000 cells; all sides: equal bytes"
