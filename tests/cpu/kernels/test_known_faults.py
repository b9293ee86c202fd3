"""Known faults of kernels, on the reference's exact arithmetic and the CPU kernels; see ``known_faults``."""

import pytest

from cases.known_faults_attend import *  # noqa: F403
from cases.known_faults_index import *  # noqa: F403
from cases.known_faults_large import *  # noqa: F403
from cases.known_faults_select import *  # noqa: F403
from cases.known_faults_step import *  # noqa: F403
from support.backend import Backend


@pytest.fixture(scope="module", params=["exact", "cpu"])
def backend(request):
    return Backend(request.param)
