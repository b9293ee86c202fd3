"""A failing call of ``attend`` or ``select`` made as small as it can be and still fail, in one file."""

from .problem import AttendProblem, Problem, SelectProblem, load, save
from .record import ShrinkError, failing_call
from .reduce import shrink

__all__ = ["AttendProblem", "Problem", "SelectProblem", "ShrinkError", "failing_call", "load", "save", "shrink"]
