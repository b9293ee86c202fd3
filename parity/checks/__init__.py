"""The parity modules: a file for each check, and the inputs that they share."""

from .attend_inputs import AttendInputs

__all__ = ["AttendInputs"]
