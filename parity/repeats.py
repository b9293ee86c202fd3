"""The same call many times over: every schedule of every operation must give the same bytes each time.

    python -m qsa.parity.repeats --backend cuda [--repeats 250] [--arithmetic float] [--reduced] [--json FILE]

A race shows as a second digest. In the exact arithmetic the bytes are held to the reference besides. ``--reduced``
takes the smallest contexts that still cross a tile, a split and a slice, for a run under compute-sanitizer;
``--no-pool`` gives every array an allocation of its own there, so that a stray access meets no neighbour.
"""

import argparse
import inspect
import sys
import time
from dataclasses import dataclass

import numpy as np
import xxhash

import qsa.reference.exact as exact
from qsa.golden.families import FAMILIES
from qsa.golden.store import write_json
from qsa.kernels.ops import OPERATIONS, refusals
from qsa.kernels.switches import ARITHMETICS
from qsa.reference.formats import EXACT_FORMATS
from qsa.reference.kv import PagedKV

from . import data
from .backend import Backend, UnsupportedError
from .given import Given
from .process import impersonal

CONTEXTS = {"append_kv": 1024, "append_index": 1024, "block_scores": 16384, "select": 131072, "attend": 16384}
REDUCED = {**CONTEXTS, "block_scores": 640, "select": 70016, "attend": 640}
"""Cells of the cases of an operation; 70,016 is the least at which two slices of a row have work (``spread``)."""

PROMPT_ROWS = 33
SPLITS = 7
COMMON = {"rows": 8, "tail": 3, "seed": 3}
"""The rest of every recipe, unless a schedule asks for another."""


@dataclass(frozen=True)
class Case:
    """One schedule of an operation and the recipe of its inputs, a golden's."""

    operation: str
    schedule: str
    recipe: dict
    arithmetic: str

    @property
    def text(self):
        """Name of the case: operation, schedule, format or rule, arithmetic."""
        kind = self.recipe.get("format") or self.recipe.get("rule") or ""
        return " ".join(filter(None, (self.operation, self.schedule, kind, self.arithmetic)))


def cases(arithmetic, reduced=False):
    """Every :class:`Case` of an arithmetic. The operations before ``attend`` know one arithmetic: they are in exact."""
    contexts = REDUCED if reduced else CONTEXTS
    for operation in OPERATIONS.values() if arithmetic == "exact" else (OPERATIONS["attend"],):
        common = {**COMMON, "context": contexts[operation.name]}
        kinds = {
            "append_kv": [{"format": format, "values": "bell", "page": 4} for format in (*EXACT_FORMATS, "fp16")],
            "append_index": [{}],
            "block_scores": [{"keys": "uniform"}],
            "select": [{"rule": rule, "scores": "levels"} for rule in ("blocks", "cells")],
            "attend": [{"format": format, "rule": "blocks", "page": 4} for format in _attend_formats(arithmetic)],
        }[operation.name]
        for kind in kinds:
            for schedule in operation.schedules:
                recipe = {**common, **kind}
                if operation.name == "append_kv":
                    recipe |= {"slots": 3 if schedule == "multi" else 1, "rows": 1 if schedule == "step" else 8}
                elif operation.name == "append_index":
                    recipe["schedule"] = schedule
                yield Case(operation.name, schedule, recipe, arithmetic)


def _attend_formats(arithmetic):
    return EXACT_FORMATS if arithmetic == "exact" else (*EXACT_FORMATS, "fp16")


def inputs(case):
    """The arguments of the case in NumPy: a golden's, the rows repeated for a prompt, the pool for several slots."""
    if case.arithmetic == "exact":
        given = FAMILIES[case.operation].make_inputs(case.recipe)
    else:
        w = data.window(case.recipe)
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


