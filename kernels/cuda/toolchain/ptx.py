"""Instructions that numba-CUDA lacks, as intrinsics around inline PTX.

Every row of a table below makes one function of the module. Shared addresses are int32 (see :func:`shared_base`),
global ones int64 (:func:`global_base`), both in bytes: addresses computed in 32 bits stay in 32 bits, where an indexed
array costs 64-bit arithmetic and a test for negative indices. Integer registers are int32 whatever they hold, unless a
row says ``uint32``. Source: the PTX instruction set reference.
"""

from .compiler import float32, int32, int64, intrinsic, ir, types, uint32

_I16, _I32, _I64, _F32 = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_TYPES = {"i": (int32, _I32, "r"), "u": (uint32, _I32, "r"), "l": (int64, _I64, "l"), "f": (float32, _F32, "f")}
"""Letter of a table's row -> (numba type, LLVM type, register class)."""


def _result(context, builder, return_type, call, results):
    if not results:
        return context.get_dummy_value()
    if len(results) == 1:
        return call
    return context.make_tuple(builder, return_type, [builder.extract_value(call, i) for i in range(len(results))])


def _instruction(name, text, results, arguments, memory=False, converged=False):
    """An intrinsic: PTX ``text`` with results $0, ... and then arguments, each a letter of ``_TYPES``.

    ``memory``: it reads or writes memory that others may write, so it is neither moved nor merged. ``converged``: all
    lanes of a warp carry it out together.
    """
    taken = [_TYPES[letter] for letter in arguments]
    given = [_TYPES[letter] for letter in results]
    if len(given) == 1:
        return_type, llvm = given[0][:2]
    elif given:
        return_type = types.UniTuple(given[0][0], len(given))
        llvm = ir.LiteralStructType([t[1] for t in given])
    else:
        return_type, llvm = types.void, ir.VoidType()
    signature = return_type(*[t[0] for t in taken])
    constraints = [f"={t[2]}" for t in given] + [t[2] for t in taken] + ["~{memory}"] * memory
    volatile = memory or not results

    def codegen(context, builder, signature, args):
        function = ir.FunctionType(llvm, [t[1] for t in taken])
        asm = ir.InlineAsm(function, text, ",".join(constraints), side_effect=volatile)
        call = builder.call(asm, args, attrs=("convergent",) if converged else ())
        return _result(context, builder, signature.return_type, call, results)

    # An intrinsic's typing function must have the very parameters that the kernel passes.
    names = ", ".join(f"a{i}" for i in range(len(taken)))
    scope = {"body": (signature, codegen)}
    exec(f"def {name}(typingctx{', ' * bool(taken)}{names}): return body", scope)
    scope[name].__module__ = __name__
    return intrinsic(scope[name])


def _vector(instruction, letters, address, store=False):
    """PTX text of a load or store of one or several registers."""
    first = 1 if store else 0
    registers = [f"${first + i}" for i in range(len(letters))]
    value = registers[0] if len(registers) == 1 else "{" + ",".join(registers) + "}"
    place = "[$0]" if store else f"[${len(letters)}]"
    return f"{instruction} {place},{value};" if store else f"{instruction} {value},{place};"


def _loads(table, address, memory):
    for name, (instruction, letters) in table.items():
        yield name, _instruction(name, _vector(instruction, letters, address), letters, address, memory)


def _stores(table, address):
    for name, (instruction, letters) in table.items():
        text = _vector(instruction, letters, address, store=True)
        yield name, _instruction(name, text, "", address + letters, memory=True)


SHARED_LOADS = {
    "ld_shared_u8": ("ld.shared.u8", "i"),
    "ld_shared_s8": ("ld.shared.s8", "i"),
    "ld_shared_i32": ("ld.shared.b32", "i"),
    "ld_shared_i64": ("ld.shared.b64", "l"),
    "ld_shared_f32": ("ld.shared.f32", "f"),
    "ld_shared_v2_i32": ("ld.shared.v2.b32", "ii"),
    "ld_shared_v4_i32": ("ld.shared.v4.b32", "iiii"),
    "ld_shared_v2_i64": ("ld.shared.v2.b64", "ll"),
    "ld_shared_v2_f32": ("ld.shared.v2.f32", "ff"),
    "ld_shared_v4_f32": ("ld.shared.v4.f32", "ffff"),
}

