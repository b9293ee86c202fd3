"""The table of CUDA kernels: what each is compiled for, and what its machine code must and must not hold.

A new kernel gets a row here; a test compares the table with the sources.
"""

from dataclasses import dataclass, field

TENSOR_CORE = ("mma.sync.aligned.m16n8k32",)

SPILLED = {
    # The values of the exact attention take 96 registers of sums and some 70 more of the 168 that a lane of 384 has;
    # whether all of them fit hangs on ptxas's order of instructions.
    "attend_exact_k8v4": {(8, 0): (8, 20), (9, 0): (8, 8)},
    # Never run there: clusters are sm_90's, and these have tensor cores.
    "attend_exact_int8_cluster": {(12, 0): (8, 8)},
    "attend_exact_int8_dp4a": {(10, 0): (512, 0), (12, 0): (512, 0)},
    # Two blocks a multiprocessor leave 128 registers; the older targets keep addresses in more of them.
    "attend_pieces_int8_int8": {(7, 5): (24, 68), (8, 0): (16, 40)},
    "attend_pieces_q4_0_q4_0": {(7, 5): (16, 40), (8, 0): (16, 24)},
    "attend_pieces_fp16_fp16": {(7, 5): (8, 8)},
}
"""Hot kernels that do not fit the registers of every target -> :attr:`Registered.spilled`, with the reason. The limits
are what ptxas 12.9 reports: a kernel that comes to spill more, or on another target, fails its test."""


@dataclass(frozen=True)
class Registered:
    """A kernel built for one geometry.

    ``signature`` is numba's; a Python integer is int64 at a launch. ``exact``: no fused, approximate or flushing float
    instruction, and no float64. ``hot``: no stack and no spills, but on the targets that ``spilled`` names: target ->
    bytes a lane of stack and of spills (stores and loads) at most. ``expect``: texts its PTX holds. ``minimum``: the
    least compute capability, (7, 5) where there is a form without tensor cores.
    """

    name: str
    module: str
    kernel: object
    signature: str
    exact: bool = True
    hot: bool = True
    spilled: dict = field(default_factory=dict)
    expect: tuple[str, ...] = ()
    minimum: tuple[int, int] = (7, 5)


_F1, _F2, _F3 = "float32[::1]", "float32[:, ::1]", "float32[:, :, ::1]"
_I1, _I2 = "int32[::1]", "int32[:, ::1]"


def _signature(*types):
    return f"void({', '.join(types)})"


def _numbers(count):
    """Signature of a kernel whose arguments are addresses, strides and sizes alone."""
    return _signature(*["int64"] * count)


def _append_kv():
    from .append_kv import append_kernel

    signature = _signature(_F3, _F3, _I2, _I1, "int64", "int64[:, ::1]", "int64")
    for coding in ("int8", "q4_0", "fp16"):
        yield f"append_kv_{coding}", append_kernel.build(coding, 2, 256), signature, {}


def _append_index():
    from .append_index import append_kernels

    append, write_tail = append_kernels.build(128, 64, 4, 1e-6)
    yield "append_index", append, _signature(_F2, _I2, _F2, _F1, _F2, _F1, _F2, _F1, "int64", "int64"), {}
    yield "append_index_tail", write_tail, _signature(_F2, _I2, _F2, "int64"), {}


def _block_scores():
    from .block_scores import KEYS, LEAST
    from .block_scores_kernels import butterfly, one_row, transposed

    arrays = (_F3, _F2, _F1, _I2, _F2)
    yield "block_scores_one_row", one_row.build(KEYS, LEAST), _signature(*arrays, *["int64"] * 3), {}
    yield "block_scores_butterfly", butterfly, _signature(*arrays, *["int64"] * 4), {}
    yield "block_scores_transposed", transposed, _signature(*arrays, *["int64"] * 3), {}


