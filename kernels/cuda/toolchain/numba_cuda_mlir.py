"""The compiler numba-cuda-mlir, numba-cuda's successor: all that this project knows of it, and what works around it.
``choice.py`` says what such a module holds; what it compiles and what not is in docs/compilers.md.

Importing this module needs numba-cuda-mlir (0.6.0), but neither a GPU nor CuPy.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

from numba_cuda_mlir import cuda, tools, types
from numba_cuda_mlir._mlir import ir
from numba_cuda_mlir._mlir.dialects import arith, llvm, memref, nvvm
from numba_cuda_mlir._mlir.extras import types as mlir_types
from numba_cuda_mlir.cuda import compile_ptx as _compile_ptx
from numba_cuda_mlir.cuda import libdevice as _libdevice
from numba_cuda_mlir.extending import intrinsic, lower_builtin, refresh_registries
from numba_cuda_mlir.mlir_lowering import MLIRLower
from numba_cuda_mlir.numba_cuda.core import sigutils
from numba_cuda_mlir.numba_cuda.np import numpy_support

from .cubins import MachineCode

__all__ = ["cuda", "intrinsic", "libdevice", "types"]

device_function = cuda.jit(device=True, inline="always")
"""Decorator of a function called from kernels; always inlined."""

_OPTIONS = ("max_registers", "launch_bounds")
"""Options of a kernel that the compiler is asked for; the driver is asked for the shared-memory carveout."""


def array_type(dtype: Any, ndim: int, layout: str) -> Any:
    """numba's type of an array of NumPy's ``dtype``."""
    return types.Array(numpy_support.from_dtype(dtype), ndim, layout)


def kernel(**options: Any) -> Callable[[Callable[..., None]], Any]:
    """Decorator of a kernel with these options. Link-time optimisation stays off: what the tests read in the PTX is
    then what runs."""
    return cuda.jit(lto=False, **options)


@contextmanager
def _compiling_for(compute_capability: tuple[int, int]) -> Iterator[None]:
    """Let numba-cuda-mlir compile for ``compute_capability``.

    It asks the current device for its capability even where it is told one, links for the device's when that is
    higher, and keeps the answer: meanwhile the kept answer is this one.
    """
    kept = tools._cached_cc
    tools._cached_cc = compute_capability
    try:
        yield
    finally:
        tools._cached_cc = kept


def compile_ptx(kernel: Any, signature: Any, compute_capability: tuple[int, int]) -> str:
    """PTX text of ``kernel`` for a signature, as ``compiler.compile_ptx``."""
    arguments, _ = sigutils.normalize_signature(signature)
    bounds = kernel.targetoptions.get("launch_bounds")
    with _compiling_for(compute_capability):
        return _compile_ptx(kernel.py_func, arguments, cc=compute_capability, launch_bounds=bounds)[0]


def machine_code(kernel: Any, types: tuple[Any, ...], capability: tuple[int, int]) -> MachineCode:
    """``kernel`` compiled for arguments of ``types``. Needs no GPU.

    Always compiled anew: the compiler's own list of what it has compiled knows no compute capability.
    """
    options = {name: kernel.targetoptions[name] for name in _OPTIONS if kernel.targetoptions.get(name) is not None}
    with _compiling_for(capability):
        made = cuda.jit(lto=False, cc=capability, **options)(kernel.py_func).compile(types)
    return MachineCode(made.metadata["cubin"], made.metadata["func_name"])


ADDRESS = 1
"""Index of the address among an array's words."""


