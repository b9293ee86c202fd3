"""PTX instructions that the compiler lacks, as functions that kernels call: intrinsics around inline assembly.

Each instruction is one assignment below; its name is what kernels import, and the simulator's ``ptx.py`` has the same
names with the same numbers of arguments. Shared addresses are int32 (see :func:`shared_base`), global addresses are
int64 (:func:`global_base`); both count bytes. An address computed in 32 bits stays in 32 bits, where an indexed array
costs 64-bit arithmetic and a test for negative indices. An integer register is int32 whatever it holds, unless its
letter below is ``u``. Source: the PTX instruction set reference.
"""

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

from .choice import chosen
from .compiler import float32, int32, int64, intrinsic, types, uint32
from .constants import OVERLAPPING

_TYPES = {"i": (int32, "r"), "u": (uint32, "r"), "l": (int64, "l"), "f": (float32, "f")}
"""Letter of a register -> (numba type, register class)."""


def _instruction(
    name: str,
    text: str,
    results: str,
    arguments: str,
    memory: bool = False,
    converged: bool = False,
    minimum: tuple[int, int] = (0, 0),
) -> Callable[..., Any]:
    """The intrinsic ``name``: PTX ``text``, whose operands $0, $1, ... are the results and then the arguments.

    results, arguments  a letter of ``_TYPES`` for each register
    memory              it reads or writes memory that others may write, so the compiler neither moves nor merges it
    converged           all lanes of a warp carry it out together
    minimum             the least compute capability that has it; nothing is left of it on older targets. A device
                        function is compiled once for all targets, so such an instruction is called by kernels alone
    """
    taken = [_TYPES[letter] for letter in arguments]
    given = [_TYPES[letter] for letter in results]
    return_type: Any = types.void
    if given:
        return_type = given[0][0] if len(given) == 1 else types.UniTuple(given[0][0], len(given))
    typed = return_type(*[t[0] for t in taken])
    constraints = [f"={t[1]}" for t in given] + [t[1] for t in taken] + ["~{memory}"] * memory
    codegen = chosen().assembly(
        text, ",".join(constraints), results, arguments, memory or not results, converged, minimum
    )

    def typing(typingctx, *_):
        return typed, codegen

    # numba binds a call's arguments to the parameters of the typing function, so it must declare one for each.
    names = ["typingctx", *(f"a{i}" for i in range(len(taken)))]
    typed_by: Any = typing
    typed_by.__signature__ = Signature([Parameter(n, Parameter.POSITIONAL_OR_KEYWORD) for n in names])
    typed_by.__name__ = typed_by.__qualname__ = name
    return intrinsic(typed_by)


def _operand(registers: int, first: int) -> str:
    """The operand of that many registers, the first of them $``first``."""
    names = [f"${first + i}" for i in range(registers)]
    return names[0] if registers == 1 else "{" + ",".join(names) + "}"


def _load(name: str, instruction: str, values: str, address: str, memory: bool = True) -> Callable[..., Any]:
    """``name(address)`` returns the loaded value, or a tuple of several; a letter for each."""
    text = f"{instruction} {_operand(len(values), 0)},[${len(values)}];"
    return _instruction(name, text, values, address, memory)


def _store(name: str, instruction: str, values: str, address: str) -> Callable[..., Any]:
    """``name(address, value, ...)`` stores a value for each letter."""
    text = f"{instruction} [$0],{_operand(len(values), 1)};"
    return _instruction(name, text, "", address + values, memory=True)


# Loads from shared memory: name(address).
ld_shared_u8 = _load("ld_shared_u8", "ld.shared.u8", "i", "i")
ld_shared_s8 = _load("ld_shared_s8", "ld.shared.s8", "i", "i")
ld_shared_i32 = _load("ld_shared_i32", "ld.shared.b32", "i", "i")
ld_shared_i64 = _load("ld_shared_i64", "ld.shared.b64", "l", "i")
ld_shared_f32 = _load("ld_shared_f32", "ld.shared.f32", "f", "i")
ld_shared_v2_i32 = _load("ld_shared_v2_i32", "ld.shared.v2.b32", "ii", "i")
ld_shared_v4_i32 = _load("ld_shared_v4_i32", "ld.shared.v4.b32", "iiii", "i")
ld_shared_v2_i64 = _load("ld_shared_v2_i64", "ld.shared.v2.b64", "ll", "i")
ld_shared_v2_f32 = _load("ld_shared_v2_f32", "ld.shared.v2.f32", "ff", "i")
ld_shared_v4_f32 = _load("ld_shared_v4_f32", "ld.shared.v4.f32", "ffff", "i")

