"""The operations with a state in the simulator."""

import pytest
from recurrent_cases import *  # noqa: F403

from qsa.kernels.cuda import simulate


@pytest.fixture(scope="module")
def layers():
    return simulate.load("layers")


@pytest.fixture(scope="module")
def to_device():
    return simulate.load("device").to_device


@pytest.fixture(scope="module")
def to_host():
    return simulate.load("device").to_host
