"""The text model in float64: configuration, checkpoint, layers, draft layer.

A kind of layer is a module with ``shapes``, ``State``, ``init_state`` and ``forward``: :mod:`deltanet`, :mod:`qsa` and
:mod:`ple`; :mod:`moe` has no state.
"""

from . import deltanet, moe, ple, qsa
from .checkpoint import CheckpointError, Experts, Shards, load_checkpoint, read_safetensors, read_tensors
from .config import Config
from .mtp import Draft
from .ple import Hash
from .presets import REAL_CONFIG, TINY_CONFIG
from .random_model import random_model
from .text_model import Layer, Model, Output, State, Trace

__all__ = [
    "REAL_CONFIG",
    "TINY_CONFIG",
    "CheckpointError",
    "Config",
    "Draft",
    "Experts",
    "Hash",
    "Layer",
    "Model",
    "Output",
    "Shards",
    "State",
    "Trace",
    "deltanet",
    "load_checkpoint",
    "moe",
    "ple",
    "qsa",
    "random_model",
    "read_safetensors",
    "read_tensors",
]