SHARED_STORES = {
    "st_shared_u8": ("st.shared.u8", "i"),
    "st_shared_u16": ("st.shared.u16", "i"),
    "st_shared_i32": ("st.shared.b32", "i"),
    "st_shared_i64": ("st.shared.b64", "l"),
    "st_shared_f32": ("st.shared.f32", "f"),
    "st_shared_v2_i32": ("st.shared.v2.b32", "ii"),
    "st_shared_v4_i32": ("st.shared.v4.b32", "iiii"),
    "st_shared_v2_i64": ("st.shared.v2.b64", "ll"),
    "st_shared_v2_f32": ("st.shared.v2.f32", "ff"),
    "st_shared_v4_f32": ("st.shared.v4.f32", "ffff"),
}

GLOBAL_LOADS = {
    "ld_global_u8": ("ld.global.u8", "i"),
    "ld_global_u16": ("ld.global.u16", "i"),
    "ld_global_i32": ("ld.global.b32", "i"),
    "ld_global_i64": ("ld.global.b64", "l"),
    "ld_global_f32": ("ld.global.f32", "f"),
    "ld_global_v2_i32": ("ld.global.v2.b32", "ii"),
    "ld_global_v4_i32": ("ld.global.v4.b32", "iiii"),
    "ld_global_v2_i64": ("ld.global.v2.b64", "ll"),
    "ld_global_v2_f32": ("ld.global.v2.f32", "ff"),
    "ld_global_v4_f32": ("ld.global.v4.f32", "ffff"),
}

ORDERED_LOADS = {
    "ld_global_volatile_i32": ("ld.volatile.global.b32", "i"),
    "ld_global_relaxed_i64": ("ld.relaxed.gpu.global.b64", "l"),
    "ld_global_v2_relaxed_i64": ("ld.relaxed.gpu.global.v2.b64", "ll"),
    "ld_global_acquire_i32": ("ld.acquire.gpu.global.b32", "i"),
}

GLOBAL_STORES = {
    "st_global_u8": ("st.global.u8", "i"),
    "st_global_u16": ("st.global.u16", "i"),
    "st_global_i32": ("st.global.b32", "i"),
    "st_global_i64": ("st.global.b64", "l"),
    "st_global_f32": ("st.global.f32", "f"),
    "st_global_v2_i32": ("st.global.v2.b32", "ii"),
    "st_global_v4_i32": ("st.global.v4.b32", "iiii"),
    "st_global_v2_i64": ("st.global.v2.b64", "ll"),
    "st_global_v2_f32": ("st.global.v2.f32", "ff"),
    "st_global_v4_f32": ("st.global.v4.f32", "ffff"),
    "st_global_relaxed_i64": ("st.relaxed.gpu.global.b64", "l"),
    "st_global_v2_relaxed_i64": ("st.relaxed.gpu.global.v2.b64", "ll"),
    "st_global_release_i32": ("st.release.gpu.global.b32", "i"),
}

READ_ONLY_LOADS = {
    f"{name}_nc": (instruction.replace("ld.global", "ld.global.nc"), letters)
    for name, (instruction, letters) in GLOBAL_LOADS.items()
}
"""Forms for memory that nothing writes while the kernel runs; the compiler may move and merge them."""

_MMA = "mma.sync.aligned.m16n8k32.row.col.s32.{}.s8.s32 {{$0,$1,$2,$3}},{{$4,$5,$6,$7}},{{$8,$9}},{{$10,$11,$12,$13}};"
_HALF = "{{ .reg .b16 h; {} }}"

MATRIX = {
    "mma_s8": (_MMA.format("s8"), "iiii", "iiiiiiiiii", False),
    "mma_u8": (_MMA.format("u8"), "iiii", "iiiiiiiiii", False),
    "ldmatrix_x2": ("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {$0,$1},[$2];", "ii", "i", True),
    "ldmatrix_x4": ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0,$1,$2,$3},[$4];", "iiii", "i", True),
    "ldmatrix_x4_trans": ("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0,$1,$2,$3},[$4];", "iiii", "i", True),
}
"""Name -> (text, results, arguments, memory): the tensor cores. ``mma_s8(a0..a3, b0, b1, c0..c3)`` is D = A·B + C of
16x32 by 32x8 with A int8 (``mma_u8``: uint8), B int8 and int32 sums; sm_80 and newer."""

