"""float64 reference of the `qwen4_exp` text model and of the operations, in plain NumPy."""

from .model.checkpoint import load_checkpoint
from .model.config import Config
from .model.presets import REAL_CONFIG, TINY_CONFIG
from .model.random_model import random_model
from .model.text_model import Model

__all__ = ["REAL_CONFIG", "TINY_CONFIG", "Config", "Model", "load_checkpoint", "random_model"]
