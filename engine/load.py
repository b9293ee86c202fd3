"""Loading and saving: a checkpoint folder becomes a model on a backend, and a model a quantised checkpoint.

For the exact arithmetic a published checkpoint is quantised tensor by tensor while it is read; a quantised one is used
as it is. The float arithmetic uses the published weights, or the dequantised values of a quantised checkpoint.
"""

import importlib
from pathlib import Path
from typing import Any

from qsa.kernels.ops import load_backend
from qsa.kernels.switches import ARITHMETICS, switches
from qsa.model import Arithmetic, ExactModel, FloatModel, TextModel, read_quantised, write_quantised
from qsa.model.mtp import DRAFT_WINDOW
from qsa.reference.geometry import RULES
from qsa.reference.model.checkpoint import CheckpointError
from qsa.reference.model.mtp import NORMS

from .slots.identity import identity

BACKENDS = {"cpu": "cpu", "cuda": "cuda", "reference": "exact"}
"""Name of a model's backend -> its name in ``kernels.ops``. ``reference`` is the exact arithmetic in NumPy."""


def load_model(
    directory: str | Path,
    backend: str = "cpu",
    arithmetic: str | None = None,
    rule: str = "blocks",
    draft_norm: str = "whole",
    draft_window: int = DRAFT_WINDOW,
) -> TextModel:
    """Load the model of a checkpoint folder: an :class:`ExactModel` or a :class:`FloatModel`.

    directory     `config.json` and safetensors, published (float64, float32, float16, bfloat16, in shards or not) or
                  quantised (``model/checkpoint.py``)
    backend       ``cpu``, ``cuda`` or ``reference``
    arithmetic    ``exact`` or ``float``; by default the switch QSA_ARITHMETIC. ``reference`` supports only ``exact``
    rule          selection rule, ``blocks`` or ``cells``
    draft_norm    ``whole`` or ``streams``, see ``reference/model/mtp.py``
    draft_window  number of latest cells that the draft layer attends to

    All weights are hashed once, so that a slot saved by one model is not restored into another.
    ``model.dequantised()`` is the float64 reference with exactly the weights that are multiplied.
    Raises ValueError that names the argument, or the folder and the tensor or field that is wrong, and
    FileNotFoundError that names the missing folder or file.
    """
    arithmetic = switches().arithmetic if arithmetic is None else arithmetic
    for name, value, allowed in (
        ("backend", backend, BACKENDS),
        ("arithmetic", arithmetic, ARITHMETICS),
        ("rule", rule, RULES),
        ("draft_norm", draft_norm, NORMS),
    ):
        if value not in allowed:
            raise ValueError(f"{name} = {value!r}: allowed are {', '.join(allowed)}")
    if draft_window < 1:
        raise ValueError(f"draft_window = {draft_window}: must be at least 1")
    if backend == "reference" and arithmetic == "float":
        raise ValueError("arithmetic = 'float': the reference backend is exact alone; allowed are cpu and cuda")
    folder = _checked_folder(directory)
    module: Any = load_backend(BACKENDS[backend])
    if backend == "cuda":
        _check_device()
    options: dict[str, Any] = {"rule": rule, "draft_norm": draft_norm, "draft_window": draft_window}
    model: TextModel
    try:
        config, tensors = read_quantised(folder)
        if arithmetic == "float":
            model = FloatModel(config, tensors, backend=module, xp=_array_module(backend), **options)
        else:
            # The NumPy backend has only the exact arithmetic; its attend takes no argument ``arithmetic``.
            module = module if backend == "reference" else Arithmetic(module, "exact")
            model = ExactModel(config, tensors, backend=module, **options)
    except ValueError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    # Computed here rather than at the first save, at which requests may be waiting.
    identity(model)
    return model


def save_quantised(model: TextModel, directory: str | Path) -> None:
    """Write ``model`` as a quantised checkpoint; a float model is quantised. Raises OSError when writing fails."""
    write_quantised(directory, model.config, model.stored)


def _checked_folder(directory: str | Path) -> Path:
    folder = Path(directory)
    if not folder.is_dir():
        raise FileNotFoundError(f"directory = {str(folder)!r}: there is no such folder")
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder}: no config.json: a checkpoint folder is required")
    if not any((folder / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json")):
        raise FileNotFoundError(f"{folder}: neither model.safetensors nor model.safetensors.index.json")
    return folder


def _check_device() -> None:
    """Raises ValueError with the reason when there is no CUDA device."""
    from numba import cuda

    if not cuda.is_available():
        reason = str(cuda.cuda_error() or "no CUDA driver").strip().splitlines()[0]
        raise ValueError(f"backend = 'cuda': no device: {reason}")


def _array_module(backend: str) -> Any:
    return importlib.import_module("cupy" if backend == "cuda" else "numpy")
