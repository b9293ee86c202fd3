"""Work is shared among threads that sleep, and small calls stay on the thread that makes them."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numba
import numpy as np
import pytest

from qsa.kernels import cpu
from qsa.kernels.cpu.common.threads import share
from qsa.reference.exact import layers
from qsa.reference.exact.layers.linear import quantise
from support.arrays import bits, generator

TESTS = Path(__file__).parents[2]


@pytest.fixture
def two_threads():
    if numba.config.NUMBA_NUM_THREADS < 2:
        pytest.skip("NUMBA_NUM_THREADS is 1")
    before = numba.get_num_threads()
    numba.set_num_threads(2)
    yield
    numba.set_num_threads(before)


@pytest.mark.parametrize("items", [0, 1, 2, 3, 8, 100])
@pytest.mark.parametrize("alone", [False, True])
def test_every_item_is_carried_out_once(two_threads, items, alone):
    done, threads = [], set()

    def work(first, stop, name):
        assert name == "given"
        threads.add(threading.get_ident())
        done.extend(range(first, stop))

    share(alone, items, work, "given")
    assert sorted(done) == list(range(items))
    if alone:
        assert threads <= {threading.get_ident()}


def test_both_threads_work(two_threads):
    """Each waits for the other: with one thread this would not end."""
    barrier, first = threading.Barrier(2, timeout=60), threading.local()

    def work(begin, stop):
        if not hasattr(first, "met"):
            first.met = True
            barrier.wait()

    share(False, 100, work)


@pytest.mark.parametrize("bad", [0, 99])
def test_a_failure_is_raised_when_no_thread_works_any_more(two_threads, bad):
    working = []

    def work(first, stop):
        working.append(first)
        if first <= bad < stop:
            working.remove(first)
            raise ArithmeticError("piece")
        working.remove(first)

    with pytest.raises(ArithmeticError, match="piece"):
        share(False, 100, work)
    assert not working


def test_several_python_threads_call_at_once():
    rng = generator(1)
    weight = quantise(rng.standard_normal((256, 512)))
    loaded = cpu.layers.load_linear(weight)
    inputs = [rng.standard_normal((100, 512)).astype(np.float32) for _ in range(8)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda x: cpu.layers.linear(x, loaded), inputs))
    for x, got in zip(inputs, found, strict=True):
        assert np.array_equal(bits(got), bits(layers.linear(x, weight)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_has_threads_of_its_own(two_threads):
    share(False, 4, lambda first, stop: None)
    child = os.fork()
    if not child:
        done = []
        try:
            share(False, 100, lambda first, stop: done.extend(range(first, stop)))
        finally:
            os._exit(0 if sorted(done) == list(range(100)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


WINDOWS = """
import os
import numpy as np
from qsa.engine import load_model
from qsa.golden.families import text

model = load_model(text.MODEL, "cpu", {arithmetic!r})
state = model.init_state(2048)
count = lambda: len(os.listdir("/proc/self/task"))
before = count()
for rows in (1, 8, 1):
    model.forward(np.arange(rows), state)
print(count() - before)
model.forward(np.arange(1024) % 250, state)
print(count() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="no list of threads")
@pytest.mark.parametrize("arithmetic", ["exact", "float"])
def test_a_window_of_the_golden_model_wakes_no_thread(arithmetic):
    """The prompt behind it does, which shows that threads are seen."""
    environment = os.environ | {"NUMBA_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WINDOWS.format(arithmetic=arithmetic)]
    run = subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["0", "1"]
