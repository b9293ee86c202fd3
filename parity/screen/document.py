"""The report of ``qsa bench`` for a reader: lines of a terminal; the document that HTML and Markdown are made of."""

from collections.abc import Callable, Iterator

from rich import box
from rich.table import Table as Columns

from ..readable.document import Document, Row, Table, written
from . import plots
from .results import Bench, Limits, State, Timing

STATUS = {"timed": "passed", "wrong": "failed", "impossible": "failed", "unsupported": "unsupported"}
"""Status of a timing -> that of a report's row."""


def time_text(us: float) -> str:
    """Microseconds with three digits, or as milliseconds or seconds."""
    for factor, unit in ((1e6, "s"), (1e3, "ms")):
        if us >= factor:
            return f"{us / factor:.3g} {unit}"
    return f"{us:.3g} us"


def spread_text(timing: Timing) -> str:
    """The 10th and 90th percentile in the unit of the time."""
    assert timing.us is not None and timing.p10_us is not None and timing.p90_us is not None
    factor = next((factor for factor in (1e6, 1e3) if timing.us >= factor), 1)
    return " to ".join(
        f"{x / factor:.3g}" if x < 1000 * factor else f"{x / factor:.0f}" for x in (timing.p10_us, timing.p90_us)
    )


def share_text(timing: Timing) -> str:
    """The floor's share of the time, in percent."""
    return "" if timing.share is None else f"{100 * timing.share:.2g} %"


def against_text(timing: Timing) -> str:
    """The other contestant's time in times of the backend's, and the backend's verdict."""
    found = timing.against
    if found is None:
        return ""
    return f"{1 / found.ratio:.2f} x, {found.verdict}"


def line(timing: Timing) -> str:
    """One timing as a line of the terminal."""
    if timing.us is None:
        return f"{timing.status:12}{timing.case}  {timing.contestant}: {timing.reason}"
    spread = f"({spread_text(timing)})"
    other = f"  {against_text(timing)}" if timing.against is not None else ""
    return f"{time_text(timing.us):>9} {spread:16} {share_text(timing):>6}  {timing.case}  {timing.contestant}{other}"


def limits_lines(limits: Limits) -> Iterator[str]:
    """What the machine can do, as text."""
    rates = ", ".join(f"{size_text(rate.bytes)} {rate.copy_gb_s:.4g} / {rate.read_gb_s:.4g}" for rate in limits.rates)
    yield f"{limits.device}: copy / read in GB/s of a set of {rates}"
    yield (
        f"  smallest call {limits.small_us:.3g} us; at most {limits.macs_per_s / 1e12:.3g} T multiply-adds a second "
        f"({limits.macs_source})"
    )


def size_text(nbytes: int) -> str:
    """Bytes as KiB, MiB or GiB."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes / 1024:.3g} KiB"


def state_text(state: State) -> str:
    """A state on one line; what is not told is left out."""
    parts = []
    if state.clock_mhz is not None:
        most = "" if state.most_mhz is None else f" of {state.most_mhz:.0f}"
        parts.append(f"{state.clock_mhz:.0f}{most} MHz")
    if state.temperature is not None:
        parts.append(f"{state.temperature:.0f} C")
    if state.watts is not None:
        parts.append(f"{state.watts:.0f} W")
    if state.load is not None:
        parts.append(f"load {state.load:g}")
    parts += [f"throttled: {reason}" for reason in state.throttled]
    return ", ".join(parts) or "nothing is told"


def exponents_table(bench: Bench) -> Columns:
    """The exponents for the terminal."""
    out = Columns(box=box.SIMPLE_HEAD, pad_edge=False, title="time grows as the axis to the power of", title_style="")
    for name, right in (("series", False), ("backend", False), ("axis", False), ("all", True), ("last two", True)):
        out.add_column(name, justify="right" if right else "left", overflow="fold")
    for one in bench.exponents:
        out.add_row(one.series, one.contestant, one.axis, f"{one.exponent:.2f}", f"{one.last:.2f}")
    return out


def summary(bench: Bench) -> list[str]:
    """How many were timed, and what was not."""
    count = {status: sum(one.status == status for one in bench.timings) for status in STATUS}
    lines = [", ".join(f"{number} {status}" for status, number in count.items() if number or status == "timed")]
    throttled = dict.fromkeys(
        reason for one in bench.timings if one.state is not None for reason in one.state.throttled
    )
    if throttled:
        lines.append(f"the clock was lowered: {', '.join(throttled)}")
    if bench.interrupted:
        lines.append(f"interrupted by {bench.interrupted}: only what was finished is here")
    return lines


def of(bench: Bench, command: Callable[[str], str] = str, pictures: bool = True) -> Document:
    """The document of a run.

    command   case string -> what the button beside it copies
    pictures  whether it has plots
    """
    failed = any(STATUS[one.status] == "failed" for one in bench.timings)
    timed = any(one.us is not None for one in bench.timings)
    verdict = "wrong" if failed else "interrupted" if bench.interrupted else "measured" if timed else "nothing timed"
    lines = summary(bench)
    if pictures and plots.missing():
        lines.append(plots.missing())
    tables = (_timings(bench, command), _exponents(bench), _limits(bench))
    environment = {key: written(value) for key, value in bench.environment.items()}
    for when, states in (("state before", bench.start), ("state after", bench.end)):
        environment[when] = "; ".join(map(state_text, states))
    shown = plots.of(bench) if pictures else {}
    title = f"qsa bench {' against '.join(each.name for each in bench.contestants)}"
    kept = tuple(table for table in tables if table.rows)
    return Document(title, verdict, verdict == "measured", tuple(lines), kept, environment, shown)


def _timings(bench: Bench, command: Callable[[str], str]) -> Table:
    several = len(bench.contestants) > 1
    columns = ["case", "backend", "time", "10 to 90 %", "floor", "share"] + (["against"] if several else [])
    rows = []
    for one in bench.timings:
        if one.us is None:
            times = [one.status, "", "" if one.floor is None else time_text(one.floor.us), ""]
        else:
            assert one.floor is not None
            times = [time_text(one.us), spread_text(one), time_text(one.floor.us), share_text(one)]
        cells = (one.case, one.contestant, *times, *([against_text(one)] if several else []))
        detail = [one.reason] if one.reason else []
        detail += [one.contract] if one.contract else []
        detail += [state_text(one.state)] if one.state is not None else []
        rows.append(Row(cells, STATUS[one.status], "\n".join(detail), command(one.case)))
    return Table("Times", tuple(columns), tuple(rows), frozenset({"time", "10 to 90 %", "floor", "share"}))


def _exponents(bench: Bench) -> Table:
    rows = [
        Row((one.series, one.contestant, one.axis, f"{one.exponent:.2f}", f"{one.last:.2f}")) for one in bench.exponents
    ]
    columns = ("series", "backend", "axis", "exponent", "last two points")
    return Table("Scaling", columns, tuple(rows), frozenset(columns[3:]))


def _limits(bench: Bench) -> Table:
    rows = []
    for limits in bench.limits:
        for rate in limits.rates:
            rows.append(Row((limits.device, size_text(rate.bytes), f"{rate.copy_gb_s:.4g}", f"{rate.read_gb_s:.4g}")))
        rows.append(Row((limits.device, "smallest call", f"{limits.small_us:.3g} us", limits.macs_source)))
    return Table("Limits of the machine", ("device", "set", "copy, GB/s", "read, GB/s"), tuple(rows))