ARITHMETIC = {
    "dp4a_s8": ("dp4a.s32.s32 $0,$1,$2,$3;", "i", "iii"),
    "dp4a_u8s8": ("dp4a.u32.s32 $0,$1,$2,$3;", "i", "iii"),
    "prmt": ("prmt.b32 $0,$1,$2,$3;", "i", "iii"),
    "float_as_int": ("mov.b32 $0,$1;", "i", "f"),
    "int_as_float": ("mov.b32 $0,$1;", "f", "i"),
    "rint_u32": ("cvt.rni.u32.f32 $0,$1;", "u", "f"),
    "rint_s32": ("cvt.rni.s32.f32 $0,$1;", "i", "f"),
    "floor_s32": ("cvt.rmi.s32.f32 $0,$1;", "i", "f"),
    "trunc_s32": ("cvt.rzi.s32.f32 $0,$1;", "i", "f"),
    "half_to_float": (_HALF.format("cvt.u16.u32 h,$1; cvt.f32.f16 $0,h;"), "f", "i"),
    "float_to_half": (_HALF.format("cvt.rn.f16.f32 h,$1; cvt.u32.u16 $0,h;"), "i", "f"),
    "ex2_approx": ("ex2.approx.ftz.f32 $0,$1;", "f", "f"),
    "map_shared": ("mapa.shared::cluster.u32 $0,$1,$2;", "i", "ii"),
}
"""Name -> (text, results, arguments), without side effects. ``map_shared(address, rank)``: the place in the cluster's
memory that ``address`` names in its block ``rank``. ``dp4a_u8s8(a, b, c)``: a's bytes unsigned, b's signed.
A half is the low 16 bits of an int32. ``ex2_approx`` is for the float arithmetic alone."""

MEMORY = {
    "cp_async_16": ("cp.async.cg.shared.global [$0],[$1],16;", "", "il"),
    "cp_async_16_zfill": ("cp.async.cg.shared.global [$0],[$1],16,$2;", "", "ili"),
    "cp_async_commit": ("cp.async.commit_group;", "", ""),
    **{f"cp_async_wait_{n}": (f"cp.async.wait_group {n};", "", "") for n in range(4)},
    "red_shared_max_i32": ("red.shared.max.s32 [$0],$1;", "", "ii"),
    "red_shared_add_i32": ("red.shared.add.u32 [$0],$1;", "", "ii"),
    "red_global_max_i32": ("red.global.max.s32 [$0],$1;", "", "li"),
    "red_global_add_i64": ("red.global.add.u64 [$0],$1;", "", "ll"),
    "atom_shared_add_i32": ("atom.shared.add.u32 $0,[$1],$2;", "i", "ii"),
    "atom_global_add_i32": ("atom.acq_rel.gpu.global.add.u32 $0,[$1],$2;", "i", "li"),
    "atom_global_inc": ("atom.acq_rel.gpu.global.inc.u32 $0,[$1],$2;", "i", "li"),
    "fence_gpu": ("fence.acq_rel.gpu;", "", ""),
}
"""Name -> (text, results, arguments). ``cp_async_16(shared, global)`` copies 16 bytes, which are there after the wait;
with ``_zfill(shared, global, n)`` only the first n come from there, the others are zeros, and n = 0 reads nothing;
``atom_*`` return the old value, and the global ones order memory on both sides; ``atom_global_inc(address, limit)``
counts up and starts again from 0 after ``limit``."""

JOINS = {
    "join_four": (
        "{ .reg .s64 t; mul.wide.s32 t,$1,1; mad.wide.s32 t,$2,256,t; mad.wide.s32 t,$3,65536,t; "
        "mad.wide.s32 $0,$4,16777216,t; }",
        "l",
        "iiii",
    ),
}
"""Name -> (text, results, arguments): the int64 sum of four int32 digits to the base 256, the lowest first. Kept in
place as if it touched memory: a compiler that widens all digits of a lane's sums at once runs out of registers."""

BARRIERS = {
    "barrier_sync": ("bar.sync $0,$1;", "", "ii"),
    "barrier_arrive": ("bar.arrive $0,$1;", "", "ii"),
}
"""Named barriers ``(id 1 to 15, lanes)``, lanes a multiple of 32; ``barrier_arrive`` does not wait."""

_ST_ASYNC = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes"

