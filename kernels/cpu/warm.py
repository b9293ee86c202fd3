"""Compile the CPU kernels ahead of their first use, in parallel processes: ``python -m qsa.kernels.cpu.warm``.

A kernel is compiled when it is first called, and from then on taken from numba's cache. The compiler has one thread in
a process, so the jobs below, each of a few operations, run in processes of their own.
"""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection
from concurrent.futures import ProcessPoolExecutor, as_completed

import numba
import numpy as np

from qsa.reference.exact.layers.linear import quantise
from qsa.reference.geometry import Geometry, step_records
from qsa.reference.index import INDEX_FORMATS, Index
from qsa.reference.kv import PagedKV
from qsa.reference.sampler import Sampling

from . import layers, sampler, speculative
from .append_index import append_index
from .append_kv import append_kv
from .attend import attend
from .block_scores import block_scores
from .select import select

GEOMETRY = Geometry(n_head=4, n_head_kv=1, head_dim=64, n_rot=16, idx_heads=1, idx_dim=32, budget=64)
"""Small; a kernel is the same for every geometry."""

CELLS = 64


def _ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def _linear() -> None:
    weight = layers.load_linear(quantise(_ones(256, 64)))
    for rows in (1, 1 << 10):
        layers.linear(_ones(rows, 64), weight)


def _experts() -> None:
    gate_up, down = (layers.load_linear(quantise(_ones(2, *shape))) for shape in ((4, 64), (64, 2)))
    ids, shares = layers.route(_ones(2, 2), 1)
    layers.experts(_ones(2, 64), ids, shares, gate_up, down)


def _attend(arithmetic: str) -> None:
    kv = PagedKV.new("int8", CELLS, geometry=GEOMETRY)
    ids, q = np.zeros((1, CELLS), np.int32), _ones(1, GEOMETRY.n_head, GEOMETRY.head_dim)
    for splits in (None, 2) if arithmetic == "exact" else (None,):
        attend(q, kv, ids, step_records([CELLS - 1], "cells", GEOMETRY), splits=splits, arithmetic=arithmetic)


def _cells() -> None:
    g, steps = GEOMETRY, step_records(range(CELLS), "blocks", GEOMETRY)
    kv, values = PagedKV.new("int8", CELLS, geometry=g), _ones(CELLS, g.n_head_kv, g.head_dim)
    append_kv(values, values, kv, steps)
    for format in INDEX_FORMATS:
        index = Index(CELLS // g.ratio + 1, _ones(g.idx_dim), g, format=format)
        append_index(_ones(CELLS, g.idx_dim), steps, index)
        scores = block_scores(_ones(CELLS, g.idx_heads, g.idx_dim), index, steps)
        assert scores is not False
        select(scores, steps, geometry=g)


def _rows() -> None:
    x, y = _ones(2, 2, 32), _ones(2, 32)
    layers.add(x, x)
    layers.add_gated(x, x, x)
    layers.inject(x, _ones(2, 2), y)
    layers.mix_streams(x, x)
    layers.ngram_gate(x, x, y)
    layers.silu(x)
    layers.sigmoid_gate(y, y)
    layers.swiglu(y)
    layers.l2_norm(x, 1.0)
    layers.rms_norm(x, _ones(32), 1e-6)
    layers.gated_norm(x, x, _ones(32), 1e-6, "silu")
    layers.rotate(x, _ones(2, 8))


def _recurrent() -> None:
    layers.decay_beta(_ones(2, 1), _ones(2, 1), _ones(1), _ones(1))
    layers.causal_conv(_ones(2, 4), _ones(2, 4), _ones(1, 4))
    layers.delta_rule(_ones(2, 1, 4), _ones(2, 1, 4), _ones(2, 1, 4), _ones(2, 1), _ones(2, 1), _ones(1, 4, 4))


def _products() -> None:
    _linear()
    _experts()


def _elements() -> None:
    _rows()
    _recurrent()


def _sampler() -> None:
    options = Sampling(temperature=1.0, top_k=2, top_p=0.9)
    lists, history = sampler.new_lists(1), np.zeros((1, 4), np.int32)
    sampler.sample(_ones(1, 8), options, history, 0, 1, 0, slots=0, lists=lists)
    speculative.judge(lists, np.zeros(1, np.int32), lists, 1, 0)


JOBS: dict[str, Callable[[], None]] = {
    "attend exact": lambda: _attend("exact"),
    "sampler": _sampler,
    "linear, experts": _products,
    "rows, recurrent": _elements,
    "attend float": lambda: _attend("float"),
    "cells": _cells,
}
"""Name -> what compiles its kernels. The longest first, so that no process is left alone with one at the end. What
shares kernels is one job: two at a time would compile them twice."""


def _serve(names: list[str], processes: int) -> None:
    """In a process of its own: compile the jobs in so many processes, and print a line of JSON as each ends: its name,
    its seconds, and what went wrong or null.

    The processes are forked from this one, which has imported and started the compiler once for all of them: that takes
    a second, as long as a small job. It has no threads when it forks.
    """
    # Starts the compiler.
    numba.njit(lambda x: x)(1)
    fork = sys.platform == "linux"
    pool = ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("fork" if fork else "spawn"))
    running = {pool.submit(_job, name): name for name in names}
    for each in as_completed(running):
        error = each.exception()
        seconds, problem = (0.0, repr(error)) if error else each.result()
        print(json.dumps([running[each], seconds, problem]), flush=True)


