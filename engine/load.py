"""From a checkpoint folder to a model on a backend, and back.

A published checkpoint is quantised on the way in the exact arithmetic, tensor by tensor; a quantised one is taken as it
is. The float arithmetic has the published weights themselves, or what the quantised ones stand for.
"""

import importlib
from pathlib import Path

from qsa.kernels.ops import load_backend
from qsa.kernels.switches import ARITHMETICS, switches
from qsa.model.arithmetic import Arithmetic
from qsa.model.checkpoint import read_quantised, write_quantised
from qsa.model.float_model import FloatModel
from qsa.model.mtp import WINDOW
from qsa.model.text_model import ExactModel
from qsa.reference.geometry import RULES
from qsa.reference.model.checkpoint import CheckpointError
from qsa.reference.model.mtp import NORMS

from .identity import identity

BACKENDS = {"cpu": "cpu", "cuda": "cuda", "reference": "exact"}
"""Name of a backend for models -> its name in ``kernels.ops``. ``reference`` is the exact arithmetic in NumPy."""


def load_model(directory, backend="cpu", arithmetic=None, rule="blocks", draft_norm="whole", draft_window=WINDOW):
    """The model of a checkpoint folder: :class:`ExactModel` or :class:`FloatModel`.

    directory     `config.json` and safetensors, published (float64, float32, float16, bfloat16, in shards or not) or
                  quantised (``model/checkpoint.py``)
    backend       ``cpu``, ``cuda`` or ``reference``
    arithmetic    ``exact`` or ``float``; by default the switch QSA_ARITHMETIC. ``reference`` is exact alone.
    rule          selection rule, ``blocks`` or ``cells``
    draft_norm    ``whole`` or ``streams``, see ``reference/model/mtp.py``
    draft_window  cells the draft layer attends to

    All weights are hashed once, so that a slot saved by one model is not restored into another.
    ``model.dequantised()`` is the float64 reference of the very weights that are multiplied.
    Raises ValueError naming the argument, or the folder and the tensor or field that is wrong; FileNotFoundError naming
    the folder or file that is not there.
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
    module = load_backend(BACKENDS[backend])
    if backend == "cuda":
        _check_device()
    options = {"rule": rule, "draft_norm": draft_norm, "draft_window": draft_window}
    try:
        config, tensors = read_quantised(folder)
        if arithmetic == "float":
            model = FloatModel(config, tensors, backend=module, xp=_array_module(backend), **options)
        else:
            # The NumPy arithmetic knows no other, and its attend takes no name of one.
            module = module if backend == "reference" else Arithmetic(module, "exact")
            model = ExactModel(config, tensors, backend=module, **options)
    except ValueError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    # Here rather than at the first save, which may come while requests wait.
    identity(model)
    return model


def save_quantised(model, directory):
    """Write ``model`` as a quantised checkpoint; a float model is quantised. Raises OSError where it cannot be
    written."""
    write_quantised(directory, model.config, model.stored)


def _checked_folder(directory):
    folder = Path(directory)
    if not folder.is_dir():
        raise FileNotFoundError(f"directory = {str(folder)!r}: there is no such folder")
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder}: no config.json: a checkpoint folder is required")
    if not any((folder / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json")):
        raise FileNotFoundError(f"{folder}: neither model.safetensors nor model.safetensors.index.json")
    return folder


def _check_device():
    """Raises ValueError where there is no CUDA device, saying why."""
    from numba import cuda

    if not cuda.is_available():
        reason = str(cuda.cuda_error() or "no CUDA driver").strip().splitlines()[0]
        raise ValueError(f"backend = 'cuda': no device: {reason}")


def _array_module(backend):
    return importlib.import_module("cupy" if backend == "cuda" else "numpy")
