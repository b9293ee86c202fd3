"""Run a kernel in the simulator, with or without an expected fault."""

from pathlib import Path

import numpy as np
import pytest

from qsa.kernels.cuda import simulator

compiler = simulator.load("toolchain.compiler")


def run(function, *args, grid=1, block=64, shared=256, **settings):
    with simulator.configured(**settings):
        simulator.launch(compiler.kernel()(function), grid, block, args, shared=shared)


def fails(kind, function, *args, says=".", **kwargs):
    """The kernel fails with ``kind``; the message names it, its file and a line."""
    with pytest.raises(simulator.SimulationError, match=says) as caught:
        run(function, *args, **kwargs)
    assert caught.value.kind == kind
    assert function.__name__ in str(caught.value) and f"{Path(function.__code__.co_filename).name}:" in str(
        caught.value
    )


def zeros(n=64, dtype=np.int32):
    return np.zeros(n, dtype)
