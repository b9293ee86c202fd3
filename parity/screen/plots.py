"""Time over rows and over context with the floor drawn in, as SVG (matplotlib, extra ``report`` or ``bench``)."""

import importlib.util
import io
import re
from collections.abc import Sequence
from typing import Any

from .results import Bench, Exponent

COLOURS = ("#2f7ed8", "#d9622b", "#1f9d74", "#8a5cc2", "#b88a00")
TEXT = "#010203"
"""Stands for the colour of the page's text, which is another one in the dark."""

WIDTH, HEIGHT = 4.6, 3.3
"""Inches of a plot."""


def missing() -> str:
    """Why there are no plots; empty where there are."""
    if importlib.util.find_spec("matplotlib") is None:
        return "no plots: matplotlib is missing: pip install 'qsa-parity[report]'"
    return ""


def of(bench: Bench) -> dict[str, str]:
    """Title -> SVG of every series of the run; all contestants in one plot. Empty without matplotlib."""
    if missing():
        return {}
    groups: dict[tuple[str, str], list[Exponent]] = {}
    for one in bench.exponents:
        groups.setdefault((one.axis, one.series), []).append(one)
    names = [contestant.name for contestant in bench.contestants]
    titles = {"context": "Time over context", "rows": "Time over rows"}
    return {f"{titles[axis]}: {series}": svg(axis, each, names) for (axis, series), each in groups.items()}


def svg(axis: str, lines: Sequence[Exponent], names: Sequence[str]) -> str:
    """One plot: a line for each contestant, its floor dashed. ``names`` give every contestant its colour."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
    text = {name: TEXT for name in ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")}
    # Text stays text: it can be read out, and takes the colour of the page.
    with matplotlib.rc_context({**text, "svg.fonttype": "none", "svg.hashsalt": "qsa", "font.size": 9}):
        figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        FigureCanvasSVG(figure)
        axes: Any = figure.add_subplot()
        floors: dict[tuple[tuple[int, float], ...], str] = {}
        for line in lines:
            x = [point[0] for point in line.points]
            label = f"{line.contestant}, exponent {line.exponent:.2f}"
            axes.plot(x, [point[1] for point in line.points], "o-", color=colours[line.contestant], label=label)
            floors.setdefault(tuple((point[0], point[2]) for point in line.points), line.contestant)
        for number, points in enumerate(floors):
            label = "floor" if len(floors) == 1 else f"floor of {floors[points]}"
            axes.plot(*zip(*points, strict=True), "--", color=TEXT, alpha=0.4 + 0.2 * number, label=label)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("rows" if axis == "rows" else "cells of context")
        axes.set_ylabel("us of a call")
        ticks = sorted({point[0] for line in lines for point in line.points})
        axes.set_xticks(ticks, [short(tick) for tick in ticks])
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize=8)
        file = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    return inline(file.getvalue())


def inline(text: str) -> str:
    """An SVG file as an element of a page: without its head, in the colour of the page's text."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    return text.replace(TEXT, "currentColor")


def short(value: int) -> str:
    """``65536`` as ``64K``."""
    for unit, size in (("M", 1 << 20), ("K", 1 << 10)):
        if value % size == 0:
            return f"{value // size}{unit}"
    return str(value)
