"""What ``qsa.golden`` exports, and that importing it stays cheap."""

import subprocess
import sys

import qsa.golden

HEAVY = ("numba", "cupy", "torch", "rich", "safetensors", "qsa.model", "qsa.parity", "qsa.golden.families")


def test_every_exported_name_is_a_class():
    assert qsa.golden.__all__ == sorted(qsa.golden.__all__)
    assert all(isinstance(getattr(qsa.golden, name), type) for name in qsa.golden.__all__)


def test_importing_it_loads_nothing_heavy():
    code = f"import sys, qsa.golden; print([name for name in {HEAVY!r} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
