"""The JSON schemas in ``docs/schema``, one for each kind of file that others may read, derived from the typed structs.

    python -m qsa.parity.schema [FOLDER]

A test holds the committed files to what this writes.
"""

import json
import sys
from pathlib import Path

import msgspec

from qsa.golden import files
from qsa.golden.evidence_structs import BenchmarkResults, Evidence
from qsa.golden.record import Record

from .ab.structs import Report as AbReport
from .cases.index import Index
from .prove.tables import Proof
from .report import Report
from .screen.results import Bench

FOLDER = Path("docs") / "schema"

KINDS = {
    "golden-record": (Record, "A golden: golden/records/NAME.json"),
    "evidence": (Evidence, "A run on a device: golden/evidence/NAME.json"),
    "benchmark-results": (BenchmarkResults, "The results of a step in the section benchmark of an evidence record"),
    "cases": (Index, "Cases in files: index.json of `qsa cases export`"),
    "ab": (AbReport, "What `qsa ab --json` writes"),
    "proof": (Proof, "What `qsa prove --json` writes"),
    "report": (Report, "What `qsa parity --json` and `qsa gate --json` write"),
    "bench": (Bench, "What `qsa bench --json` writes"),
}
"""Name of the schema -> (type, title)."""


def text(name: str) -> str:
    """The schema ``name`` of :data:`KINDS` as the text of its file."""
    kind, title = KINDS[name]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return json.dumps(head | msgspec.json.schema(kind), indent=1, ensure_ascii=True) + "\n"


def main(folder: str | Path = FOLDER) -> None:
    """Write every schema to ``folder``. Raises OSError."""
    for name in KINDS:
        files.write(Path(folder) / f"{name}.schema.json", text(name))


if __name__ == "__main__":
    main(*sys.argv[1:2])
