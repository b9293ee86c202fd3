"""Objects of a test as backends under the judge, and what the judge says of a case."""

import sys
import types

import pytest

from qsa.parity import suite
from qsa.parity.backend import Backend


@pytest.fixture
def backend_of(monkeypatch):
    """A function that makes the Backend of an object."""

    def make(kernel, arithmetic=None):
        module = types.ModuleType("theirs")
        module.kernel = kernel
        monkeypatch.setitem(sys.modules, "theirs", module)
        return Backend("theirs:kernel", arithmetic)

    return make


def run(text, backend):
    """The result of a case string on ``backend``."""
    return suite.run_case(suite.parse(text), backend)


def passed(text, backend):
    """The result of a case that passes."""
    result = run(text, backend)
    assert result.status == "passed", "\n".join(result.lines(backend))
    return result


def failed(text, backend, *words):
    """Assert that a case fails, and that its report has all ``words``."""
    result = run(text, backend)
    report = "\n".join(result.lines(backend))
    assert result.status == "failed", report
    for word in words:
        assert word in report, report
