"""Every bad argument of the public surface is refused by name, before anything is launched or changed.

The rows stand in ``tests/cases/bad_inputs_*.py``.
"""

import pytest

from cases import bad_inputs_cuda, bad_inputs_engine, bad_inputs_loading, bad_inputs_operations
from cases.bad_inputs import contents
from qsa.kernels.cuda.toolchain.host import launches

TABLES = (bad_inputs_operations, bad_inputs_cuda, bad_inputs_engine, bad_inputs_loading)
ROWS = {name: bad for table in TABLES for name, bad in table.ROWS.items()}
BASES = {bad.base: name for name, bad in reversed(ROWS.items())}


def test_there_are_enough_rows():
    assert len(ROWS) == sum(len(table.ROWS) for table in TABLES) >= 100


@pytest.mark.parametrize("base", BASES, ids=BASES.values())
def test_the_good_call_succeeds(base):
    base.function(**base.make())


@pytest.mark.parametrize("bad", ROWS.values(), ids=ROWS)
def test_a_bad_argument_is_refused_by_name(bad):
    given = bad.arguments()
    before, launched = contents(given), launches()
    with pytest.raises(bad.kind) as error:
        bad.base.function(**given)
    text = str(error.value)
    assert type(error.value) is bad.kind or issubclass(type(error.value), bad.kind)
    assert all(word in text for word in bad.words), text
    assert "\n" not in text and len(text) < 400
    assert contents(given) == before and launches() == launched
