"""``qsa.reference`` exports the five operations as functions with documentation."""

import inspect

import numpy as np
import pytest

import qsa.reference
from qsa.kernels.ops import OPERATIONS


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_a_function_with_documentation(name):
    function = getattr(qsa.reference, name)
    assert inspect.isfunction(function) and name in qsa.reference.__all__
    assert "[rows" in function.__doc__ and "Raises ValueError" in function.__doc__


def test_everything_exported_is_there():
    assert all(hasattr(qsa.reference, name) for name in qsa.reference.__all__)


def test_helpers_are_still_imported_from_the_files():
    from qsa.reference.attend import softmax_attention
    from qsa.reference.select import rank_blocks

    assert rank_blocks(np.array([1.0, 3.0, 2.0])).tolist() == [1, 2, 0]
    assert softmax_attention(np.ones((2, 4)), np.ones((1, 1, 4)), np.ones((1, 1, 4))).tolist() == [[1.0] * 4] * 2
