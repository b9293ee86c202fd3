"""The engine: slots, chunked prompts, verify windows, drafts, batches, sampling and scoring."""

from qsa.reference.sampler import Sampling

from .draft import CommittedRows, Drafter, DraftRequest, LayerDrafter, Proposal
from .engine import Engine
from .generate import generate
from .load import load_model, save_quantised
from .programs.graph_runner import GraphRunner, make_runner
from .request import Drafting, Request
from .runner import Runner
from .score import Scores, score, teacher_forced
from .slots.slot import Slot
from .statistics import Statistics
from .window import WindowResult, run_window

__all__ = [
    "CommittedRows",
    "DraftRequest",
    "Drafter",
    "Drafting",
    "Engine",
    "GraphRunner",
    "LayerDrafter",
    "Proposal",
    "Request",
    "Runner",
    "Sampling",
    "Scores",
    "Slot",
    "Statistics",
    "WindowResult",
    "generate",
    "load_model",
    "make_runner",
    "run_window",
    "save_quantised",
    "score",
    "teacher_forced",
]
