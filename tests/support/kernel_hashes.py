"""Run every CPU kernel once and print a hash of what each wrote: ``python -m support.kernel_hashes``.

``test_machine.py`` runs it as processes of different thread counts and processor features.
"""

import json

import numpy as np
import xxhash

from qsa.kernels import cpu
from qsa.reference.exact.layers.linear import QuantisedLinear
from qsa.reference.geometry import step_records
from qsa.reference.index import Index
from qsa.reference.kv import PagedKV
from support.arrays import generator
from support.attention import SMALL, fill, record
from support.layer_problems import PROBLEMS, conv_problem, delta_problem


def extreme_linear():
    """(x [5, 200], weight [70, 200]): codes and numbers at the ends of their ranges, so that sums are the largest."""
    rng = generator(30)
    codes = rng.choice(np.array([-128, -127, 127], np.int8), (70, 200))
    codes[0], codes[1] = -128, 127
    x = rng.choice(np.array([-2, 2], np.float32) * (1 - np.float32(2**-24)), (5, 200))
    x[0] = x[0, 0]
    return x, QuantisedLinear(codes, np.exp2(rng.integers(-10, 10, (70, 4))).astype(np.float16))


def extreme_attention(fmt):
    """Arguments of ``attend``: codes at the ends of their range (of int8 -128 too), scales of either sign and 0."""
    rng = generator(31)
    kv, _, _ = fill(rng, 90, fmt, geometry=SMALL)
    for side in (kv.pool.k, kv.pool.v):
        ends = np.array([0x80, 0x7F, 0x81] if side.coding == "int8" else [0x00, 0xFF, 0x0F], np.uint8)
        side.codes.view(np.uint8)[:] = rng.choice(ends, side.codes.shape)
        side.scale[:] = rng.choice(np.array([0.01, -0.02, 0, 0.03, -0.0], np.float16), side.scale.shape)
    q = rng.choice(np.array([-1, 1], np.float32), (1, SMALL.n_head, SMALL.head_dim))
    return q, kv, np.arange(90, dtype=np.int32)[None], record(90)


def hashes():
    """Operation -> hash, for fixed inputs of the real geometry, and the threads in use."""
    rng = generator(20)
    found = {}

    def note(name, *arrays):
        found[name] = xxhash.xxh3_128_hexdigest(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays))

    n = 4203
    index = Index(1100, rng.standard_normal(128).astype(np.float32))
    cpu.append_index(rng.standard_normal((n, 128)).astype(np.float32), step_records(range(n)), index)
    note("append_index", index.tail, index.dead, index.pooled)
    steps = step_records([n - 1, 2050, -1, 700, 62])
    scores = cpu.block_scores(rng.standard_normal((5, 4, 128)).astype(np.float32), index, steps)
    note("block_scores", scores)
    for rule in ("blocks", "cells"):
        record = step_records(steps[:, 0].tolist(), rule)
        ids = cpu.select(scores, record, rule=rule)
        note(f"select {rule}", ids)
    k, v = rng.standard_normal((2, n, 2, 256)).astype(np.float32)
    q = rng.standard_normal((5, 24, 256)).astype(np.float32)
    for fmt in ("int8", "q4_0", "k8v4", "fp16"):
        kv = PagedKV.new(fmt, n, 4, table=rng.permutation(-(-n // 4)))
        cpu.append_kv(k, v, kv, step_records(range(n)))
        note(f"append_kv {fmt}", *(array for side in (kv.pool.k, kv.pool.v) for array in (side.codes, side.scale)))
        for arithmetic in ("float",) if fmt == "fp16" else ("exact", "float"):
            for schedule in ("batch", "split"):
                out = cpu.attend(q, kv, ids, record, schedule=schedule, arithmetic=arithmetic)
                note(f"attend {fmt} {arithmetic} {schedule}", out)
    for name, problem in PROBLEMS.items():
        note(name, *problem.run(cpu.layers, *problem.rows(generator(21), 150)))
    x, taps, past = conv_problem(generator(22), 20, 4, 3)
    note("causal_conv", cpu.layers.causal_conv(x, taps, past, 3), past)
    rows, memory = delta_problem(generator(23), 70, 8, 2, 64, 64)
    note("delta_rule", cpu.layers.delta_rule(*rows, memory), memory)
    x, weight = extreme_linear()
    note("extreme linear", cpu.layers.linear(x, cpu.layers.load_linear(weight)))
    for fmt in ("int8", "q4_0", "k8v4"):
        note(f"extreme attention {fmt}", cpu.attend(*extreme_attention(fmt)))
    return found


if __name__ == "__main__":
    import numba
    from llvmlite import binding

    processor = numba.config.CPU_NAME or binding.get_host_cpu_name()
    print(json.dumps({"threads": numba.get_num_threads(), "processor": processor, "hashes": hashes()}))
