"""Reports in JUnit XML, as every CI reads them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree

from ..suite import printable


class Entry(NamedTuple):
    """One test case. It failed where it has the lines of a ``failure``, and was not run where ``skipped`` says why.

    seconds  None where they were not taken
    """

    name: str
    seconds: float | None = None
    failure: Sequence[str] = ()
    skipped: str | None = None


class Suite(NamedTuple):
    """Test cases under one name, which is their class too; ``seconds`` of all."""

    name: str
    seconds: float
    entries: Sequence[Entry]


def text(program: str, suites: Sequence[Suite], environment: Mapping[str, Any]) -> str:
    """The XML text of what ``program`` found; ``environment`` are the properties of every suite."""
    root = ElementTree.Element("testsuites", name=program)
    for suite in suites:
        element = ElementTree.SubElement(
            root,
            "testsuite",
            name=suite.name,
            tests=str(len(suite.entries)),
            failures=str(sum(bool(entry.failure) for entry in suite.entries)),
            errors="0",
            skipped=str(sum(entry.skipped is not None for entry in suite.entries)),
            time=f"{suite.seconds:.3f}",
        )
        properties = ElementTree.SubElement(element, "properties")
        for key, value in environment.items():
            shown = value if isinstance(value, str) else json.dumps(value)
            ElementTree.SubElement(properties, "property", name=key, value=printable(shown))
        for entry in suite.entries:
            _add(element, suite.name, entry)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add(suite: ElementTree.Element, name: str, entry: Entry) -> None:
    element = ElementTree.SubElement(suite, "testcase", classname=name, name=printable(entry.name))
    if entry.seconds is not None:
        element.set("time", f"{entry.seconds:.3f}")
    if entry.failure:
        lines = [printable(line) for line in entry.failure]
        ElementTree.SubElement(element, "failure", message=lines[0].strip()).text = "\n".join(lines)
    elif entry.skipped is not None:
        ElementTree.SubElement(element, "skipped", message=printable(entry.skipped))
