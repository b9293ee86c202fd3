"""Speed against a base commit: both measured by turns in fresh processes, judged with the noise of the moment."""

from .verdict import Floors, Judgement, Round

__all__ = ["Floors", "Judgement", "Round"]
