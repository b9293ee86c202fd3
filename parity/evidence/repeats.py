"""The same call many times: every schedule of every operation must give the same bytes each time.

    python -m qsa.parity.evidence.repeats --backend cuda [--repeats 250] [--arithmetic float] [--reduced] [--json FILE]

A race shows as a second digest. In the exact arithmetic the bytes are also compared with the reference. ``--reduced``
takes the smallest contexts that still cross a tile, a split and a slice, for a run under compute-sanitizer;
``--no-pool`` gives every array an allocation of its own there, so that a stray access does not hit another array.
"""

import argparse
import inspect
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

import qsa.reference.exact as exact
from qsa.golden.families import FAMILIES
from qsa.golden.store import write_json
from qsa.kernels.ops import OPERATIONS
from qsa.kernels.switches import ARITHMETICS
from qsa.reference.formats import EXACT_FORMATS
from qsa.reference.index import written
from qsa.reference.kv import PagedKV

from ..backend import Backend, UnsupportedError, call
from ..checks import attend_inputs as data
from ..compare.input_changes import Given
from .process import impersonal

CONTEXTS = {"append_kv": 1024, "append_index": 1024, "block_scores": 16384, "select": 131072, "attend": 16384}
REDUCED = {**CONTEXTS, "block_scores": 640, "select": 70016, "attend": 640}
"""Cells of the cases of an operation; 70,016 is the least at which two slices of a row have work (``spread``)."""

PROMPT_ROWS = 33
SPLITS = 7
COMMON = {"rows": 8, "tail": 3, "seed": 3}
"""The rest of every recipe, unless a schedule asks for another."""


@dataclass(frozen=True)
class RepeatedCase:
    """One schedule of an operation, and the recipe of its inputs as a golden has it."""

    operation: str
    schedule: str
    recipe: dict[str, Any]
    arithmetic: str

    @property
    def text(self) -> str:
        """Name of the case: operation, schedule, format or rule, arithmetic."""
        kind = self.recipe.get("format") or self.recipe.get("rule") or ""
        return " ".join(filter(None, (self.operation, self.schedule, kind, self.arithmetic)))


def cases(arithmetic: str, reduced: bool = False) -> Iterator[RepeatedCase]:
    """Every :class:`RepeatedCase` of an arithmetic. All operations but ``attend`` have one arithmetic: they are in
    ``exact``."""
    contexts = REDUCED if reduced else CONTEXTS
    formats = EXACT_FORMATS if arithmetic == "exact" else data.FORMATS
    for operation in OPERATIONS.values() if arithmetic == "exact" else (OPERATIONS["attend"],):
        common = {**COMMON, "context": contexts[operation.name]}
        kinds: dict[str, list[dict[str, Any]]] = {
            "append_kv": [{"format": format, "values": "bell", "page": 4} for format in data.FORMATS],
            "append_index": [{}],
            "block_scores": [{"keys": "uniform"}],
            "select": [{"rule": rule, "scores": "levels"} for rule in ("blocks", "cells")],
            "attend": [{"format": format, "rule": "blocks", "page": 4} for format in formats],
        }
        for kind in kinds[operation.name]:
            for schedule in operation.schedules:
                recipe = {**common, **kind}
                if operation.name == "append_kv":
                    recipe |= {"slots": 3 if schedule == "multi" else 1, "rows": 1 if schedule == "step" else 8}
                elif operation.name == "append_index":
                    recipe["schedule"] = schedule
                yield RepeatedCase(operation.name, schedule, recipe, arithmetic)


def inputs(case: RepeatedCase) -> dict[str, Any]:
    """The arguments of the case in NumPy: a golden's, the rows repeated for a prompt, the pool for several slots."""
    if case.arithmetic == "exact":
        given = FAMILIES[case.operation].make_inputs(case.recipe)
    else:
        w = data.attend_inputs(case.recipe)
        given = {"q": w.q, "kv": w.kv, "ids": w.ids, "steps": w.steps}
    if case.schedule == "prompt":
        for name in ("q", "q_idx", "ids", "steps"):
            if name in given:
                given[name] = np.resize(given[name], (PROMPT_ROWS, *given[name].shape[1:]))
    if case.operation == "attend" and case.schedule == "multi":
        kv = given["kv"]
        given["kv"] = [PagedKV(kv.pool, kv.table) for _ in range(3)]
        given["slots"] = (np.arange(len(given["steps"])) % 3).astype(np.int32)
    return given


def keywords(case: RepeatedCase, function: Callable[..., Any]) -> dict[str, Any]:
    """Keyword arguments of ``function`` for the schedule. Raises UnsupportedError when it takes none."""
    known = inspect.signature(function).parameters
    found: dict[str, Any] = {}
    if case.operation == "attend":
        if "arithmetic" in known:
            found["arithmetic"] = case.arithmetic
        if case.schedule == "split":
            found["splits"] = SPLITS
    if case.operation in ("append_kv", "append_index"):
        # The rows decide the schedule: one row, a window, rows of several slots.
        return found
    if "schedule" in known:
        return {**found, "schedule": case.schedule}
    if case.schedule != OPERATIONS[case.operation].schedules[0]:
        raise UnsupportedError(f"{case.operation}: schedule {case.schedule}: the function takes no schedule")
    return found


