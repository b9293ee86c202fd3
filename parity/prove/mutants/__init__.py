"""The built-in mutants; importing this package enters all of them into the catalogue."""

from . import appends, attention, attention_arithmetic, attention_state, scores, selection

__all__ = ["appends", "attention", "attention_arithmetic", "attention_state", "scores", "selection"]
