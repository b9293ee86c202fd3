"""Which compiler compiles the CUDA kernels: the environment variable ``QSA_COMPILER`` says it.

Each compiler has a module here with the same names: ``numba_cuda.py`` and ``numba_cuda_mlir.py``. ``compiler.py``,
``driver.py`` and ``ptx.py`` take what they need from the chosen one; kernel files know neither.
"""

import os
from collections.abc import Mapping
from functools import cache
from types import ModuleType

VARIABLE = "QSA_COMPILER"

COMPILERS = ("numba-cuda", "numba-cuda-mlir")
"""The allowed values, each the name of a package; the first one is the default."""


def compiler_name(environment: Mapping[str, str] = os.environ) -> str:
    """The compiler that ``environment`` names; an empty variable is unset. Raises ValueError naming the variable on
    another value."""
    name = environment.get(VARIABLE, "") or COMPILERS[0]
    if name not in COMPILERS:
        raise ValueError(f"{VARIABLE} = {name!r}: allowed are {' and '.join(COMPILERS)}")
    return name


def load(name: str) -> ModuleType:
    """The module of the compiler ``name``. Raises ModuleNotFoundError where the default is not installed, ImportError
    naming the variable where another one is not."""
    if name == COMPILERS[0]:
        from . import numba_cuda

        return numba_cuda
    try:
        from . import numba_cuda_mlir
    except ModuleNotFoundError as error:
        raise ImportError(f"{VARIABLE} = {name!r}: not installed (pip install {name}): {error}") from error
    return numba_cuda_mlir


@cache
def chosen() -> ModuleType:
    """The module of the compiler that the environment names, read at the first call. Raises as :func:`compiler_name`
    and :func:`load`."""
    return load(compiler_name())
