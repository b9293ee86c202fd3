"""One process's times of a tree: ``python -P measure.py --tree FOLDER --backend cpu --cases TEXT ... --json FILE``.

This file is run by its path and imports the kernels of ``--tree``, whichever commit that is. So it uses only what every
commit has: the operations of ``qsa.kernels.cpu`` and the arrays of ``qsa.reference``; on a CUDA device the tree's own
``qsa.parity.bench.operations``. The report holds ``sources`` (hash of the tree's), ``times`` (case -> microseconds),
``outputs`` (case -> hash of what an exact case gave), ``contract`` (case -> how it was measured), ``missing`` (case ->
why there is no time) and ``throttled``.
"""

import argparse
import contextlib
import hashlib
import importlib
import json
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

SAMPLE_SECONDS, SECONDS = 0.001, 0.3
"""A sample is of as many calls as take so long, one at least; samples are taken for so long. Short ones, because some
of them then run without another process between them even on a busy machine."""

FEWEST_SAMPLES = 9

WRONG = "wrong result: it has no speed"
"""Why there is no time: how the reason begins."""

WARM_UP = 3

CPU_CASES = (
    "attend:arithmetic=exact,format=int8,rows=1,schedule=batch",
    "attend:arithmetic=exact,format=int8,rows=4,schedule=batch",
    "attend:arithmetic=exact,format=int8,rows=4,schedule=split",
    "attend:arithmetic=exact,format=q4_0,rows=4,schedule=batch",
    "attend:arithmetic=float,format=int8,rows=4,schedule=batch",
    "block_scores:context=65536,rows=4",
    "select:context=1048576,rows=1",
    "append_kv:format=int8,rows=64",
    "append_index:rows=512",
)
"""What is timed on a CPU: each operation at sizes of a decode step, in the formats that are used most."""

CUDA_CASES = (
    "attend:arithmetic=exact,format=int8,rows=1,slots=1,schedule=batch,cache=hot",
    "attend:arithmetic=exact,format=int8,rows=4,slots=4,schedule=batch,cache=hot",
    "attend:arithmetic=exact,format=int8,rows=4,slots=4,schedule=split,cache=hot",
    "attend:arithmetic=exact,format=int8,rows=16,slots=8,schedule=batch,cache=hot",
    "attend:arithmetic=exact,format=q4_0,rows=4,slots=4,schedule=batch,cache=hot",
    "attend:arithmetic=float,format=int8,rows=4,slots=1,schedule=batch,cache=hot",
    "block_scores:context=65536,rows=1,schedule=warp,cache=hot",
    "block_scores:context=1048576,rows=1,schedule=warp,cache=hot",
    "select:context=65536,rows=1,schedule=registers,cache=hot",
    "select:context=1048576,rows=1,schedule=spread,cache=hot",
    "append_kv:format=int8,rows=4,cache=hot",
    "append_index:rows=4,cache=hot",
)
"""What is timed on a CUDA device: case strings of ``parity/bench/operation_cases.py``, no more than a process of a few
seconds can check and time."""

CASES = {"cpu": CPU_CASES, "cuda": CUDA_CASES}

CONTEXT = 16384
"""Cells behind a case of attention; each of its rows selects 2,051 of them."""

THROTTLE_COUNTS = "/sys/devices/system/cpu/cpu*/thermal_throttle/core_throttle_count"


def use_tree(tree: Path) -> None:
    """Make ``qsa.NAME`` the folder NAME of ``tree`` in this process, whatever is installed. Raises ValueError when the
    process has imported another ``qsa`` before."""
    if any(name == "qsa" or name.startswith("qsa.") for name in sys.modules):
        raise ValueError("qsa is imported already: a tree is measured in a process of its own")
    package = types.ModuleType("qsa")
    package.__path__ = [str(tree)]
    sys.modules["qsa"] = package
    found = Path(str(importlib.import_module("qsa.kernels").__file__)).resolve()
    if not found.is_relative_to(tree.resolve()):
        raise ValueError(f"--tree = {str(tree)!r}: qsa.kernels was imported from {found}")