def _job(name: str) -> tuple[float, str | None]:
    """(seconds that a job took, what went wrong)."""
    start = time.perf_counter()
    try:
        JOBS[name]()
    except Exception:
        return 0.0, traceback.format_exc()
    return time.perf_counter() - start, None


def _stop(server):
    """End a server and its processes, whatever they are doing, unless it has ended."""
    if server.poll() is not None:
        return
    if hasattr(os, "killpg"):
        os.killpg(server.pid, signal.SIGKILL)
    else:
        server.kill()


def warm(
    processes: int | None = None,
    jobs: Collection[str] | None = None,
    on_job: Callable[[str, float], object] = lambda name, seconds: None,
) -> dict[str, float]:
    """Compile every kernel that numba's cache lacks: job -> seconds that it took.

    processes  how many run at a time, at least 1; by default one for each core that this process may use
    jobs       names of :data:`JOBS`; all of them unless given
    on_job     is called with each job that has ended, and its seconds

    Raises ValueError on fewer than one process or an unknown job, and RuntimeError that names the job when one fails.
    """
    jobs = list(JOBS) if jobs is None else jobs
    for name in jobs:
        if name not in JOBS:
            raise ValueError(f"job = {name!r}: allowed are {', '.join(JOBS)}")
    if processes is None:
        processes = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if processes < 1:
        raise ValueError(f"processes = {processes}: must be at least 1")
    names = [name for name in JOBS if name in jobs]
    # Where this process finds the package, the other one does too; compilation alone needs no second thread.
    path = os.pathsep.join(path for path in sys.path if path)
    environment = os.environ | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", f"from {__spec__.name} import _serve; _serve({names!r}, {processes})"]
    found = {}
    with tempfile.TemporaryFile("w+") as errors:
        server = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
        try:
            assert server.stdout is not None
            for line in server.stdout:
                name, seconds, problem = json.loads(line)
                if problem is not None:
                    raise RuntimeError(f"warm: {name}: {problem.strip()}")
                found[name] = seconds
                on_job(name, seconds)
            if server.wait() or len(found) < len(names):
                errors.seek(0)
                raise RuntimeError(f"warm: {', '.join(n for n in names if n not in found)}: {errors.read().strip()}")
        finally:
            # After a failure or Ctrl-C nothing is compiled any more.
            _stop(server)
            server.communicate()
    return {name: found[name] for name in names}


if __name__ == "__main__":
    begin = time.perf_counter()
    for job, seconds in warm().items():
        print(f"{job:14}{seconds:6.1f} s")
    print(f"{'all':14}{time.perf_counter() - begin:6.1f} s")
