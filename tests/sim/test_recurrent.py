"""The operations with a state in the simulator."""

import pytest

from cases.recurrent_cases import *  # noqa: F403
from qsa.kernels.cuda import simulator


@pytest.fixture(scope="module")
def layers():
    return simulator.load("layers")


@pytest.fixture(scope="module")
def to_device():
    return simulator.load("device").to_device


@pytest.fixture(scope="module")
def to_host():
    return simulator.load("device").to_host
