"""Tests in this folder run the CUDA kernels in the simulator."""

import pytest

from support.backend import SIMULATOR, Backend


@pytest.fixture(scope="session")
def backend():
    """The kernels in the simulator."""
    return Backend(SIMULATOR)
