"""float64 reference of the `qwen4_exp` text model and of the operations, in plain NumPy."""

from .checkpoint import load_checkpoint
from .config import Config
from .model import Model
from .presets import REAL_CONFIG, TINY_CONFIG
from .random_model import random_model

__all__ = ["REAL_CONFIG", "TINY_CONFIG", "Config", "Model", "load_checkpoint", "random_model"]