def arrays(value: Any) -> list[np.ndarray]:
    """The NumPy arrays in a result on the host, in order: an array, a PagedKV with its host copy, an Index, a list."""
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, (list, tuple)):
        return [array for item in value for array in arrays(item)]
    if isinstance(value, PagedKV):
        pools = [value.pool] if value.host is None else [value.pool, value.host]
        return [array for pool in pools for side in (pool.k, pool.v) for array in (side.codes, side.scale)]
    return [getattr(value, name) for name in written(value)]


def digest(value: Any) -> str:
    """xxh3_128 over the bytes of every array of ``value``, as they are: -0 and the bits of a NaN count."""
    hasher = xxhash.xxh3_128()
    for array in arrays(value):
        hasher.update(np.ascontiguousarray(array).tobytes())
    return hasher.hexdigest()


def _call(case: RepeatedCase, function: Callable[..., Any], given: dict[str, Any], options: dict[str, Any]) -> Any:
    """Result of one call: of an append its target, else the returned arrays. Raises UnsupportedError when it was
    refused."""
    pieces = [given]
    if case.operation == "append_index" and case.schedule == "step":
        rows = range(len(given["raw"]))
        pieces = [{**given, **{x: given[x][row : row + 1] for x in ("raw", "steps")}} for row in rows]
    for piece in pieces:
        result = call(case.operation, function, **piece, **options)
    return given["kv"] if case.operation == "append_kv" else given.get("index") if "raw" in given else result


def run(case: RepeatedCase, backend: Backend, repeats: int) -> dict[str, Any]:
    """A row of the report: dict of ``case``, ``status``, ``reason``, ``repeats`` and ``digests`` (digest -> times)."""
    digests: dict[str, int] = {}
    status, reason = "passed", ""
    to_device, to_host = (getattr(backend.module, name, _unchanged) for name in ("to_device", "to_host"))
    try:
        if not backend.has(case.operation):
            raise UnsupportedError(f"{case.operation}: the backend has none")
        function = getattr(backend.module, case.operation)
        options = keywords(case, function)
        held: dict[str, Any] | None = None
        for _ in range(repeats):
            if held is None or case.operation.startswith("append"):
                # An append changes its target: every call gets a new one.
                given = inputs(case)
                kept = Given(case.operation, given)
                held = {name: to_device(x) if _moves(x) else x for name, x in given.items()}
            key = digest(to_host(_call(case, function, held, options)))
            kept.check()
            digests[key] = digests.get(key, 0) + 1
        if len(digests) > 1:
            status, reason = "failed", f"{len(digests)} different results in {repeats} repeats"
        elif case.arithmetic == "exact" and next(iter(digests)) != expected(case):
            status, reason = "failed", "the bytes are not the reference's"
    except UnsupportedError as error:
        status, reason = "unsupported", str(error)
    except Exception as error:
        # Any error of a kernel fails this case; the others run.
        status, reason = "failed", impersonal(f"{type(error).__name__}: {error}")
    return {"case": case.text, "status": status, "reason": reason, "repeats": repeats, "digests": digests}


def _unchanged(value: Any) -> Any:
    """The transfer of a backend whose arrays are NumPy's."""
    return value


def _moves(value: Any) -> bool:
    return not isinstance(value, (str, int, float))


def expected(case: RepeatedCase) -> str:
    """Digest of the case's result in the reference's exact arithmetic."""
    function = getattr(exact, case.operation)
    return digest(_call(case, function, inputs(case), {}))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns 0 when nothing failed, else 1."""
    parser = argparse.ArgumentParser(prog="qsa.parity.evidence.repeats", description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--arithmetic", default="exact", choices=ARITHMETICS)
    parser.add_argument("--repeats", type=int, default=250)
    parser.add_argument("--reduced", action="store_true", help="the smallest contexts that still cross every border")
    parser.add_argument("--no-pool", action="store_true", help="device arrays outside CuPy's memory pool")
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args(argv)
    if arguments.repeats < 1:
        parser.error(f"--repeats = {arguments.repeats}: must be 1 or more")
    backend = Backend(arguments.backend, arguments.arithmetic)
    if arguments.no_pool:
        from qsa.kernels.cuda.toolchain.compiler import array_module

        array_module().cuda.set_allocator(None)
    rows = []
    for case in cases(arguments.arithmetic, arguments.reduced):
        started = time.perf_counter()
        rows.append(run(case, backend, arguments.repeats))
        row = rows[-1]
        print(f"{row['status']:12}{row['case']:40} {time.perf_counter() - started:6.2f} s  {row['reason']}", flush=True)
        if arguments.json:
            write_json(arguments.json, {"rows": rows})
    return 1 if any(row["status"] == "failed" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