def keywords(case, function):
    """Keyword arguments that ask ``function`` for the schedule. Raises UnsupportedError when it cannot be asked."""
    known = inspect.signature(function).parameters
    found = {}
    if case.operation == "attend":
        if "arithmetic" in known:
            found["arithmetic"] = case.arithmetic
        if case.schedule == "split":
            found["splits"] = SPLITS
    if case.operation in ("append_kv", "append_index"):
        # What is appended is the schedule: one row, a window, rows of several slots.
        return found
    if "schedule" in known:
        return {**found, "schedule": case.schedule}
    if case.schedule != OPERATIONS[case.operation].schedules[0]:
        raise UnsupportedError(f"{case.operation}: schedule {case.schedule}: the function takes no schedule")
    return found


def arrays(value):
    """The NumPy arrays in a result on the host, in order: an array, a PagedKV with its host copy, an Index, a list."""
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, (list, tuple)):
        return [array for one in value for array in arrays(one)]
    if isinstance(value, PagedKV):
        pools = [value.pool] if value.host is None else [value.pool, value.host]
        return [array for pool in pools for side in (pool.k, pool.v) for array in (side.codes, side.scale)]
    return [value.tail, value.dead, value.pooled]


def digest(value):
    """xxh3_128 over the bytes of every array of ``value``, as they are: -0 and the bits of a NaN count."""
    hasher = xxhash.xxh3_128()
    for array in arrays(value):
        hasher.update(np.ascontiguousarray(array).tobytes())
    return hasher.hexdigest()


def _call(case, function, given, asked):
    """Result of one call: of an append what was written into, else what came back. Raises UnsupportedError when it
    was refused."""
    before = refusals()
    pieces = [given]
    if case.operation == "append_index" and case.schedule == "step":
        rows = range(len(given["raw"]))
        pieces = [{**given, **{x: given[x][row : row + 1] for x in ("raw", "steps")}} for row in rows]
    for piece in pieces:
        result = function(**piece, **asked)
        if isinstance(result, (bool, np.bool_)) and not result:
            why = [reason for key, reason in refusals() if refusals()[key, reason] != before.get((key, reason), 0)]
            raise UnsupportedError(f"{case.operation}: refused: {', '.join(why) or 'no reason given'}")
    return given["kv"] if case.operation == "append_kv" else given.get("index") if "raw" in given else result


def run(case, backend, repeats):
    """A row of the report: dict of ``case``, ``status``, ``reason``, ``repeats`` and ``digests`` (digest -> times)."""
    digests, status, reason = {}, "passed", ""
    to_device, to_host = (getattr(backend.module, name, _as_it_is) for name in ("to_device", "to_host"))
    try:
        if not backend.has(case.operation):
            raise UnsupportedError(f"{case.operation}: the backend has none")
        function = getattr(backend.module, case.operation)
        asked, held = keywords(case, function), None
        for _ in range(repeats):
            if held is None or case.operation.startswith("append"):
                # An append changes its target: each time starts from one that was not written to.
                given = inputs(case)
                kept = Given(case.operation, given)
                held = {name: to_device(x) if _moves(x) else x for name, x in given.items()}
            key = digest(to_host(_call(case, function, held, asked)))
            kept.check()
            digests[key] = digests.get(key, 0) + 1
        if len(digests) > 1:
            status, reason = "failed", f"{len(digests)} different results in {repeats} repeats"
        elif case.arithmetic == "exact" and next(iter(digests)) != expected(case):
            status, reason = "failed", "the bytes are not the reference's"
    except UnsupportedError as error:
        status, reason = "unsupported", str(error)
    except Exception as error:
        # Whatever a kernel does wrong is this case's failure; the others run on.
        status, reason = "failed", impersonal(f"{type(error).__name__}: {error}")
    return {"case": case.text, "status": status, "reason": reason, "repeats": repeats, "digests": digests}


def _as_it_is(value):
    """Where a backend's arrays are NumPy's."""
    return value


def _moves(value):
    return not isinstance(value, (str, int, float))


def expected(case):
    """Digest of what the reference's exact arithmetic gives for the case."""
    function = getattr(exact, case.operation)
    return digest(_call(case, function, inputs(case), {}))


def main(argv=None):
    """Command line; returns 0 when nothing failed, else 1."""
    parser = argparse.ArgumentParser(prog="qsa.parity.repeats", description=__doc__.splitlines()[0])
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
        from qsa.kernels.cuda.compiler import array_module

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