def array_words(address: int, itemsize: int, shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """A kernel's parameters of an array, MLIR's memref: a pointer that a kernel has no use for, address, offset, shape,
    strides in elements. Raises ValueError on strides (bytes) that are no elements."""
    if any(stride % itemsize for stride in strides):
        raise ValueError(f"strides = {tuple(strides)} bytes: must be multiples of the item size, {itemsize}")
    return [0, address, 0, *shape, *(stride // itemsize for stride in strides)]


_MLIR = {"i": mlir_types.i32, "u": mlir_types.i32, "l": mlir_types.i64, "f": mlir_types.f32}
"""Letter of a register (``ptx.py``) -> MLIR type, to be called where there is a context."""


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
    register. ``volatile``: neither moved nor merged. ``converged`` (all lanes of a warp carry it out together) cannot
    be said: MLIR's inline assembly has no such attribute. ``minimum``: the least compute capability that has it, of one
    without results. Older targets get nothing."""

    def codegen(builder, target, args, kwargs):
        if minimum > (0, 0) and tools._cached_cc < minimum:
            builder.store_var(target, None)
            return
        given = [_MLIR[letter]() for letter in results]
        taken = [
            builder.mlir_convert(builder.load_var(value), _MLIR[letter]())
            for value, letter in zip(args, arguments, strict=True)
        ]
        kind = None if not given else given[0] if len(given) == 1 else llvm.StructType.get_literal(given)
        call = llvm.inline_asm(kind, taken, text, constraints, has_side_effects=volatile)
        if not given:
            value = None
        elif len(given) == 1:
            value = call
        else:
            value = tuple(
                llvm.extractvalue(type_, call, position=ir.DenseI64ArrayAttr.get([i])) for i, type_ in enumerate(given)
            )
        builder.store_var(target, value)

    return codegen


def _address(builder, array):
    """64-bit address of an array's first byte, within the array's own address space."""
    return arith.index_cast(mlir_types.i64(), memref.extract_aligned_pointer_as_index(array))


def _shared_address(builder, array):
    value = _address(builder, array)
    if array.type.memory_space is None:
        value = llvm.inline_asm(mlir_types.i64(), [value], "cvta.to.shared.u64 $0,$1;", "=l,l", has_side_effects=False)
    return arith.trunci(mlir_types.i32(), value)


def shared_address(builder: Any, target: Any, args: Any, kwargs: Any) -> None:
    """Code of ``ptx.shared_window``."""
    builder.store_var(target, _shared_address(builder, builder.load_var(args[0])))


def kept_shared_address(builder: Any, target: Any, args: Any, kwargs: Any) -> None:
    """Code of ``ptx.shared_base``."""
    value = _shared_address(builder, builder.load_var(args[0]))
    # Kept from the compiler, which would make a constant of every address that is added up from it.
    kept = llvm.inline_asm(mlir_types.i32(), [value], "mov.b32 $0,$1;", "=r,r", has_side_effects=False)
    builder.store_var(target, kept)


def global_address(builder: Any, target: Any, args: Any, kwargs: Any) -> None:
    """Code of ``ptx.global_base``."""
    builder.store_var(target, _address(builder, builder.load_var(args[0])))


def _of_two(name, instruction):
    """The intrinsic ``name``: ``instruction`` of two float32."""
    typed = types.float32(types.float32, types.float32)
    codegen = assembly(f"{instruction} $0,$1,$2;", "=f,f,f", "f", "ff", volatile=False, converged=False)

    def typing(typingctx, a, b):
        return typed, codegen

    typing.__name__ = typing.__qualname__ = name
    return intrinsic(typing)


libdevice = ModuleType("libdevice", "libdevice as the compiler has it, but for what it cannot compile.")
vars(libdevice).update({name: value for name, value in vars(_libdevice).items() if not name.startswith("__")})
# In 0.6.0 a call of these two in a kernel defines them twice. They are these instructions: of a NaN and a number the
# number, of the two zeros +0 as the larger one.
vars(libdevice).update(fmaxf=_of_two("fmaxf", "max.f32"), fminf=_of_two("fminf", "min.f32"))


def _shuffled_64(kind, clamp):
    """Code of a shuffle of 64-bit integers as two of 32 bits: 0.6.0 gives the low half alone, without a word."""

    def codegen(builder, target, args, kwargs):
        i32, i64 = mlir_types.i32(), mlir_types.i64()
        mask, value, lane = (builder.load_var(argument) for argument in args)
        mask, lane = builder.mlir_convert(mask, i32), builder.mlir_convert(lane, i32)
        clamp_ = arith.constant(result=i32, value=clamp)
        shift = arith.constant(result=i64, value=32)
        low, high = (
            arith.extui(i64, nvvm.shfl_sync(mask, arith.trunci(i32, half), lane, clamp_, kind))
            for half in (value, arith.shrui(value, shift))
        )
        builder.store_var(target, arith.ori(arith.shli(high, shift), low))

    return codegen


def _of_operands(operation):
    """Code of an MLIR ``operation`` of two values of one type."""

    def codegen(builder, target, args, kwargs):
        builder.store_var(target, operation(*(builder.load_var(argument) for argument in args)))

    return codegen


def _nested_tuples(allocate):
    """``MLIRLower``'s method that makes stack slots of variables with several assignments, for tuples of tuples too.

    0.6.0 gives every tuple of equal elements one array of them, which a tuple is no element of. A slot for each number,
    as other tuples have, is what its loads and stores take as well.
    """

    def allocated(self, var_assign_count):
        plain = {}
        for name, count in var_assign_count.items():
            kind = self.get_numba_type(name) if count > 1 else None
            if isinstance(kind, types.UniTuple) and isinstance(kind.dtype, types.BaseTuple):
                self.varmap[name] = self._allocate_stack_slot_for_type(kind)
            else:
                plain[name] = count
        allocate(self, plain)

    return allocated


def _mend():
    """Register what 0.6.0 compiles wrongly or not at all; the more specific types are the compiler's choice."""
    method = "allocate_stack_space_for_vars_with_multiple_assigns"
    setattr(MLIRLower, method, _nested_tuples(getattr(MLIRLower, method)))
    shuffles = (
        (cuda.shfl_sync, nvvm.ShflKind.idx, 31),
        (cuda.shfl_up_sync, nvvm.ShflKind.up, 0),
        (cuda.shfl_down_sync, nvvm.ShflKind.down, 31),
        (cuda.shfl_xor_sync, nvvm.ShflKind.bfly, 31),
    )
    for wide in (types.int64, types.uint64):
        for function, kind, clamp in shuffles:
            lower_builtin(function, types.Integer, wide, types.Integer)(_shuffled_64(kind, clamp))
    # It compares unsigned numbers as signed ones here, and a NaN as not unequal to anything, itself included.
    for unsigned in (types.uint32, types.uint64):
        lower_builtin(min, unsigned, unsigned)(_of_operands(arith.minui))
        lower_builtin(max, unsigned, unsigned)(_of_operands(arith.maxui))
    lower_builtin(operator.ne, types.float32, types.float32)(_of_operands(partial(arith.cmpf, arith.CmpFPredicate.UNE)))
    refresh_registries(typing=False)


_mend()
