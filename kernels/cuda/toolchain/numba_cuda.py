"""The compiler numba-cuda: all that this project knows of it. ``choice.py`` says what such a module holds.

Importing this module needs numba-cuda, but neither a GPU nor CuPy.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from types import SimpleNamespace
from typing import Any

from llvmlite import ir
from numba import cuda, types
from numba.cuda import compile_ptx as _compile_ptx
from numba.cuda import dispatcher as _dispatcher
from numba.cuda import libdevice
from numba.cuda.core import config, sigutils
from numba.cuda.extending import intrinsic
from numba.cuda.np import numpy_support

from .cubins import MachineCode

__all__ = ["cuda", "intrinsic", "libdevice", "types"]

# Small grids are what a decode step needs; the warning would come with every launch. Whenever a NUMBA_ variable has
# changed, the next compilation reads all settings from the environment again, so it must say the same.
config.CUDA_LOW_OCCUPANCY_WARNINGS = 0
os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")

device_function = cuda.jit(device=True, forceinline=True)
"""Decorator of a function called from kernels; always inlined."""


def array_type(dtype: Any, ndim: int, layout: str) -> Any:
    """numba's type of an array of NumPy's ``dtype``."""
    return types.Array(numpy_support.from_dtype(dtype), ndim, layout)


def kernel(**options: Any) -> Callable[[Callable[..., None]], Any]:
    """Decorator of a kernel with these options. Link-time optimisation stays off: what the tests read in the PTX is
    then what runs."""
    return cuda.jit(lto=False, **options)


@contextmanager
def _compiling_for(compute_capability: tuple[int, int]) -> Iterator[None]:
    """Let numba-cuda compile device functions for ``compute_capability``.

    It asks the current device for its capability whenever it compiles a device function, and takes no argument in its
    place; without a GPU that question fails. Meanwhile the answer is a device of this capability.
    """
    asked = _dispatcher.get_current_device
    device = SimpleNamespace(compute_capability=compute_capability)
    _dispatcher.get_current_device = lambda: device
    try:
        yield
    finally:
        _dispatcher.get_current_device = asked


def compile_ptx(kernel: Any, signature: Any, compute_capability: tuple[int, int]) -> str:
    """PTX text of ``kernel`` for a signature, as ``compiler.compile_ptx``."""
    arguments, _ = sigutils.normalize_signature(signature)
    bounds = kernel.targetoptions.get("launch_bounds")
    with _compiling_for(compute_capability):
        return _compile_ptx(kernel.py_func, arguments, cc=compute_capability, launch_bounds=bounds)[0]


def machine_code(kernel: Any, types: tuple[Any, ...], capability: tuple[int, int]) -> MachineCode:
    """``kernel`` compiled for arguments of ``types``. numba-cuda asks for the device, the current one, and its
    capability itself."""
    library = kernel.compile(types)._codelibrary
    return MachineCode(bytes(library.get_cubin().code), library._entry_name)


ADDRESS = 4
"""Index of the address among an array's words."""


def array_words(address: int, itemsize: int, shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """A kernel's parameters of an array: two pointers that a device has no use for, size, item size, address, shape,
    strides in bytes."""
    return [0, 0, prod(shape), itemsize, address, *shape, *strides]


_LLVM = {"i": ir.IntType(32), "u": ir.IntType(32), "l": ir.IntType(64), "f": ir.FloatType()}
"""Letter of a register (``ptx.py``) -> LLVM type."""


def _result(context, builder, return_type, call, results):
    if not results:
        return context.get_dummy_value()
    if len(results) == 1:
        return call
    return context.make_tuple(builder, return_type, [builder.extract_value(call, i) for i in range(len(results))])


def assembly(
    text: str,
    constraints: str,
    results: str,
    arguments: str,
    volatile: bool,
    converged: bool,
    minimum: tuple[int, int] = (0, 0),
) -> Callable[..., Any]:
    """Code of an intrinsic that is the inline assembly ``text``; ``results`` and ``arguments`` have a letter for each
    register. ``volatile``: neither moved nor merged; ``converged``: all lanes of a warp carry it out together;
    ``minimum``: the least compute capability that has it, of one without results. Older targets get nothing."""
    given = [_LLVM[letter] for letter in results]
    llvm = ir.VoidType() if not given else given[0] if len(given) == 1 else ir.LiteralStructType(given)

    def codegen(context, builder, signature, args):
        if minimum > (0, 0) and _dispatcher.get_current_device().compute_capability < minimum:
            return context.get_dummy_value()
        function = ir.FunctionType(llvm, [_LLVM[letter] for letter in arguments])
        asm = ir.InlineAsm(function, text, constraints, side_effect=volatile)
        call = builder.call(asm, args, attrs=("convergent",) if converged else ())
        return _result(context, builder, signature.return_type, call, results)

    return codegen


def shared_address(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Code of ``ptx.shared_window``."""
    data = context.make_array(signature.args[0])(context, builder, value=args[0]).data
    return builder.ptrtoint(builder.addrspacecast(data, data.type.pointee.as_pointer(3), "shared"), _LLVM["i"])


def kept_shared_address(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Code of ``ptx.shared_base``."""
    # Kept from the compiler, which would make a constant of every address that is added up from it.
    text = ir.InlineAsm(ir.FunctionType(_LLVM["i"], [_LLVM["i"]]), "mov.b32 $0,$1;", "=r,r", side_effect=False)
    return builder.call(text, [shared_address(context, builder, signature, args)])


def global_address(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Code of ``ptx.global_base``."""
    array = context.make_array(signature.args[0])(context, builder, value=args[0])
    return builder.ptrtoint(array.data, _LLVM["l"])
