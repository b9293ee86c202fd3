"""Checkpoint folders with int8 weights: `config.json` and `model.safetensors` under the published names.

A matrix NAME may be stored in two tensors: NAME holds its int8 codes, and NAME_scale its float16 scales, one per 64
inputs (:class:`~qsa.reference.exact.layers.linear.QuantisedLinear`). All other tensors are stored as in published
checkpoints (``reference/model/checkpoint.py``).
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from qsa.reference.exact.layers.linear import GROUP, QuantisedLinear
from qsa.reference.model.checkpoint import CheckpointError, read_tensors
from qsa.reference.model.config import Config
from qsa.reference.model.text_model import check_tensors, shapes

from .weights import quantise_tensors

SCALE = "_scale"
"""Suffix that makes the name of a matrix's scales from the name of the matrix."""

TABLES = "embed_tokens.weight", "ngram_embedding.weight"
"""Endings of the names of tables. Only single rows of a table are read, so it stays memory-mapped."""


def read_quantised(folder: str | Path) -> tuple[Config, dict[str, Any]]:
    """Read a checkpoint folder, published or quantised: (:class:`~qsa.reference.Config`, name -> tensor).

    A matrix stored as codes becomes a QuantisedLinear. Every other tensor is as
    ``reference.model.checkpoint.read_tensors`` returns it. Raises CheckpointError (a ValueError) that names the file or
    tensor when codes and scales do not match, a tensor is missing, extra or misshapen, or a file is malformed, and
    FileNotFoundError when a file is missing.
    """
    config, found = read_tensors(folder, codes=True)
    scales = {name for name in found if name.endswith(SCALE) and _coded(found.get(name.removesuffix(SCALE)))}
    tensors = {}
    for name in found.keys() - scales:
        tensors[name] = found[name]
        if _coded(found[name]):
            scale = found.get(name + SCALE)
            if scale is None or scale.dtype != np.float16:
                raise CheckpointError(f"tensor {name}: int8 codes: {name}{SCALE} in float16 is required beside them")
            # Read rather than mapped: kernels are compiled for arrays that may be written.
            codes = found[name] if name.endswith(TABLES) else np.array(found[name])
            tensors[name] = QuantisedLinear(codes, np.array(scale))
    try:
        check_tensors(tensors, shapes(config, any(name.startswith("mtp.") for name in tensors)))
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    return config, tensors


def _coded(tensor: Any) -> bool:
    """Whether ``tensor`` holds int8 codes."""
    return getattr(tensor, "dtype", None) == np.int8


def write_quantised(folder: str | Path, config: Config, tensors: Mapping[str, Any]) -> None:
    """Write a quantised checkpoint, which :func:`read_quantised` reads.

    folder   is created if it is missing; its config.json and model.safetensors are replaced
    tensors  name -> array of any float dtype, which is quantised here, or QuantisedLinear; the names are those of
             ``reference.model.text_model.shapes``

    Raises ValueError when a tensor is missing, extra, misshapen or not finite.
    """
    check_tensors(tensors, shapes(config, any(name.startswith("mtp.") for name in tensors)))
    arrays = {}
    for name, tensor in quantise_tensors(tensors).items():
        if isinstance(tensor, QuantisedLinear):
            arrays[name], arrays[name + SCALE] = tensor
        else:
            arrays[name] = tensor
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    quantisation = {"quant_method": "int8", "group_size": GROUP, "scale_dtype": "float16", "scale_suffix": SCALE}
    text = json.dumps({**config.to_dict(), "quantization_config": quantisation}, indent=2) + "\n"
    # Each file is written under a temporary name first: a killed run leaves the old file or the new one.
    writers: tuple[tuple[str, Callable[[Path], Any]], ...] = (
        ("config.json", lambda path: path.write_text(text, encoding="utf-8")),
        ("model.safetensors", lambda path: save_file({k: np.ascontiguousarray(v) for k, v in arrays.items()}, path)),
    )
    for name, write in writers:
        temporary = folder / f".{name}.{os.getpid()}.tmp"
        try:
            write(temporary)
            if name != "config.json":
                # safetensors creates files that only their owner may read.
                temporary.chmod((folder / "config.json").stat().st_mode)
            os.replace(temporary, folder / name)
        finally:
            temporary.unlink(missing_ok=True)
