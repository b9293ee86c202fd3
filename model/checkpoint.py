"""Checkpoint folders with int8 weights: `config.json` and `model.safetensors` under the published names.

A matrix NAME may be stored as NAME, its int8 codes, and NAME_scale, its float16 scales, a scale per 64 inputs
(:class:`~qsa.reference.exact.layers.linear.QuantisedLinear`). All else is stored as
``reference/model/checkpoint.py`` reads it.
"""

import json
import os
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from qsa.reference.exact.layers.linear import GROUP, QuantisedLinear
from qsa.reference.model.checkpoint import CheckpointError, read_tensors
from qsa.reference.model.text_model import check_tensors, shapes

from .weights import quantise_tensors

SCALE = "_scale"
"""What the name of a matrix's scales has after the matrix's own."""

TABLES = "embed_tokens.weight", "ngram_embedding.weight"
"""Endings of the tables, whose rows are looked up: they stay mapped."""


def read_quantised(folder):
    """(:class:`~qsa.reference.Config`, name -> tensor) of a checkpoint folder, published or quantised.

    A matrix with codes is a QuantisedLinear; anything else is as ``reference.checkpoint.read_tensors`` gives it.
    Raises CheckpointError (a ValueError) naming file or tensor when codes and scales do not belong together, a tensor
    is missing, extra or misshapen, or a file is malformed; FileNotFoundError when a file is absent.
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


def _coded(tensor):
    return getattr(tensor, "dtype", None) == np.int8


def write_quantised(folder, config, tensors):
    """Write a model quantised: what :func:`read_quantised` and published-format readers of the rest find again.

    folder   made when it is not there; its config.json and model.safetensors are replaced
    tensors  name -> array of any float dtype, quantised here, or QuantisedLinear; names of ``model.shapes``

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
    # Each under a temporary name first: a killed run leaves the old file or the new one.
    for name, write in (
        ("config.json", lambda path: path.write_text(text, encoding="utf-8")),
        ("model.safetensors", lambda path: save_file({k: np.ascontiguousarray(v) for k, v in arrays.items()}, path)),
    ):
        temporary = folder / f".{name}.{os.getpid()}.tmp"
        try:
            write(temporary)
            if name != "config.json":
                # safetensors makes files that nobody else may read.
                temporary.chmod((folder / "config.json").stat().st_mode)
            os.replace(temporary, folder / name)
        finally:
            temporary.unlink(missing_ok=True)