CLUSTER = {
    "cluster_arrive_relaxed": ("barrier.cluster.arrive.relaxed.aligned;", "", "", True),
    "cluster_wait": ("barrier.cluster.wait.acquire.aligned;", "", "", True),
    "mbarrier_init": ("mbarrier.init.shared::cta.b64 [$0],$1;", "", "ii", False),
    "fence_mbarrier_init": ("fence.mbarrier_init.release.cluster;", "", "", False),
    "mbarrier_arrive_expect": ("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _,[$0],$1;", "", "ii", False),
    "mbarrier_try_wait": (
        "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p,[$1],$2; selp.b32 $0,1,0,p; }",
        "i",
        "ii",
        False,
    ),
    "st_async_i64": (f"{_ST_ASYNC}.b64 [$0],$1,[$2];", "", "ili", False),
    "st_async_v2_i64": (f"{_ST_ASYNC}.v2.b64 [$0],{{$1,$2}},[$3];", "", "illi", False),
    "st_async_v4_i32": (f"{_ST_ASYNC}.v4.b32 [$0],{{$1,$2,$3,$4}},[$5];", "", "iiiiii", False),
}
"""Name -> (text, results, arguments, converged): blocks of one cluster, sm_90 and newer.

``cluster_arrive_relaxed`` neither waits nor orders memory, but for the ``mbarrier_init`` that its lane has put behind a
``fence_mbarrier_init``; every arrival must be followed by a ``cluster_wait``, which returns once every lane of the
cluster that has not ended has arrived. ``mbarrier_init(address, count)``: a barrier of ``count`` arrivals at 8 bytes of
the block's own memory. ``mbarrier_arrive_expect(address, n)`` arrives, and has the barrier wait for ``n`` bytes more.
``mbarrier_try_wait(address, parity)``: 1 once the phase of that parity is over, and what was counted may be read; 0
when it is not yet. ``st_async_*(address, values..., mbarrier)`` store into a block of the cluster and count the bytes
on that block's barrier when they are there; both addresses are those of :func:`map_shared`."""

for _space, _address in ((SHARED_LOADS, "i"), (GLOBAL_LOADS, "l"), (ORDERED_LOADS, "l")):
    globals().update(_loads(_space, _address, memory=True))
globals().update(_loads(READ_ONLY_LOADS, "l", memory=False))
globals().update(_stores(SHARED_STORES, "i"))
globals().update(_stores(GLOBAL_STORES, "l"))
for _name, (_text, _results, _arguments, _memory) in MATRIX.items():
    globals()[_name] = _instruction(_name, _text, _results, _arguments, _memory, converged=True)
for _name, (_text, _results, _arguments) in ARITHMETIC.items():
    globals()[_name] = _instruction(_name, _text, _results, _arguments)
for _name, (_text, _results, _arguments) in (*MEMORY.items(), *JOINS.items()):
    globals()[_name] = _instruction(_name, _text, _results, _arguments, memory=True)
for _name, (_text, _results, _arguments, _converged) in CLUSTER.items():
    globals()[_name] = _instruction(_name, _text, _results, _arguments, memory=True, converged=_converged)
for _name, (_text, _results, _arguments) in BARRIERS.items():
    globals()[_name] = _instruction(_name, _text, _results, _arguments, memory=True, converged=True)


def _pointer(context, builder, signature, args):
    array = context.make_array(signature.args[0])(context, builder, value=args[0])
    return builder.ptrtoint(array.data, _I64)


def _shared_address(context, builder, signature, args):
    data = context.make_array(signature.args[0])(context, builder, value=args[0]).data
    return builder.ptrtoint(builder.addrspacecast(data, data.type.pointee.as_pointer(3), "shared"), _I32)


@intrinsic
def shared_base(typingctx, array):
    """int32 address of a shared array's first byte."""

    def codegen(context, builder, signature, args):
        # Kept from the compiler, which would make a constant of every address that is added up from it.
        text = ir.InlineAsm(ir.FunctionType(_I32, [_I32]), "mov.b32 $0,$1;", "=r,r", side_effect=False)
        return builder.call(text, [_shared_address(context, builder, signature, args)])

    return int32(array), codegen


@intrinsic
def shared_window(typingctx, array):
    """As :func:`shared_base`, the compiler knowing it to be a constant: some kernels take fewer registers so, others
    more."""

    def codegen(context, builder, signature, args):
        return _shared_address(context, builder, signature, args)

    return int32(array), codegen


@intrinsic
def global_base(typingctx, array):
    """int64 address of a global array's first byte."""

    def codegen(context, builder, signature, args):
        return _pointer(context, builder, signature, args)

    return int64(array), codegen