def _select_kernels():
    from .select import CHUNK_TURNS, REGISTER_TURNS, SLICE_TURNS
    from .select_kernels import one_block, spread

    arrays = (_F2, _I2, _I2)
    forms = [(turns, True, True) for turns in REGISTER_TURNS] + [(CHUNK_TURNS, False, scan) for scan in (False, True)]
    for turns, held, scan in forms:
        name = f"select_{'registers' if held else 'scan' if scan else 'wide'}_{turns}"
        yield name, one_block.build(turns, held, scan, 4), _signature(*arrays, "int64", "int64"), {}
    yield "select_spread", spread.build(SLICE_TURNS, 4), _signature(*arrays, _I2, *["int64"] * 3), {}


def _attend_pieces():
    from .attend_pieces import pieces_kernel

    signature = _signature(_F3, _I2, _I2, _I1, _F1, "UniTuple(int64, 28)", *["int64"] * 6)
    fields = {"exact": False}
    for codings in (("int8", "int8"), ("q4_0", "q4_0"), ("int8", "q4_0"), ("fp16", "fp16")):
        yield f"attend_pieces_{'_'.join(codings)}", pieces_kernel.build(12, 256, *codings), signature, fields


def _attend_merge():
    from .attend_merge import merge_kernel

    signature = _signature(_F1, _I2, _I1, _F3, *["int64"] * 7)
    for rotated in (False, True):
        kernel = merge_kernel.build(12, 256, rotated)
        yield f"attend_merge{'_rotated' * rotated}", kernel, signature, {"exact": False}


def _attend_kernel():
    from .attend_kernel import build

    signature = _signature(_F3, _I2, _I2, _I1, "UniTuple(int64, 28)", *["int64"] * 4, "int64[::1]", _F3)
    expect = {"expect": TENSOR_CORE, "minimum": (8, 0)}
    for name, groups in (("int8", (4, 4)), ("k8v4", (4, 8)), ("q4_0", (8, 8))):
        yield f"attend_exact_{name}", build.build(*groups, 2, 12, 3, 6), signature, expect
    # Blocks of few cells, each lane looking up one; and those as a cluster, on sm_90 alone.
    yield "attend_exact_int8_few", build.build(4, 4, 2, 12, 3, 1), signature, expect
    cluster = ("barrier.cluster.arrive.relaxed", "barrier.cluster.wait", "mbarrier.try_wait", "st.async")
    fields = {"expect": TENSOR_CORE + cluster, "minimum": (9, 0)}
    yield "attend_exact_int8_cluster", build.build(4, 4, 2, 12, 3, 1, True, True), signature, fields
    # The form without tensor cores; for the other formats it differs from theirs in nothing more.
    fields = {"expect": ("dp4a.s32.s32", "dp4a.u32.s32")}
    yield "attend_exact_int8_dp4a", build.build(4, 4, 2, 12, 1, 6, False), signature, fields


def _sample_kernel():
    from .sample_kernel import TURNS, sampler

    inputs = (_F2, _I2, _I2, _I1, _I1, "uint64[::1]", "int64[::1]")
    signature = _signature(*inputs, _I2, _I1, _I2, "uint64[:, ::1]", _I1, "UniTuple(int64, 7)")
    yield "sample", sampler.build(TURNS), signature, {}


def _recurrent():
    from .recurrent import conv_kernel, decay_beta_kernel, delta_kernel

    states, bounds = "UniTuple(int64, 8)", "UniTuple(int64, 9)"
    for name, row in (("rows", _F2), ("columns", "float32[:, :]")):
        signature = _signature(row, _F2, states, bounds, "int64", "int64", _F2)
        yield f"causal_conv_{name}", conv_kernel.build(4), signature, {}
        yield f"decay_beta_{name}", decay_beta_kernel, _signature(row, row, _F1, _F1, _F2, _F2), {}
    for name, value in (("rows", _F3), ("columns", "float32[:, :, :]")):
        signature = _signature(_F3, _F3, value, _F2, _F2, states, bounds, _F3)
        yield f"delta_rule_{name}", delta_kernel.build(128, 128, 3), signature, {}


