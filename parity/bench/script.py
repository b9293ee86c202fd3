"""Shared by the scripts of this folder: the parser, figures that are printed as they are found, the end of the run."""

import argparse
from typing import Any

from qsa.golden.store import write_json


def parser(module: str, doc: str) -> argparse.ArgumentParser:
    """A parser with the option ``--json``.

    module  name of the script in this folder
    doc     its docstring; the first line describes it
    """
    made = argparse.ArgumentParser(prog=f"qsa.parity.bench.{module}", description=doc.splitlines()[0])
    made.add_argument("--json", metavar="FILE", help="write the figures here")
    return made


class Figures:
    """The figures of a run. ``values``: name -> figure; ``wrong``: names of the cases with a wrong result."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.wrong: list[str] = []

    def add(self, name: str, value: Any, line: str) -> None:
        """Keep a figure and print its ``line`` at once, so that a run which is cut short still shows it."""
        self.values[name] = value
        print(line, flush=True)

    def finish(self, path: str | None, report: dict[str, Any]) -> int:
        """Write ``report`` to ``path``, unless that is None, and name the wrong results; returns the exit code."""
        if path:
            write_json(path, report)
        for name in self.wrong:
            print(f"wrong result: {name}")
        return 1 if self.wrong else 0