# Stores to shared memory: name(address, value, ...). A narrow store takes the low bits of its register.
st_shared_u8 = _store("st_shared_u8", "st.shared.u8", "i", "i")
st_shared_u16 = _store("st_shared_u16", "st.shared.u16", "i", "i")
st_shared_i32 = _store("st_shared_i32", "st.shared.b32", "i", "i")
st_shared_i64 = _store("st_shared_i64", "st.shared.b64", "l", "i")
st_shared_f32 = _store("st_shared_f32", "st.shared.f32", "f", "i")
st_shared_v2_i32 = _store("st_shared_v2_i32", "st.shared.v2.b32", "ii", "i")
st_shared_v4_i32 = _store("st_shared_v4_i32", "st.shared.v4.b32", "iiii", "i")
st_shared_v2_i64 = _store("st_shared_v2_i64", "st.shared.v2.b64", "ll", "i")
st_shared_v2_f32 = _store("st_shared_v2_f32", "st.shared.v2.f32", "ff", "i")
st_shared_v4_f32 = _store("st_shared_v4_f32", "st.shared.v4.f32", "ffff", "i")

# Loads from global memory: name(address).
ld_global_u8 = _load("ld_global_u8", "ld.global.u8", "i", "l")
ld_global_u16 = _load("ld_global_u16", "ld.global.u16", "i", "l")
ld_global_i32 = _load("ld_global_i32", "ld.global.b32", "i", "l")
ld_global_i64 = _load("ld_global_i64", "ld.global.b64", "l", "l")
ld_global_f32 = _load("ld_global_f32", "ld.global.f32", "f", "l")
ld_global_v2_i32 = _load("ld_global_v2_i32", "ld.global.v2.b32", "ii", "l")
ld_global_v4_i32 = _load("ld_global_v4_i32", "ld.global.v4.b32", "iiii", "l")
ld_global_v2_i64 = _load("ld_global_v2_i64", "ld.global.v2.b64", "ll", "l")
ld_global_v2_f32 = _load("ld_global_v2_f32", "ld.global.v2.f32", "ff", "l")
ld_global_v4_f32 = _load("ld_global_v4_f32", "ld.global.v4.f32", "ffff", "l")

# Loads from global memory that nothing writes while the kernel runs: the compiler may move and merge them.
ld_global_u8_nc = _load("ld_global_u8_nc", "ld.global.nc.u8", "i", "l", memory=False)
ld_global_u16_nc = _load("ld_global_u16_nc", "ld.global.nc.u16", "i", "l", memory=False)
ld_global_i32_nc = _load("ld_global_i32_nc", "ld.global.nc.b32", "i", "l", memory=False)
ld_global_i64_nc = _load("ld_global_i64_nc", "ld.global.nc.b64", "l", "l", memory=False)
ld_global_f32_nc = _load("ld_global_f32_nc", "ld.global.nc.f32", "f", "l", memory=False)
ld_global_v2_i32_nc = _load("ld_global_v2_i32_nc", "ld.global.nc.v2.b32", "ii", "l", memory=False)
ld_global_v4_i32_nc = _load("ld_global_v4_i32_nc", "ld.global.nc.v4.b32", "iiii", "l", memory=False)
ld_global_v2_i64_nc = _load("ld_global_v2_i64_nc", "ld.global.nc.v2.b64", "ll", "l", memory=False)
ld_global_v2_f32_nc = _load("ld_global_v2_f32_nc", "ld.global.nc.v2.f32", "ff", "l", memory=False)
ld_global_v4_f32_nc = _load("ld_global_v4_f32_nc", "ld.global.nc.v4.f32", "ffff", "l", memory=False)

# Loads from global memory that other thread blocks write.
ld_global_volatile_i32 = _load("ld_global_volatile_i32", "ld.volatile.global.b32", "i", "l")
ld_global_relaxed_i64 = _load("ld_global_relaxed_i64", "ld.relaxed.gpu.global.b64", "l", "l")
ld_global_v2_relaxed_i64 = _load("ld_global_v2_relaxed_i64", "ld.relaxed.gpu.global.v2.b64", "ll", "l")
ld_global_acquire_i32 = _load("ld_global_acquire_i32", "ld.acquire.gpu.global.b32", "i", "l")

