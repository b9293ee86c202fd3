"""``qsa parity``: run cases on a backend, print their results, write the reports."""

import argparse
import contextlib
import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from rich.console import Console

from qsa.golden import files
from qsa.kernels.ops import BACKENDS
from qsa.kernels.switches import switches

from .. import report, shrink, suite, wrong_outputs
from ..backend import Backend
from ..environment import default_backend, facts, headline
from ..isolation import RemoteKernel
from ..readable import html, markdown
from ..running import compiling, filters, runs, shards, sweep, watch
from ..running.interruption import CODES
from . import parity_options


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Add the command ``parity``; its ``run`` default takes the parsed arguments and returns the exit code."""
    parser = parity_options.add_to(subparsers)
    parser.set_defaults(run=run)
    return parser


def _chosen(arguments: argparse.Namespace, backend: Backend) -> list[suite.Case]:
    """The cases that the options choose. Raises ValueError on options that do not go together."""
    if arguments.bench and "verify-batch" not in arguments.modules:
        raise ValueError("--bench: goes with the module verify-batch")
    wanted = filters.wanted(arguments.op, arguments.format, arguments.where)
    if wanted and (arguments.case or arguments.shrunk):
        raise ValueError("--op, --format, --where: not together with --case or --shrunk")
    if arguments.shrunk and (arguments.modules or arguments.case):
        raise ValueError(f"--shrunk = {arguments.shrunk!r}: not together with MODULE or --case")
    if arguments.shrunk:
        return [suite.Case("shrunk", arguments.shrunk, {}, shrink.load(arguments.shrunk))]
    if arguments.case and arguments.modules:
        raise ValueError(f"MODULE = {' '.join(arguments.modules)!r}: not together with --case")
    if arguments.repeats < 1:
        raise ValueError(f"--repeats = {arguments.repeats}: must be at least 1")
    if arguments.case:
        return [suite.parse(text) for text in arguments.case]
    cases = filters.chosen(suite.collect(arguments.modules, backend.arithmetic, arguments.full, backend), wanted)
    return wrong_outputs.sample(cases) if arguments.quick else cases


def _of_shard(cases: list[suite.Case], shard: shards.Shard) -> list[suite.Case]:
    """Those of ``cases`` that are in ``shard``; prints where there is none."""
    found = shards.chosen(cases, shard)
    if not found:
        print(f"qsa parity: shard {shard}: holds none of the {len(cases)} case{'s' if len(cases) > 1 else ''}")
    return found


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns its exit code. Raises ValueError on bad arguments."""
    if arguments.watch:
        return watch.run(arguments.argv, arguments.backend)
    parity_options.check(arguments)
    # A kernel under development lies in the folder where the command is typed.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    found = facts()
    name = _name(arguments, found)
    # The switch table times our own kernels in this process, on its device. Else the backend is imported in its own
    # process, and the modules meanwhile in this one.
    kernel = None if arguments.in_process or arguments.bench else RemoteKernel(name, arguments.timeout, wait=False)
    for module in arguments.modules:
        suite.MODULES.get(module)
    if kernel is not None:
        kernel.wait()
    backend = _backend(arguments, name, kernel)
    cases = _chosen(arguments, backend)
    if arguments.shard is not None:
        cases = _of_shard(cases, shards.parse(arguments.shard))
    if arguments.list:
        for case in cases:
            print(case.text)
        return 0
    with report.report_writer(arguments.json, arguments.junit, arguments.markdown, arguments.html) as write:
        return _parity(arguments, backend, found, cases, write)


def _name(arguments: argparse.Namespace, found: dict[str, Any]) -> str:
    """The name of the backend. Raises ValueError on a solution that is none."""
    solution = arguments.solution
    if solution is None:
        return default_backend(found) if arguments.backend is None else arguments.backend
    if arguments.backend is not None:
        raise ValueError(f"--solution = {solution!r}: not together with --backend")
    if not solution.endswith(".json"):
        raise ValueError(f"--solution = {solution!r}: must be a JSON file, NAME.json")
    return solution


def _backend(arguments: argparse.Namespace, name: str, kernel: RemoteKernel | None) -> Backend:
    """The backend in the arithmetic asked for; else in that of QSA_ARITHMETIC where the backend declares it, else in
    the first that it declares."""
    backend = Backend(name, arguments.arithmetic, kernel)
    if arguments.arithmetic is None and switches().arithmetic in backend.declaration.arithmetics:
        return backend.in_arithmetic(switches().arithmetic)
    return backend


