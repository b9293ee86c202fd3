"""A small real engine: slots with their state, prompts in chunks, verify windows, drafts, batches, scoring."""

from ..reference.sampler import Sampling
from .engine import Engine
from .generate import generate
from .request import Drafting, Request
from .score import Scores, score, teacher_forced
from .slot import Slot

__all__ = ["Drafting", "Engine", "Request", "Sampling", "Scores", "Slot", "generate", "score", "teacher_forced"]