# Stores to global memory: name(address, value, ...).
st_global_u8 = _store("st_global_u8", "st.global.u8", "i", "l")
st_global_u16 = _store("st_global_u16", "st.global.u16", "i", "l")
st_global_i32 = _store("st_global_i32", "st.global.b32", "i", "l")
st_global_i64 = _store("st_global_i64", "st.global.b64", "l", "l")
st_global_f32 = _store("st_global_f32", "st.global.f32", "f", "l")
st_global_v2_i32 = _store("st_global_v2_i32", "st.global.v2.b32", "ii", "l")
st_global_v4_i32 = _store("st_global_v4_i32", "st.global.v4.b32", "iiii", "l")
st_global_v2_i64 = _store("st_global_v2_i64", "st.global.v2.b64", "ll", "l")
st_global_v2_f32 = _store("st_global_v2_f32", "st.global.v2.f32", "ff", "l")
st_global_v4_f32 = _store("st_global_v4_f32", "st.global.v4.f32", "ffff", "l")
st_global_relaxed_i64 = _store("st_global_relaxed_i64", "st.relaxed.gpu.global.b64", "l", "l")
st_global_v2_relaxed_i64 = _store("st_global_v2_relaxed_i64", "st.relaxed.gpu.global.v2.b64", "ll", "l")
st_global_release_i32 = _store("st_global_release_i32", "st.release.gpu.global.b32", "i", "l")

# Tensor cores. mma_s8(a0..a3, b0, b1, c0..c3) returns d0..d3 of D = A B + C: A is 16x32 int8 (mma_u8: uint8), B is 32x8
# int8, C and D are int32; sm_80 and newer. ldmatrix_*(address): sm_75 and newer.
_MMA_OPERANDS = "{$0,$1,$2,$3},{$4,$5,$6,$7},{$8,$9},{$10,$11,$12,$13}"
_MMA_S8 = f"mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {_MMA_OPERANDS};"
_MMA_U8 = f"mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {_MMA_OPERANDS};"
mma_s8 = _instruction("mma_s8", _MMA_S8, "iiii", "iiiiiiiiii", converged=True)
mma_u8 = _instruction("mma_u8", _MMA_U8, "iiii", "iiiiiiiiii", converged=True)
# mma_f16: A is 16x16 and B 16x8, halves, two to a register; C and D are float32. Products are exact, sums cut off.
mma_f16 = _instruction(
    "mma_f16",
    f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {_MMA_OPERANDS};",
    "ffff",
    "iiiiiiffff",
    converged=True,
)
ldmatrix_x2 = _instruction(
    "ldmatrix_x2", "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {$0,$1},[$2];", "ii", "i", memory=True, converged=True
)
ldmatrix_x4 = _instruction(
    "ldmatrix_x4",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0,$1,$2,$3},[$4];",
    "iiii",
    "i",
    memory=True,
    converged=True,
)
ldmatrix_x4_trans = _instruction(
    "ldmatrix_x4_trans",
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0,$1,$2,$3},[$4];",
    "iiii",
    "i",
    memory=True,
    converged=True,
)

# Arithmetic. dp4a_u8s8(a, b, c): the bytes of a are unsigned, those of b signed. A half is the low 16 bits of an int32.
# ex2_approx is for the float arithmetic alone.
dp4a_s8 = _instruction("dp4a_s8", "dp4a.s32.s32 $0,$1,$2,$3;", "i", "iii")
dp4a_u8s8 = _instruction("dp4a_u8s8", "dp4a.u32.s32 $0,$1,$2,$3;", "i", "iii")
prmt = _instruction("prmt", "prmt.b32 $0,$1,$2,$3;", "i", "iii")
# redux_*: over all 32 lanes of a warp, the result in each; sm_80 and newer.
redux_add = _instruction("redux_add", "redux.sync.add.s32 $0,$1,0xffffffff;", "i", "i", converged=True)
redux_min = _instruction("redux_min", "redux.sync.min.s32 $0,$1,0xffffffff;", "i", "i", converged=True)
redux_max = _instruction("redux_max", "redux.sync.max.s32 $0,$1,0xffffffff;", "i", "i", converged=True)
float_as_int = _instruction("float_as_int", "mov.b32 $0,$1;", "i", "f")
int_as_float = _instruction("int_as_float", "mov.b32 $0,$1;", "f", "i")
rint_u32 = _instruction("rint_u32", "cvt.rni.u32.f32 $0,$1;", "u", "f")
rint_s32 = _instruction("rint_s32", "cvt.rni.s32.f32 $0,$1;", "i", "f")
floor_s32 = _instruction("floor_s32", "cvt.rmi.s32.f32 $0,$1;", "i", "f")
trunc_s32 = _instruction("trunc_s32", "cvt.rzi.s32.f32 $0,$1;", "i", "f")
half_to_float = _instruction("half_to_float", "{ .reg .b16 h; cvt.u16.u32 h,$1; cvt.f32.f16 $0,h; }", "f", "i")
float_to_half = _instruction("float_to_half", "{ .reg .b16 h; cvt.rn.f16.f32 h,$1; cvt.u32.u16 $0,h; }", "i", "f")
ex2_approx = _instruction("ex2_approx", "ex2.approx.ftz.f32 $0,$1;", "f", "f")
# Two halves in a register, the first in the low 16 bits; sm_80 and newer.
floats_to_halves = _instruction("floats_to_halves", "cvt.rn.f16x2.f32 $0,$2,$1;", "i", "ff")
sub_halves = _instruction("sub_halves", "sub.rn.f16x2 $0,$1,$2;", "i", "ii")

