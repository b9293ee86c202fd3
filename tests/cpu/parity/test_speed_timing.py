"""The gate's speed on real times: a kernel that is slowed by 30 % is found, one that is not changed is not.

These tests measure time, so they run alone: ``make timing``. AMBIGUOUS is right only where the base against itself
showed more noise than the floor.
"""

import shutil

import pytest

from qsa.kernels.sources import root
from qsa.parity.speed.compare import Arm, compare
from qsa.parity.speed.verdict import AMBIGUOUS, SAME, SLOWER, Floors

pytestmark = pytest.mark.timing

SLOWED, UNCHANGED = "select:context=1048576,rows=1", "append_kv:format=int8,rows=64"

FLOOR = Floors(relative=0.15, absolute=1.0)
"""Half of what is to be found, so that a machine with other work on it can still say something."""

SLOWER_SELECT = '''

def _slower(function):
    """``function``, which then waits for 0.3 of the time that it took."""
    import functools
    import time

    @functools.wraps(function)
    def call(*arguments, **options):
        started = time.perf_counter()
        result = function(*arguments, **options)
        until = time.perf_counter() + 0.3 * (time.perf_counter() - started)
        while time.perf_counter() < until:
            pass
        return result

    return call


select = _slower(select)
'''


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The outcome of a comparison of these kernels with the same, of which selection is slower."""
    trees = []
    for name in ("base", "change"):
        trees.append(tmp_path_factory.mktemp(name))
        for folder in ("reference", "kernels"):
            shutil.copytree(root() / folder, trees[-1] / folder, ignore=shutil.ignore_patterns("__pycache__"))
    path = trees[1] / "kernels" / "cpu" / "__init__.py"
    path.write_text(path.read_text(encoding="utf-8") + SLOWER_SELECT, encoding="utf-8")
    base, change = (Arm(tree.name, tree) for tree in trees)
    return compare(base, change, "cpu", (SLOWED, UNCHANGED), FLOOR, lambda *step: print(*step, flush=True))


def test_a_kernel_that_is_slowed_by_30_percent_is_found(found):
    one = found.judgements[SLOWED]
    print(one)
    assert one.verdict == SLOWER or (one.verdict == AMBIGUOUS and one.noise > one.floor), one
    assert one.verdict == AMBIGUOUS or 1.2 < one.ratio < 1.4, one


def test_a_kernel_that_is_not_changed_is_not_found(found):
    one = found.judgements[UNCHANGED]
    print(one)
    assert one.verdict == SAME or (one.verdict == AMBIGUOUS and one.noise > one.floor), one
