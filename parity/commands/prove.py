"""``qsa prove``: whether the suite can fail. Wrong kernels, outputs, engines, judges and cheats are put under it."""

import argparse
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from qsa.kernels.switches import ARITHMETICS

from .. import progress, report
from ..environment import facts, headline
from ..prove import tables
from ..prove.mutants import CATALOGUE
from ..prove.tables import Job, Proof, Row, Table
from ..readable import html, junit, markdown
from ..readable.document import Document
from ..readable.document import Row as Line
from ..readable.document import Table as Part
from ..running.runs import PLAIN

WIDTH = 140
"""Columns where standard output is no terminal."""

EPILOG = f"""tables: {", ".join(tables.TABLES)}

exit status: 0 when everything wrong was caught and what is right passed; 1 when not; 2 on bad arguments"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Add the command ``prove``; its ``run`` default takes the parsed arguments and returns the exit code."""
    parser = subparsers.add_parser(
        "prove",
        help="put wrong kernels, engines and judges under the suite: every one must be caught",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="tables to make (default: all)")
    parser.add_argument(
        "--arithmetic", metavar="|".join(ARITHMETICS), help="kernels of this arithmetic (default: both)"
    )
    parser.add_argument("--operation", metavar="NAME", help="kernels and outputs of this operation alone")
    parser.add_argument(
        "--sample", action="store_true", help=f"every {tables.SAMPLE}th kernel, and of the rest one of each kind"
    )
    parser.add_argument("--json", metavar="FILE", help="write the tables as JSON; - is standard output")
    parser.add_argument("--junit", metavar="FILE", help="write them as JUnit XML; - is standard output")
    parser.add_argument("--markdown", metavar="FILE", help="write them in Markdown; - is standard output")
    parser.add_argument("--html", metavar="FILE", help="write one HTML file for a browser (extra `report`)")
    parser.add_argument("--list", action="store_true", help="print the wrong kernels and run nothing")
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns its exit code. Raises ValueError on bad arguments."""
    _check(arguments)
    if arguments.list:
        for one in CATALOGUE:
            if arguments.operation in (None, one.operation):
                print(f"{one.operation:13} {'+'.join(one.arithmetics):12} {one.name}  [{one.kind}]")
        return 0
    chosen = [name for name in tables.TABLES if name in arguments.tables or not arguments.tables]
    arithmetics = ARITHMETICS if arguments.arithmetic is None else (arguments.arithmetic,)
    jobs = tables.jobs(arguments.sample, chosen, list(arithmetics), arguments.operation)
    with report.report_writer(arguments.json, arguments.junit, arguments.markdown, arguments.html) as write:
        return _prove(jobs, arguments, write)


def _check(arguments: argparse.Namespace) -> None:
    """Raises ValueError on a value that is not allowed."""
    for name in arguments.tables:
        if name not in tables.TABLES:
            raise ValueError(f"TABLE = {name!r}: allowed are {', '.join(tables.TABLES)}")
    if arguments.arithmetic not in (None, *ARITHMETICS):
        raise ValueError(f"--arithmetic = {arguments.arithmetic!r}: allowed are {', '.join(ARITHMETICS)}")
    known = dict.fromkeys(one.operation for one in CATALOGUE)
    if arguments.operation not in (None, *known):
        raise ValueError(f"--operation = {arguments.operation!r}: allowed are {', '.join(known)}")
    if arguments.operation is not None and arguments.tables and not set(arguments.tables) & set(tables.OF_OPERATIONS):
        raise ValueError(f"--operation: goes with the tables {' and '.join(tables.OF_OPERATIONS)}")
    if arguments.html is not None:
        html.check_installed()


def _prove(jobs: list[Job], arguments: argparse.Namespace, write: Callable[[str, str], None]) -> int:
    """Make the tables, print and write them; returns the exit code."""
    started = time.perf_counter()
    found = facts()
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    console.print(f"qsa prove: {headline(found)}", **PLAIN)
    made = _made(jobs)
    for table in made:
        _show(table, console)
    failed = sum(len(table.lost) for table in made)
    proof = Proof(failed, round(time.perf_counter() - started, 1), found, made)
    _conclude(proof, console)
    if arguments.json:
        write(arguments.json, msgspec.json.format(msgspec.json.encode(proof), indent=1).decode() + "\n")
    if arguments.junit:
        write(arguments.junit, junit.text("qsa prove", [suite(table) for table in made], found))
    if arguments.markdown:
        write(arguments.markdown, markdown.text(document(proof)))
    if arguments.html:
        write(arguments.html, html.text(document(proof)))
    return 1 if failed else 0


def _made(jobs: list[Job]) -> list[Table]:
    """The tables of ``jobs``, each made in a process of its own, as many at once as there are processors; progress is
    shown meanwhile. In the order of ``jobs``."""
    # A process for every processor: BLAS threads would fight with them.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    context = multiprocessing.get_context("spawn")
    judged = context.SimpleQueue()
    work = progress.Work("qsa prove")

    def count() -> None:
        begun = 0
        while (told := judged.get()) is not None:
            if isinstance(told, int):
                work.total, begun = (work.total or 0) + told, begun + 1
            else:
                work.note = told if begun == len(jobs) else f"{told} (table {begun} of {len(jobs)})"
                work.advance()

    counter = threading.Thread(target=count, daemon=True)
    counter.start()
    workers = min(len(jobs), os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, context, _begin, (judged,)) as pool, progress.shown("qsa prove", work=work):
        futures = {pool.submit(_table, job): job for job in jobs}
        try:
            found = {futures[future]: future.result() for future in as_completed(futures)}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            judged.put(None)
    return [found[job] for job in jobs]


_judged: Any = None


def _begin(judged: Any) -> None:
    """A child is given the queue in which it puts how many things a table has, and the name of each that is judged."""
    global _judged
    _judged = judged


def _table(job: Job) -> Table:
    return tables.make(job, _judged.put, _judged.put)


def _show(table: Table, console: Console) -> None:
    """Print one table: of wrong outputs how often each kind was caught, of all others a row for each."""
    if table.rows:
        shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, title=table.title)
        for name in COLUMNS:
            shown.add_column(name, overflow="fold", justify="right" if name in NUMERIC else "left")
        for row in sorted(table.rows, key=lambda row: row.caught):
            shown.add_row(*map(_escaped, _cells(row)))
        console.print(shown)
    console.print(_summary(table), **PLAIN)


COLUMNS = ("wrong", "caught by", "measure", "bound", "where")
NUMERIC = ("measure", "bound")


def _cells(row: Row) -> tuple[str, ...]:
    numbers = (_number(row.measure), _number(row.bound)) if row.case and row.caught else ("", "")
    return row.name, row.by if row.caught else "NOT CAUGHT", *numbers, row.case or row.detail.partition("\n")[0]


def _summary(table: Table) -> str:
    """One line about a table."""
    caught = len(table.rows) - len(table.lost)
    if table.counts:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(table.counts.items()))
        text = f"{counts}; {len(table.lost)} passed"
    else:
        text = f"{caught} of {len(table.rows)} caught"
    return f"{table.title}: {text} ({table.seconds:.0f} s)"


def _conclude(proof: Proof, console: Console) -> None:
    """Print what was not caught, once more, and the verdict."""
    for table in proof.tables:
        for row in table.lost:
            console.print(f"NOT CAUGHT: {table.title}: {row.name}: {row.case} {row.detail}", **PLAIN)
    verdict = f"{proof.failed} were not caught: a case is missing" if proof.failed else "everything wrong was caught"
    console.print(f"{verdict}; {proof.seconds:.0f} s", **PLAIN)


def suite(table: Table) -> junit.Suite:
    """One table as JUnit's: a test case for everything wrong, which failed where it was not caught. Of wrong outputs a
    test case for each kind, which failed where a case passed with them."""
    if table.counts:
        lost: dict[str, list[str]] = {name.rpartition(" ")[0]: [] for name in sorted(table.counts)}
        for row in table.lost:
            lost.setdefault(row.name, []).append(row.case)
        entries = [
            junit.Entry(kind, failure=[f"NOT CAUGHT: {len(cases)} cases passed", *cases] if cases else ())
            for kind, cases in lost.items()
        ]
    else:
        entries = [junit.Entry(row.name, failure=() if row.caught else _lost(row)) for row in table.rows]
    return junit.Suite(table.title, table.seconds, entries)


def _lost(row: Row) -> list[str]:
    return [f"NOT CAUGHT: {row.case or row.detail.partition(chr(10))[0]}", *row.detail.splitlines()]


def document(proof: Proof) -> Document:
    """The proof for a reader of HTML or Markdown."""
    parts = []
    for table in proof.tables:
        lines = [
            Line(_cells(row), "passed" if row.caught else "failed", row.detail, row.case)
            for row in sorted(table.rows, key=lambda row: row.caught)
        ]
        # By this name a page breaks the text between parameters and has a button that copies it.
        parts.append(Part(table.title, (*COLUMNS[:-1], "case"), tuple(lines), frozenset(NUMERIC)))
    environment = {key: str(value) for key, value in proof.environment.items()}
    verdict = "failed" if proof.failed else "passed"
    summary = tuple(map(_summary, proof.tables))
    return Document("qsa prove", verdict, not proof.failed, summary, tuple(parts), environment)


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3g}"


def _escaped(text: str) -> str:
    """Text that rich does not read as markup."""
    return text.replace("[", "\\[")
