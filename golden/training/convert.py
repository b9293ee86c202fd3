"""From trained weights to the golden model: ``python -m qsa.golden.training.convert WEIGHTS MODEL``.

WEIGHTS is the OUT folder of ``train``. MODEL gets `config.json` and `model.safetensors` with int8 matrices, as
``model/checkpoint.py`` describes them. Plain NumPy; torch is not needed.
"""

import sys
from pathlib import Path
from typing import Any

from qsa.model.checkpoint import write_quantised
from qsa.reference.model.checkpoint import read_safetensors
from qsa.reference.model.ple import buffers

from .config import CONFIG

LIMIT = 16_000_000
"""Bytes that configuration and weights may take together."""


def tensors(folder: str | Path) -> dict[str, Any]:
    """name -> float32 array of the files ``weights-N.safetensors``, and the hash constants.

    Raises FileNotFoundError when there are none, CheckpointError (a ValueError) on a malformed file.
    """
    files = sorted(Path(folder).glob("weights-*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder}: no weights-*.safetensors")
    found = {name: array for file in files for name, (_, array) in read_safetensors(file).items()}
    for index, layer in enumerate(CONFIG.ple_layer_ids):
        for name, value in buffers(CONFIG, index).items():
            found[f"model.layers.{layer - 1}.ple.{name}"] = value
    return found


def main(weights: str | Path, model: str | Path) -> None:
    """Write the golden model. Raises ValueError when it takes more than :data:`LIMIT` bytes."""
    write_quantised(model, CONFIG, tensors(weights))
    size = sum((Path(model) / name).stat().st_size for name in ("config.json", "model.safetensors"))
    if size > LIMIT:
        raise ValueError(f"{model}: {size} bytes: at most {LIMIT} are allowed")
    print(f"{model}: {size} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
