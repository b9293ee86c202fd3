"""Known faults of kernels, on a device; see ``known_faults``."""

import pytest

from cases.known_faults_attend import *  # noqa: F403
from cases.known_faults_index import *  # noqa: F403
from cases.known_faults_large import *  # noqa: F403
from cases.known_faults_select import *  # noqa: F403
from cases.known_faults_step import *  # noqa: F403
from support.backend import Backend

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=["cuda"])
def backend(request):
    return Backend(request.param)