def _parity(
    arguments: argparse.Namespace,
    backend: Backend,
    found: dict[str, Any],
    cases: list[suite.Case],
    write: Callable[[str, str], None],
) -> int:
    """Run ``cases``, print their results and hand the reports to ``write``; returns the exit code."""
    environment = {"backend": backend.name, "arithmetic": backend.arithmetic, **found}
    if arguments.shard is not None:
        environment["shard"] = str(shards.parse(arguments.shard))
    written = [arguments.json, arguments.html, arguments.markdown, arguments.resume]
    if any(path is not None for path in written):
        environment["sources"] = runs.sources_hash(backend.name)
    earlier = {} if arguments.resume is None else runs.earlier(arguments.resume, environment)
    console = runs.console()
    text = f"qsa parity: backend {backend.name}, {backend.arithmetic} arithmetic; {headline(environment)}"
    console.print(text, **runs.PLAIN)
    if earlier:
        again = sum(case.text not in earlier for case in cases)
        console.print(f"qsa parity: {again} of {len(cases)} cases are not in {arguments.resume}", **runs.PLAIN)
    environment |= _compile(backend, [case for case in cases if case.text not in earlier])
    options = runs.Options(bool(arguments.case or arguments.shrunk), arguments.exitfirst, arguments.slowest)
    options.repeats = arguments.repeats
    if arguments.fresh:
        fresh = [(case, one) for case in cases for one in suite.fresh([case])]
        options.public = {one.text: case.text for case, one in fresh}
        cases = [*cases, *(one for _, one in fresh)]
        console.print(f"qsa parity: {len(fresh)} cases again, with seeds that nobody knew before", **runs.PLAIN)
    if arguments.json not in (None, files.STDOUT) and files.is_replaced(arguments.json):
        options.save = lambda tally: write(arguments.json, report.json_text(report.as_json(tally, environment)))
        # In one process with the backend the run ends where the backend crashes.
        options.save_every = 0 if arguments.in_process else options.save_every
    with _cluster(arguments, backend, console) as (results, machines):
        tally = runs.Run(backend, console, options, earlier, results)(cases)
    if machines:
        environment["workers"] = dict(machines)
    if tally.results or not tally.interrupted:
        console.print(report.table(tally, (*suite.MODULES, "shrunk")))
        _write(arguments, tally, environment, backend, write)
    for line in runs.conclusion(tally, arguments.slowest):
        console.print(line, **runs.PLAIN)
    if tally.interrupted in CODES:
        print(f"qsa parity: interrupted by {tally.interrupted}", file=sys.stderr)
        return CODES[tally.interrupted]
    if arguments.bench:
        _bench(backend, tally, console)
    return tally.exit_code


def _cluster(
    arguments: argparse.Namespace, backend: Backend, console: Console
) -> contextlib.AbstractContextManager[tuple[sweep.Results | None, Counter[str]]]:
    """(where the cases run, None: here; the cases that each machine has run, so far) while a body runs."""
    if arguments.ray is None:
        return contextlib.nullcontext((None, Counter()))
    job = sweep.Job.of(backend, arguments.timeout, arguments.repeats)
    on_gpu = backend.name == "cuda" or backend.declaration.device.startswith("cuda")
    return sweep.cluster(arguments.ray, job, int(on_gpu), lambda line: console.print(line, **runs.PLAIN))


def _compile(backend: Backend, cases: list[suite.Case]) -> dict[str, Any]:
    """Compile the CPU kernels that the cases call, where they are not; ``seconds`` for the report where it took some.
    A kernel that cannot be compiled is told, and fails its cases."""
    on_texts = [case for case in cases if case.module not in suite.ON_OPERATIONS]
    # A text takes from the CPU backend what another one has not.
    needing = cases if backend.name == "cpu" else [] if backend.name in BACKENDS else on_texts
    if not needing:
        return {}
    try:
        seconds = compiling.compile_missing("qsa parity", compiling.jobs_of(needing, backend.arithmetic))
    except RuntimeError as error:
        print(f"qsa parity: {error}", file=sys.stderr)
        return {}
    return {"seconds": {"compiling kernels": round(seconds, 1)}} if seconds else {}


def _write(
    arguments: argparse.Namespace,
    tally: suite.Tally,
    environment: dict[str, Any],
    backend: Backend,
    write: Callable[[str, str], None],
) -> None:
    """Write the reports that the options ask for."""
    made = report.make(tally, environment)
    if arguments.json:
        write(arguments.json, report.json_text(report.as_json(tally, environment)))
    if arguments.junit:
        write(arguments.junit, report.as_junit(tally, environment, backend))
    if arguments.markdown:
        write(arguments.markdown, markdown.of(made, "qsa parity"))
    if arguments.html:
        write(arguments.html, html.of(made, "qsa parity", lambda text: suite.command(text, backend)))


def _bench(backend: Backend, tally: suite.Tally, console: Console) -> None:
    """Print the table of ``parity/bench/switches.py``, or why there is none."""
    if backend.name != "cuda":
        console.print(f"bench: unsupported: backend {backend.name} has no timers of a device", **runs.PLAIN)
    elif tally.exit_code:
        console.print("bench: not timed: the results are wrong", **runs.PLAIN)
    else:
        # Imported here: it needs CuPy.
        from ..bench import switch_table
        from ..bench import switches as switches_bench

        for line in switch_table.lines(switches_bench.table()):
            console.print(line, **runs.PLAIN)
