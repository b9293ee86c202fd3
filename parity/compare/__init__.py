"""Comparing a result with the truth: equality, error bounds, the position of a failure, inputs that were changed."""

from .comparison import Comparison, equal, error, verdict
from .element import Element
from .input_changes import ChangedInputError, Given
from .margins import Margins

__all__ = ["ChangedInputError", "Comparison", "Element", "Given", "Margins", "equal", "error", "verdict"]
