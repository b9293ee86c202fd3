"""A kernel that carries out the instructions of ``ptx.py`` on one warp, built for the device or for the simulator."""

import numpy as np

INTEGERS, FLOATS, ROWS = 8, 8, 64
SHARED = 4096


def inputs():
    """(integers int32 [8, 32], floats float32 [8, 32]): all bit patterns of interest to conversions among them."""
    rng = np.random.default_rng(9)
    integers = rng.integers(-(2**31), 2**31, (INTEGERS, 32)).astype(np.int32)
    floats = (rng.standard_normal((FLOATS, 32)) * np.exp2(rng.integers(-30, 34, (FLOATS, 32)))).astype(np.float32)
    floats[0, :10] = [0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 1e-45, 65520, -3e38]
    return integers, floats


def build(compiler, ptx):
    """``probe(integers, floats, out)``: out int32 [64, 32], wide int64 [4]; 32 lanes, 4 KiB of shared memory."""
    cuda, int32, int64, uint32 = compiler.cuda, compiler.int32, compiler.int64, compiler.uint32
    float32 = compiler.float32

    @compiler.kernel()
    def probe(integers, floats, out, wide):
        base = ptx.shared_base(cuda.shared.array(0, compiler.int32))
        t = int32(cuda.threadIdx.x)
        offset = int64(t) * 4
        source, target = ptx.global_base(integers) + offset, ptx.global_base(out) + offset
        a, b, c = integers[0, t], integers[1, t], integers[2, t]
        x = floats[0, t]
        for i in range(INTEGERS):
            ptx.st_shared_i32(int32(base + 128 * i + 4 * t), integers[i, t])
        cuda.syncwarp()

        ptx.st_global_i32(target, ptx.dp4a_s8(a, b, c))
        ptx.st_global_i32(target + 128, ptx.dp4a_u8s8(a, b, c))
        ptx.st_global_i32(target + 256, ptx.prmt(a, b, 0x5140))
        ptx.st_global_i32(target + 384, ptx.prmt(a, b, int32(c & 0xFFFF)))
        ptx.st_global_i32(target + 512, ptx.float_as_int(ptx.int_as_float(a)))
        ptx.st_global_i32(target + 640, int32(ptx.rint_u32(x)))
        ptx.st_global_i32(target + 768, ptx.rint_s32(x))
        ptx.st_global_i32(target + 896, ptx.floor_s32(x))
        ptx.st_global_i32(target + 1024, ptx.trunc_s32(x))
        ptx.st_global_i32(target + 1152, ptx.float_to_half(x))
        ptx.st_global_i32(target + 1280, ptx.float_as_int(ptx.half_to_float(ptx.float_to_half(floats[1, t]))))

        r0, r1, r2, r3 = ptx.ldmatrix_x4(int32(base + 16 * t))
        s0, s1 = ptx.ldmatrix_x2(int32(base + 512 + 16 * (t & 15)))
        u0, u1, u2, u3 = ptx.ldmatrix_x4_trans(int32(base + 16 * t))
        d0, d1, d2, d3 = ptx.mma_s8(r0, r1, r2, r3, s0, s1, a, b, c, t)
        e = ptx.mma_u8(r0, r1, r2, r3, s0, s1, d0, d1, d2, d3)
        ptx.st_global_i32(target + 1408, r0 ^ s0)
        ptx.st_global_i32(target + 1536, u0)
        ptx.st_global_i32(target + 1664, u3 ^ u2 ^ u1)
        ptx.st_global_i32(target + 1792, d0)
        ptx.st_global_i32(target + 1920, d3)
        ptx.st_global_i32(target + 2048, e[1])
        ptx.st_global_i32(target + 2176, e[2])

        ptx.cp_async_16(int32(base + 1024 + 16 * t), ptx.global_base(integers) + int64(t) * 16)
        ptx.cp_async_commit()
        ptx.cp_async_16_zfill(int32(base + 1536 + 16 * t), ptx.global_base(integers), int32(4 * (t & 3)))
        ptx.cp_async_commit()
        ptx.cp_async_wait_1()
        v0, v1, v2, v3 = ptx.ld_shared_v4_i32(int32(base + 1024 + 16 * t))
        ptx.cp_async_wait_0()
        z0, z1, z2, z3 = ptx.ld_shared_v4_i32(int32(base + 1536 + 16 * t))
        ptx.st_global_i32(target + 2304, v0 ^ v1 ^ v2 ^ v3)
        ptx.st_global_i32(target + 2432, z0 ^ z1)
        ptx.st_global_i32(target + 2560, z2 ^ z3)

        ptx.st_shared_u8(int32(base + 2048 + t), a)
        ptx.st_shared_u16(int32(base + 2176 + 2 * t), b)
        ptx.st_shared_i64(int32(base + 2304 + 8 * t), int64(a) * int64(b))
        cuda.syncwarp()
        ptx.st_global_i32(target + 2688, ptx.ld_shared_u8(int32(base + 2048 + (t ^ 1))))
        ptx.st_global_i32(target + 2816, ptx.ld_shared_s8(int32(base + 2176 + (t ^ 1))))
        ptx.st_global_i32(target + 2944, ptx.ld_global_u16_nc(source + 2) ^ ptx.ld_global_u8(source + 1))
        ptx.st_global_i32(target + 3072, int32(ptx.ld_shared_i64(int32(base + 2304 + 8 * (t ^ 1))) >> 32))

        if t == 0:
            ptx.st_shared_i32(int32(base + 3072), int32(-(1 << 31)))
            ptx.st_shared_i32(int32(base + 3076), int32(0))
        cuda.syncwarp()
        ptx.red_shared_max_i32(int32(base + 3072), a)
        ptx.red_shared_add_i32(int32(base + 3076), a)
        cuda.syncwarp()
        ptx.st_global_i32(target + 3200, ptx.ld_shared_i32(int32(base + 3072)) ^ ptx.ld_shared_i32(int32(base + 3076)))
        sums = ptx.global_base(wide)
        ptx.red_global_add_i64(sums, int64(a) * 7)
        ptx.red_global_max_i32(sums + 8, b)
        ptx.atom_global_inc(sums + 16, int32(9))
        ptx.atom_global_add_i32(sums + 24, c)
        ptx.st_global_i32(target + 3328, cuda.ballot_sync(0xFFFFFFFF, a > 0) ^ cuda.shfl_up_sync(0xFFFFFFFF, a, 3))
        ptx.st_global_i32(target + 3456, cuda.match_any_sync(0xFFFFFFFF, int32(a & 3)))
        ptx.st_global_i32(target + 3584, int32(cuda.popc(uint32(a)) * 64 + cuda.clz(a)) ^ int32(cuda.ffs(b)))

        ptx.st_global_i32(target + 3712, ptx.redux_add(a))
        ptx.st_global_i32(target + 3840, ptx.redux_min(b))
        ptx.st_global_i32(target + 3968, ptx.redux_max(c))
        cuda.syncwarp()
        ptx.red_shared_or_i32(int32(base + 3072), b)
        cuda.syncwarp()
        ptx.st_global_i32(target + 4096, ptx.ld_shared_i32(int32(base + 3072)))

        # Of integers below 16 every product and sum is exact.
        few, more = (
            ptx.floats_to_halves(float32(a & 15), float32(b & 15)),
            ptx.floats_to_halves(float32(c & 15), float32(t)),
        )
        f0, f1, f2, f3 = ptx.mma_f16(few, more, few, few, more, few, x - x, float32(1), float32(2), float32(3))
        ptx.st_global_i32(target + 4224, ptx.floats_to_halves(floats[1, t], x))
        ptx.st_global_i32(target + 4352, ptx.sub_halves(few, more))
        ptx.st_global_i32(target + 4480, ptx.float_as_int(f0 + f1))
        ptx.st_global_i32(target + 4608, ptx.float_as_int(f2 + f3))

    return probe