def _last_cells():
    from .last_cells import last_cells_kernel

    yield "last_cells", last_cells_kernel, _signature(_I2, _I2, "int64"), {}


def _elements():
    from .elements import APPLIED, elements_kernel

    for name in APPLIED:
        yield f"elements_{name}", elements_kernel.build(name), _numbers(15), {}


def _norm():
    from .norm import norm_kernel, rotate_kernel

    for kind, wide in (("rms", True), ("l2", False), ("sigmoid", True), ("silu", False)):
        yield f"norm_{kind}{'_wide' * wide}", norm_kernel.build(kind, wide), _numbers(12), {}
    yield "rotate", rotate_kernel.build(), _numbers(8), {}


def _gates():
    from .gates import mix_kernel, ngram_kernel

    yield "mix_streams", mix_kernel.build(), _numbers(10), {}
    for wide in (False, True):
        yield f"ngram_gate{'_wide' * wide}", ngram_kernel.build(wide), _numbers(12), {}


def _fixed_rows():
    from .fixed_rows import fixed_kernel

    for gated in (False, True):
        yield f"fixed_rows{'_gated' * gated}", fixed_kernel.build(gated), _numbers(6), {}


def _matrix():
    from .matrix import FEW, MANY, SOME, matrix_kernel

    forms = {"few": FEW, "some": SOME, "many": MANY}
    for choice, names in (("rows", ("few", "some", "many")), ("each", ("few",)), ("grouped", ("many",))):
        for name in names:
            kernel = matrix_kernel.build(*forms[name], choice, True)
            yield f"matrix_{choice}_{name}", kernel, _numbers(13), {"expect": TENSOR_CORE, "minimum": (8, 0)}
    # Not hot: without tensor cores the registers of a product are collected from all over the warp.
    fields = {"hot": False, "expect": ("dp4a.s32.s32",)}
    yield "matrix_rows_few_dp4a", matrix_kernel.build(*FEW, "rows", False), _numbers(13), fields


def _linear():
    from .linear import embed_kernel

    yield "embed", embed_kernel.build(), _numbers(7), {}


def _experts():
    from .experts import combine_kernel, route_kernel

    yield "route", route_kernel.build(), _numbers(7), {}
    yield "combine_experts", combine_kernel.build(), _numbers(9), {}


def _sort_pairs():
    from .sort_pairs import sort_kernel

    yield "sort_pairs", sort_kernel.build(), _numbers(6), {}


def _program():
    from .program import move_kernel

    yield "program_move", move_kernel, _signature("int64", "int64", "int64"), {}


_MODULES = {
    "attend_kernel": _attend_kernel,
    "append_kv": _append_kv,
    "append_index": _append_index,
    "block_scores_kernels": _block_scores,
    "select_kernels": _select_kernels,
    "attend_pieces": _attend_pieces,
    "attend_merge": _attend_merge,
    "recurrent": _recurrent,
    "last_cells": _last_cells,
    "program": _program,
    "sample_kernel": _sample_kernel,
    "elements": _elements,
    "norm": _norm,
    "gates": _gates,
    "fixed_rows": _fixed_rows,
    "matrix": _matrix,
    "linear": _linear,
    "experts": _experts,
    "sort_pairs": _sort_pairs,
}
"""Module of this package that defines kernels -> its rows (name, kernel, signature, fields of :class:`Registered`)."""


def modules():
    """Names of the modules whose kernels the table holds."""
    return tuple(_MODULES)


def registered():
    """Every row of the table. Needs numba-cuda; raises ImportError without it."""
    return [
        Registered(name, module, kernel, signature, spilled=SPILLED.get(name, {}), **fields)
        for module, rows in _MODULES.items()
        for name, kernel, signature, fields in rows()
    ]