def sources_hash(tree: Path) -> str:
    """Hash of the Python files of ``kernels`` and ``reference``: a tree that is edited while it is measured shows."""
    hasher = hashlib.sha256()
    for path in sorted(path for name in ("kernels", "reference") for path in (tree / name).rglob("*.py")):
        hasher.update(f"{path.relative_to(tree).as_posix()}\n".encode() + path.read_bytes())
    return hasher.hexdigest()[:32]


def parameters(text: str) -> tuple[str, dict[str, Any]]:
    """(operation, parameters) of a case string; numbers are integers."""
    operation, _, rest = text.partition(":")
    pairs = (pair.partition("=") for pair in rest.split(","))
    return operation, {key: int(value) if value.isdigit() else value for key, _, value in pairs}


def cpu_call(text: str) -> Callable[[], Any]:
    """A function that carries out the case ``text`` on the tree's CPU kernels and returns its output."""
    from qsa.kernels import cpu
    from qsa.reference.geometry import REAL, step_records
    from qsa.reference.index import Index
    from qsa.reference.kv import PagedKV

    operation, given = parameters(text)
    rng, rows = np.random.default_rng(1), given["rows"]
    if operation == "attend":
        kv = PagedKV.new(given["format"], CONTEXT, table=rng.permutation(CONTEXT // 4))
        for side in (kv.pool.k, kv.pool.v):
            side.codes.view(np.uint8)[:] = rng.integers(1, 256, side.codes.shape, np.uint8)
            side.scale[:] = rng.uniform(0.005, 0.03, side.scale.shape)
        q = rng.standard_normal((rows, REAL.n_head, REAL.head_dim), np.float32)
        steps = step_records([CONTEXT - 2] * rows)
        ids = np.stack([np.sort(rng.permutation(CONTEXT - 1)[: REAL.max_width]) for _ in range(rows)]).astype(np.int32)
        options = {"arithmetic": given["arithmetic"], "schedule": given["schedule"]}
        return lambda: cpu.attend(q, kv, ids, steps, **options)
    if operation in ("block_scores", "select"):
        blocks = given["context"] // REAL.ratio
        steps = step_records([given["context"] - 1] * rows)
        if operation == "select":
            scores = rng.standard_normal((rows, blocks + 1), np.float32)
            return lambda: cpu.select(scores, steps)
        index = Index(blocks + 1, np.ones(REAL.idx_dim, np.float32))
        rng.standard_normal(out=index.pooled, dtype=np.float32)
        q_idx = rng.standard_normal((rows, REAL.idx_heads, REAL.idx_dim), np.float32)
        return lambda: cpu.block_scores(q_idx, index, steps)
    steps = step_records(np.arange(rows))
    if operation == "append_kv":
        k, v = rng.standard_normal((2, rows, REAL.n_head_kv, REAL.head_dim), np.float32)
        kv = PagedKV.new(given["format"], 1024)

        def append_kv() -> Any:
            done = cpu.append_kv(k, v, kv, steps)
            return done if done is False else kv.pool.k.codes

        return append_kv
    if operation == "append_index":
        raw = rng.standard_normal((rows, REAL.idx_dim), np.float32)
        index = Index(1024 // REAL.ratio + 1, np.ones(REAL.idx_dim, np.float32))

        def append_index() -> Any:
            done = cpu.append_index(raw, steps, index)
            return done if done is False else index.pooled

        return append_index
    raise ValueError(f"case {text!r}: there is no such operation")


def lower_quartile(call: Callable[[], Any], finish: Callable[[], Any] = lambda: None) -> float:
    """Microseconds of one call: the lower quartile of the samples. Other work on the machine only adds time, so the
    upper half says little about the kernel; the shortest alone would hide a kernel that is often slow. ``finish`` ends
    a sample: it waits for a device."""
    for _ in range(WARM_UP):
        started = time.perf_counter()
        call()
        finish()
        taken = time.perf_counter() - started
    calls = max(1, round(SAMPLE_SECONDS / max(taken, 1e-6)))
    samples: list[float] = []
    until = time.perf_counter() + SECONDS
    while len(samples) < FEWEST_SAMPLES or time.perf_counter() < until:
        started = time.perf_counter()
        for _ in range(calls):
            call()
        finish()
        samples.append((time.perf_counter() - started) / calls)
    return float(np.percentile(samples, 25)) * 1e6


def measured_cpu(texts: Iterable[str]) -> dict[str, Any]:
    """The report on the cases ``texts`` of the CPU kernels."""
    report: dict[str, Any] = {"times": {}, "outputs": {}, "contract": {}, "missing": {}, "throttled": []}
    before = throttle_counts()
    for text in texts:
        try:
            call = cpu_call(text)
            output = call()
            if output is False:
                report["missing"][text] = "refused"
                continue
            if "arithmetic=float" not in text:
                report["outputs"][text] = output_hash(output)
            report["times"][text] = lower_quartile(call)
        except Exception as error:
            # Another commit may not have the operation, or not with these arguments.
            report["missing"][text] = f"{type(error).__name__}: {error}"
        else:
            report["contract"][text] = f"lower quartile of samples of {SAMPLE_SECONDS:g} s in {SECONDS:g} s, warm"
    if throttle_counts() > before:
        report["throttled"] = ["thermal slowdown of the CPU"]
    return report


def output_hash(output: np.ndarray) -> str:
    """Hash of dtype, shape and bytes."""
    head = f"{output.dtype} {output.shape}".encode()
    return hashlib.sha256(head + np.ascontiguousarray(output).tobytes()).hexdigest()[:32]


def throttle_counts() -> int:
    """How often the processors lowered their clocks for heat since the start; 0 where the system does not tell."""
    total = 0
    for path in Path("/").glob(THROTTLE_COUNTS.lstrip("/")):
        with contextlib.suppress(OSError, ValueError):
            total += int(path.read_text())
    return total


def measured_cuda(texts: Sequence[str]) -> dict[str, Any]:
    """The report on the cases ``texts`` by the tree's own benchmark, on the CUDA device."""
    operations = importlib.import_module("qsa.parity.bench.operations")
    known = set(importlib.import_module("qsa.parity.bench.operation_cases").cases())
    report: dict[str, Any] = {"times": {}, "outputs": {}, "contract": {}, "missing": {}, "throttled": []}
    report["missing"] = {text: "the benchmark of this tree has no such case" for text in texts if text not in known}
    chosen = [text for text in texts if text in known]
    if not chosen:
        return report
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        path = Path(folder) / "report.json"
        operations.main(["--json", str(path), "--cases", *chosen])
        found = json.loads(path.read_text(encoding="utf-8"))
    return report | read_benchmark(found, report["missing"])


def read_benchmark(found: dict[str, Any], missing: dict[str, str]) -> dict[str, Any]:
    """``times``, ``contract``, ``missing`` and ``throttled`` of the benchmark's report ``found``."""
    times, contract, missing = {}, {}, {**missing, **found["unsupported"]}
    for row in found["rows"]:
        if row["correct"]:
            times[row["case"]], contract[row["case"]] = row["median_us"], row["contract"]
        else:
            missing[row["case"]] = WRONG
    ends = (found["clocks"].get(end) or {} for end in ("start", "end"))
    throttled = sorted({reason for clocks in ends for reason in clocks.get("throttled", ())})
    return {"times": times, "contract": contract, "missing": missing, "throttled": throttled}


def arguments_of(argv: Sequence[str] | None) -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(prog="measure.py", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tree", required=True, type=Path, help="folder that holds kernels/ and reference/")
    parser.add_argument("--backend", required=True, choices=sorted(CASES))
    parser.add_argument("--cases", required=True, nargs="+", metavar="TEXT")
    parser.add_argument("--json", required=True, type=Path, help="the report")
    return parser.parse_args(argv)


def chosen_cases(backend: str, texts: Iterable[str] = ()) -> Iterator[str]:
    """The cases of ``backend``, or those of them that ``texts`` name. Raises ValueError on another."""
    for text in texts:
        if text not in CASES[backend]:
            raise ValueError(f"case {text!r}: allowed are {', '.join(CASES[backend])}")
    yield from texts or CASES[backend]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the cases and write the report; returns 0."""
    arguments = arguments_of(argv)
    use_tree(arguments.tree)
    # Before the work, so that what is imported is what is told, or the next process tells otherwise.
    sources = sources_hash(arguments.tree)
    measured = {"cpu": measured_cpu, "cuda": measured_cuda}[arguments.backend](arguments.cases)
    arguments.json.write_text(json.dumps({"sources": sources, **measured}), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
