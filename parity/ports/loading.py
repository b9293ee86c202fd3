"""Finding the library that a port needs: an ImportError says what is missing and how it is had."""

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any


def library(name: str, remedy: str = "install the extra `ports`") -> Any:
    """The module ``name``. Raises ImportError that names it and the ``remedy`` where it cannot be imported."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        # A module inside the library that is missing is not the library that is missing.
        missing = error.name or name
        raise ImportError(f"{name}: needs {missing}, which is not installed: {remedy}", name=missing) from error


def kernel_file(module: str, variable: str, file: str) -> Any:
    """The installed ``module``, or ``file`` in the folder that the environment variable ``variable`` names.

    Raises ImportError where neither is there.
    """
    folder = os.environ.get(variable)
    if folder is None:
        return library(module, f"install {module.split('.')[0]}, or name the folder of {file} in {variable}")
    path = Path(folder) / file
    if not path.is_file():
        raise ImportError(f"{variable} = {folder!r}: has no {file}")
    spec = importlib.util.spec_from_file_location(f"qsa_port_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def cuda(torch: Any) -> str:
    """``cuda``. Raises ImportError where PyTorch sees no GPU."""
    if not torch.cuda.is_available():
        raise ImportError("needs a CUDA device, which PyTorch does not see here")
    return "cuda"
