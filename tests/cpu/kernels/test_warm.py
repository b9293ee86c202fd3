"""Everything that a model calls is compiled ahead by ``kernels/cpu/warm.py``, in processes of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from qsa.kernels.cpu import warm

TESTS = Path(__file__).parents[2]

PROGRAM = """
import sys
import numpy as np
from qsa.engine import Drafting, Engine, load_model
from qsa.golden.families import text
from qsa.kernels.cpu import warm
from qsa.reference.sampler import GREEDY

def compiled():
    kernels = {
        (name, key): value
        for name, module in sys.modules.items() if name.startswith("qsa.kernels.cpu")
        for key, value in vars(module).items() if hasattr(value, "signatures")
    }
    return {(*place, str(signature)) for place, kernel in kernels.items() for signature in kernel.signatures}

for job in warm.JOBS.values():
    job()
before = compiled()
# Out of the cache only the outermost functions are loaded.
assert len(before) > 30
for arithmetic in ("exact", "float"):
    model = load_model(text.MODEL, "cpu", arithmetic)
    engine = Engine(model, slots=2, capacity=1400)
    for options in (GREEDY, text.SAMPLED):
        for drafting in (None, Drafting(spec=4)):
            engine.submit(np.arange(1100) % 250, 6, options, 1, drafting=drafting)
    engine.run()
for signature in sorted(compiled() - before):
    print(signature)
"""


def test_a_model_compiles_nothing_behind_the_jobs():
    run = subprocess.run([sys.executable, "-c", PROGRAM], cwd=TESTS, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout == ""


def test_jobs_run_in_processes_that_fill_the_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(warm, "JOBS", {"rows, recurrent": None})
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert warm.warm(1).keys() == {"rows, recurrent"}
    assert any("_heads" in path.name for path in tmp_path.rglob("*.nbi"))


def test_a_job_that_fails_is_named(monkeypatch):
    monkeypatch.setattr(warm, "JOBS", {"none such": None})
    with pytest.raises(RuntimeError, match=r"(?s)warm: none such: .*KeyError"):
        warm.warm()


@pytest.mark.parametrize("processes", [0, -1])
def test_processes_must_be_at_least_one(processes):
    with pytest.raises(ValueError, match=f"processes = {processes}: must be at least 1"):
        warm.warm(processes)
