"""Known faults of kernels, on the CUDA kernels in the simulator; see ``known_faults``.

Without ``known_faults_large``: 65,537 blocks are minutes of simulation, and pools beyond 2^32 bytes need a device's
memory. The grids and chunks that those cross have tests of their own, with the limits lowered; for offsets beyond 32
bits (B9) ``test_far_pools`` moves a pool's address.
"""

from functools import partial

import pytest

from cases.known_faults_attend import *  # noqa: F403
from cases.known_faults_index import *  # noqa: F403
from cases.known_faults_select import *  # noqa: F403
from cases.known_faults_step import *  # noqa: F403
from qsa.kernels.cuda import simulator
from qsa.kernels.cuda.toolchain.host import Properties
from support.backend import SIMULATOR, Backend

MACHINES = tuple(
    partial(simulator.configured, properties=Properties("older", capability, 4, 64 << 10, 64 << 10, 4 << 20))
    for capability in ((7, 5), (8, 0))
)
"""Without tensor cores, and with them."""


@pytest.fixture(scope="module", params=["simulator"])
def backend(request):
    return Backend(SIMULATOR, MACHINES)
