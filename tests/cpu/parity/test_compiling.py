"""Compilation of the CPU kernels as a step: what is known to be compiled, what is said, what a run waits for."""

import json
import os
import subprocess
import sys

import pytest

from qsa.kernels.cpu import warm
from qsa.parity import cli, suite
from qsa.parity.running import compiling


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """A list of the jobs that were asked for; nothing is compiled, and numba's cache is an empty folder."""
    jobs = []

    def fake(processes=None, jobs=None, on_job=lambda name, seconds: None, told=jobs):
        told.append(list(jobs))
        for name in jobs:
            on_job(name, 0.1)

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(warm, "warm", fake)
    return jobs


def test_a_job_is_compiled_once_and_the_time_is_said(compiled, capsys):
    assert compiling.compile_missing("qsa parity", ["cells"]) > 0
    assert "qsa parity: compiling kernels, 1 parts" in capsys.readouterr().err
    assert compiling.compile_missing("qsa parity", ["cells"]) == 0.0 and capsys.readouterr().err == ""
    compiling.compile_missing("qsa parity", ["attend exact", "cells"])
    assert "qsa parity: kernels compiled in " in capsys.readouterr().err
    compiling.compile_missing("qsa generate")
    assert compiling.compile_missing("qsa generate") == compiling.compile_missing("x", ["sampler"]) == 0.0
    assert compiled == [["cells"], ["attend exact"], list(warm.JOBS)]


@pytest.mark.parametrize("change", ["sources", "key", "unreadable", "NUMBA_CPU_NAME", "NUMBA_CACHE_DIR"])
def test_what_can_change_a_kernel_makes_it_missing(compiled, tmp_path, monkeypatch, change):
    compiling.compile_missing("x", ["cells"])
    path = tmp_path / "qsa-compiled.json"
    noted = json.loads(path.read_text())
    if change == "sources":
        path.write_text(json.dumps({**noted, "files": "other", "sources": "other"}))
    elif change == "key":
        path.write_text(json.dumps({**noted, "key": {**noted["key"], "versions": ["0", "0", "0"]}}))
    elif change == "unreadable":
        path.write_text("[")
    else:
        monkeypatch.setenv(change, str(tmp_path / "other"))
    assert compiling.missing(["cells"]) == ["cells"]


def test_sources_that_were_written_and_are_the_same_are_looked_at_once(compiled, tmp_path, monkeypatch):
    compiling.compile_missing("x", ["cells"])
    path = tmp_path / "qsa-compiled.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "files": "other"}))
    assert compiling.missing(["cells"]) == []
    monkeypatch.setattr(compiling, "_sources", lambda: pytest.fail("read again"))
    assert compiling.missing(["cells"]) == []


def test_the_key_has_all_sources_that_the_cache_is_tied_to():
    from qsa.kernels.cpu.common import jit
    from qsa.kernels.sources import reachable, root

    assert compiling._sources() == jit.STAMP
    seen = {path for folder in compiling.FOLDERS for path in (root() / folder).rglob("*.py")}
    assert {root() / name for name in reachable(["kernels/cpu"])} <= seen


def test_jobs_of_cases():
    def jobs(*texts, arithmetic="exact"):
        return compiling.jobs_of(map(suite.parse, texts), arithmetic)

    attend = "accuracy:op=attend,format=int8,scores=ordinary,context=60,rows=1,tail=3,seed=1"
    select = "selection:op=select,rule=blocks,scores=levels,context=2048,rows=1,tail=1,seed=1"
    assert jobs(attend) == ["attend exact"] and jobs(attend, arithmetic="float") == ["attend float"]
    assert jobs(select, attend) == ["attend exact", "cells"] and jobs() == []
    (window, *_) = suite.collect(["verify-batch"], "exact")
    assert jobs(window.text) == ["attend exact", "cells"]
    assert jobs(select, "needle:op=find,context=4096,depth=50") is None
    assert set(jobs(attend, select)) <= set(warm.JOBS)


COMPILED_BY_CASES = """
import sys
from qsa.kernels.cpu import warm
from qsa.parity import suite
from qsa.parity.running import compiling
from qsa.parity.backend import Backend

def compiled():
    return {
        (name, key, str(signature))
        for name, module in sys.modules.items() if name.startswith("qsa.kernels.cpu")
        for key, value in vars(module).items() if hasattr(value, "signatures")
        for signature in value.signatures
    }

arithmetic, cases = sys.argv[1], [suite.parse(text) for text in sys.argv[2:]]
for job in compiling.jobs_of(cases, arithmetic):
    warm.JOBS[job]()
before = compiled()
assert before
suite.run(cases, Backend("cpu", arithmetic), lambda result: print(result.status, result.reason[:300]))
for signature in sorted(compiled() - before):
    print(signature)
"""


@pytest.mark.parametrize("arithmetic", ["exact", "float"])
def test_cases_compile_nothing_behind_their_jobs(arithmetic):
    cases = suite.collect(["accuracy", "pages", "goldens", "verify-batch", "selection", "split"], arithmetic)
    kinds = {}
    for case in cases:
        recipe = case.recipe
        kind = case.module, recipe.get("op", recipe.get("family")), recipe.get("format"), recipe.get("schedule")
        if recipe.get("context", 0) <= 4096:
            kinds.setdefault(kind, case.text)
    command = [sys.executable, "-c", COMPILED_BY_CASES, arithmetic, *kinds.values()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines.count("passed ") > 10
    assert [line for line in lines if not line.startswith(("passed", "unsupported"))] == []


def test_warm_compiles_all_and_says_when_there_is_nothing_to_do(compiled, capsys):
    assert cli.main(["warm"]) == 0 and cli.main(["warm"]) == 0
    assert capsys.readouterr().out == "every kernel is compiled: nothing to do\n" and compiled == [list(warm.JOBS)]


def test_a_kernel_that_cannot_be_compiled_is_told(compiled, capsys, monkeypatch):
    def broken(jobs, on_job):
        raise RuntimeError("warm: cells: no compiler")

    monkeypatch.setattr(warm, "warm", broken)
    assert cli.main(["warm"]) == 2 and "qsa warm: error: warm: cells: no compiler" in capsys.readouterr().err
    assert compiling.missing(["cells"]) == ["cells"]


def test_our_kernels_are_compiled_also_where_numba_is_told_not_to(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert compiling.missing(None) is None and compiling.missing(["cells"]) == ["cells"]


@pytest.mark.parametrize("module", ["accuracy", "seven", "goldens", "nll", "needle", "spec", "verify-batch"])
def test_a_list_of_cases_is_made_without_numba(module):
    """The first verdict shall come within 3 s: importing numba and the kernels takes one of them."""
    program = (
        f"import sys; from qsa.parity import suite; suite.collect([{module!r}], 'exact'); from qsa.parity.commands "
    )
    program += "import parity; from qsa.parity.environment import facts; facts(); print('numba' in sys.modules)"
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=60)
    gpu = bool(__import__("importlib.util").util.find_spec("numba_cuda"))
    assert done.stdout.strip() == "False" or gpu, done.stderr


def test_threads_and_target_are_numbas_own():
    program = "from qsa.parity.environment import _numba; before = _numba(); import numba, llvmlite.binding as b; "
    program += (
        "assert before == (numba.config.NUMBA_NUM_THREADS, numba.config.CPU_NAME or b.get_host_cpu_name()), before"
    )
    for variables in ({}, {"NUMBA_NUM_THREADS": "1", "NUMBA_CPU_NAME": "generic"}):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")} | variables
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=60
        )
        assert done.returncode == 0, done.stderr
