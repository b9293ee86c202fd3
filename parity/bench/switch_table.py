"""The table of the switches, off against on: its rows as a record holds them, and as text. Needs no device."""

from typing import NamedTuple


class Row(NamedTuple):
    """One line of the table: ``switch``, ``what`` is timed, and for each of ``contexts`` (cells) a pair (off, on) in
    microseconds in ``times``."""

    switch: str
    what: str
    contexts: tuple
    times: tuple


def as_json(rows):
    """The rows as evidence holds them (:class:`qsa.golden.device_records.Switch`)."""
    return [
        {
            "switch": row.switch,
            "what": row.what,
            "contexts": list(row.contexts),
            "off_us": [round(off, 3) for off, _ in row.times],
            "on_us": [round(on, 3) for _, on in row.times],
        }
        for row in rows
    ]


def from_json(found):
    """The inverse of :func:`as_json`."""
    return [
        Row(one["switch"], one["what"], tuple(one["contexts"]), tuple(zip(one["off_us"], one["on_us"], strict=True)))
        for one in found
    ]


def lines(rows):
    """The table as text, a line each; nothing without rows. All rows have the contexts of the first."""
    if not rows:
        return
    yield f"{'switch':18}{'timed':48}" + "".join(f"{f'{cells >> 10}K: off -> on':>20}" for cells in rows[0].contexts)
    for one in rows:
        yield f"{one.switch:18}{one.what:48}" + "".join(f"{f'{a:.1f} -> {b:.1f}':>20}" for a, b in one.times)
    yield "microseconds, median of graph replays, hot; 24 heads, int8, capacity 200,000 cells; off and on: equal bytes"
