"""A small real engine: slots with their state, prompts in chunks, verify windows, drafts, batches, scoring."""

from qsa.reference.sampler import Sampling

from .engine import Engine
from .generate import generate
from .load import load_model, save_quantised
from .request import Drafting, Request
from .score import Scores, score, teacher_forced
from .slot import Slot

__all__ = [
    "Drafting",
    "Engine",
    "Request",
    "Sampling",
    "Scores",
    "Slot",
    "generate",
    "load_model",
    "save_quantised",
    "score",
    "teacher_forced",
]
