"""A report as one HTML file: nothing is fetched, everything is in it. Needs jinja2 (extra ``report``)."""

import importlib.util
import math
from collections.abc import Callable
from pathlib import Path

from ..report import Report
from .document import Document, Map, of_report

FOLDER = Path(__file__).parent

CELL = 14
"""Pixels of a cell of a map."""

OPENED = 5
"""Rows of a table whose maps are open at first: of many failures the page stays short."""


def check_installed() -> None:
    """Raises ValueError where jinja2 is missing."""
    if importlib.util.find_spec("jinja2") is None:
        raise ValueError("--html: jinja2 is missing: pip install 'qsa-parity[report]'")


def text(document: Document) -> str:
    """The document as one HTML page. Raises ValueError where jinja2 is missing."""
    check_installed()
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    parts = {name: (FOLDER / name).read_text(encoding="utf-8") for name in ("style.css", "script.js")}
    page = environment.get_template("page.html")
    return page.render(
        document=document,
        style=parts["style.css"],
        script=parts["script.js"],
        shade=shade,
        legend=legend,
        cell_size=CELL,
        opened=OPENED,
    )


def of(report: Report, title: str, command: Callable[[str], str] = str) -> str:
    """The report of a run as one HTML page; ``title`` and ``command`` as in ``document.of_report``."""
    return text(of_report(report, title, command))


def shade(map: Map, value: float | None) -> str:
    """Class of a map's cell: ``ok`` within the bound, ``bad1`` to ``bad4`` by the power of ten beyond it, or by the
    quarter of a share; ``none`` without a figure."""
    if value is None:
        return "none"
    if map.bound is None:
        return "ok" if value <= 0.05 else f"bad{min(4, 1 + int(4 * value))}"
    if value <= map.bound:
        return "ok"
    if map.bound <= 0 or not math.isfinite(value):
        return "bad4"
    return f"bad{min(4, 1 + int(math.log10(value / map.bound)))}"


def legend(map: Map) -> str:
    """What the colours of a map mean."""
    if map.bound is None:
        return "green up to 0.05, then a colour for each quarter of 1"
    return "green within the bound, then a colour for each power of ten beyond it"