# join_four(a, b, c, d): the int64 sum of four int32 digits to the base 256, the lowest first. It is declared to touch
# memory, which keeps it where it stands: a compiler that widens all digits of a lane's sums at once lacks registers.
join_four = _instruction(
    "join_four",
    "{ .reg .s64 t; mul.wide.s32 t,$1,1; mad.wide.s32 t,$2,256,t; mad.wide.s32 t,$3,65536,t; "
    "mad.wide.s32 $0,$4,16777216,t; }",
    "l",
    "iiii",
    memory=True,
)

# Asynchronous copies. cp_async_16(shared, global) copies 16 bytes, which are there after the wait. Of
# cp_async_16_zfill(shared, global, n) the first n bytes come from there and the others are zeros; n = 0 reads nothing.
# cp_async_wait_n waits until at most n of the lane's groups of copies are under way.
cp_async_16 = _instruction("cp_async_16", "cp.async.cg.shared.global [$0],[$1],16;", "", "il", memory=True)
cp_async_16_zfill = _instruction(
    "cp_async_16_zfill", "cp.async.cg.shared.global [$0],[$1],16,$2;", "", "ili", memory=True
)
cp_async_commit = _instruction("cp_async_commit", "cp.async.commit_group;", "", "", memory=True)
cp_async_wait_0 = _instruction("cp_async_wait_0", "cp.async.wait_group 0;", "", "", memory=True)
cp_async_wait_1 = _instruction("cp_async_wait_1", "cp.async.wait_group 1;", "", "", memory=True)
cp_async_wait_2 = _instruction("cp_async_wait_2", "cp.async.wait_group 2;", "", "", memory=True)
cp_async_wait_3 = _instruction("cp_async_wait_3", "cp.async.wait_group 3;", "", "", memory=True)

# Atomic updates. red_* return nothing; atom_* return the old value, and those of global memory order memory on both
# sides. atom_global_inc(address, limit) counts up and starts again from 0 after limit.
red_shared_max_i32 = _instruction("red_shared_max_i32", "red.shared.max.s32 [$0],$1;", "", "ii", memory=True)
red_shared_add_i32 = _instruction("red_shared_add_i32", "red.shared.add.u32 [$0],$1;", "", "ii", memory=True)
red_shared_or_i32 = _instruction("red_shared_or_i32", "red.shared.or.b32 [$0],$1;", "", "ii", memory=True)
red_global_max_i32 = _instruction("red_global_max_i32", "red.global.max.s32 [$0],$1;", "", "li", memory=True)
red_global_add_i64 = _instruction("red_global_add_i64", "red.global.add.u64 [$0],$1;", "", "ll", memory=True)
atom_shared_add_i32 = _instruction("atom_shared_add_i32", "atom.shared.add.u32 $0,[$1],$2;", "i", "ii", memory=True)
atom_global_add_i32 = _instruction(
    "atom_global_add_i32", "atom.acq_rel.gpu.global.add.u32 $0,[$1],$2;", "i", "li", memory=True
)
atom_global_inc = _instruction("atom_global_inc", "atom.acq_rel.gpu.global.inc.u32 $0,[$1],$2;", "i", "li", memory=True)
fence_gpu = _instruction("fence_gpu", "fence.acq_rel.gpu;", "", "", memory=True)

