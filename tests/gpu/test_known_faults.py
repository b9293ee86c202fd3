"""Known faults of kernels, on a device; see ``known_faults``."""

from functools import partial

import pytest

from cases.known_faults import FaultBackend
from cases.known_faults_attend import *  # noqa: F403
from cases.known_faults_index import *  # noqa: F403
from cases.known_faults_large import *  # noqa: F403
from cases.known_faults_select import *  # noqa: F403
from cases.known_faults_step import *  # noqa: F403
from support.guarded import replay

pytestmark = pytest.mark.gpu


def replayed(call):
    """``call`` captured in a graph: a function that replays it and waits."""
    from qsa.kernels.cuda.device import Graph

    return partial(replay, Graph(call))


@pytest.fixture(scope="module", params=["cuda"])
def backend(request):
    cupy = pytest.importorskip("cupy", reason="CuPy is missing (extra cuda12 or cuda13)")
    return FaultBackend(request.param, captured=replayed, empty=cupy.empty)
