"""Tests in this folder need a CUDA device; without one they are skipped and say what is missing."""

import pytest

from support.backend import Backend


def _missing():
    try:
        from qsa.kernels.cuda.toolchain.compiler import current_device

        current_device()
    except ModuleNotFoundError as error:
        return f"numba-cuda and CuPy are missing (extra cuda12 or cuda13): {error}"
    except ImportError as error:
        return str(error)
    return None


@pytest.fixture(autouse=True, scope="session")
def needs_a_device():
    """Skips where there is none."""
    missing = _missing()
    if missing:
        pytest.skip(missing)


@pytest.fixture(scope="session")
def backend(needs_a_device):
    """The kernels on the device."""
    return Backend("cuda")