# Launches that overlap: sm_90 and newer, nothing on older targets. start_next allows the next launch of the stream to
# start, once every block has called it or has ended; wait_for_earlier returns when all earlier launches of the stream
# are over and all that they wrote is seen. Where a launch or its next one was not allowed to overlap (driver.py), each
# does nothing. A kernel that overlaps waits on every path, in every lane, before it touches global memory.
start_next = _instruction("start_next", "griddepcontrol.launch_dependents;", "", "", memory=True, minimum=OVERLAPPING)
wait_for_earlier = _instruction("wait_for_earlier", "griddepcontrol.wait;", "", "", memory=True, minimum=OVERLAPPING)

# Named barriers (id 1 to 15, lanes), lanes a multiple of 32. barrier_arrive does not wait.
barrier_sync = _instruction("barrier_sync", "bar.sync $0,$1;", "", "ii", memory=True, converged=True)
barrier_arrive = _instruction("barrier_arrive", "bar.arrive $0,$1;", "", "ii", memory=True, converged=True)

# Blocks of one cluster; sm_90 and newer.
#
# map_shared(address, rank): the address in the cluster's memory of what address names in the block of that rank.
# cluster_arrive_relaxed neither waits nor orders memory, except for the mbarrier_init that its lane has put before a
# fence_mbarrier_init. A cluster_wait must follow every arrival; it returns once every lane of the cluster that has not
# ended has arrived.
# mbarrier_init(address, count): a barrier of count arrivals in 8 bytes of the block's own memory.
# mbarrier_arrive_expect(address, n) arrives, and makes the barrier wait for n bytes more.
# mbarrier_arrive_expect_at(mapped, n): the same at the barrier of any block of the cluster, an address of map_shared.
# mbarrier_try_wait(address, parity) returns 1 once the phase of that parity is over, and the counted bytes may be read
# then; it returns 0 before.
# st_async_*(address, values..., mbarrier) store into a block of the cluster, and count the bytes on that block's
# barrier when they are there; both addresses come from map_shared.
map_shared = _instruction("map_shared", "mapa.shared::cluster.u32 $0,$1,$2;", "i", "ii")
_ST_ASYNC = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes"
cluster_arrive_relaxed = _instruction(
    "cluster_arrive_relaxed", "barrier.cluster.arrive.relaxed.aligned;", "", "", memory=True, converged=True
)
cluster_wait = _instruction(
    "cluster_wait", "barrier.cluster.wait.acquire.aligned;", "", "", memory=True, converged=True
)
mbarrier_init = _instruction("mbarrier_init", "mbarrier.init.shared::cta.b64 [$0],$1;", "", "ii", memory=True)
fence_mbarrier_init = _instruction("fence_mbarrier_init", "fence.mbarrier_init.release.cluster;", "", "", memory=True)
mbarrier_arrive_expect = _instruction(
    "mbarrier_arrive_expect", "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _,[$0],$1;", "", "ii", memory=True
)
mbarrier_arrive_expect_at = _instruction(
    "mbarrier_arrive_expect_at",
    "mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _,[$0],$1;",
    "",
    "ii",
    memory=True,
)
mbarrier_try_wait = _instruction(
    "mbarrier_try_wait",
    "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p,[$1],$2; selp.b32 $0,1,0,p; }",
    "i",
    "ii",
    memory=True,
)
st_async_i64 = _instruction("st_async_i64", f"{_ST_ASYNC}.b64 [$0],$1,[$2];", "", "ili", memory=True)
st_async_v2_i64 = _instruction("st_async_v2_i64", f"{_ST_ASYNC}.v2.b64 [$0],{{$1,$2}},[$3];", "", "illi", memory=True)
st_async_v4_i32 = _instruction(
    "st_async_v4_i32", f"{_ST_ASYNC}.v4.b32 [$0],{{$1,$2,$3,$4}},[$5];", "", "iiiiii", memory=True
)


@intrinsic
def shared_base(typingctx, array):
    """int32 address of a shared array's first byte."""
    return int32(array), chosen().kept_shared_address


@intrinsic
def shared_window(typingctx, array):
    """As :func:`shared_base`, the compiler knowing it to be a constant: some kernels take fewer registers so, others
    more."""
    return int32(array), chosen().shared_address


@intrinsic
def global_base(typingctx, array):
    """int64 address of a global array's first byte."""
    return int64(array), chosen().global_address
