"""One million cells of context through every operation, with the memory of those that are used."""

import numpy as np

from qsa.kernels import cpu
from qsa.reference import exact
from qsa.reference.attend import attend as attend_float64
from qsa.reference.geometry import RULES, Geometry, step_records
from qsa.reference.index import Index
from qsa.reference.kv import PagedKV
from qsa.reference.select import select as select_float64
from support.arrays import generator, relative_error, same_bytes

MILLION = 1 << 20
NARROW = Geometry(n_rot=16, idx_heads=2, idx_dim=32)
"""The real attention beside an indexer of a quarter of the dims: 32 MiB of keys instead of 128."""


def test_a_step_at_one_million_cells():
    rng = generator(1)
    index = Index(MILLION // 4 + 1, np.ones(32, np.float32), NARROW)
    rng.standard_normal(out=index.pooled, dtype=np.float32)
    steps = step_records([MILLION - 4, MILLION - 2], geometry=NARROW)
    q_idx = rng.standard_normal((2, 2, 32)).astype(np.float32)
    scores = cpu.block_scores(q_idx, index, steps)
    assert scores.tobytes() == exact.block_scores(q_idx, index, steps).tobytes()
    for rule in RULES:
        records = step_records(steps[:, 0].tolist(), rule, NARROW)
        ids = cpu.select(scores, records, rule=rule, geometry=NARROW)
        assert np.array_equal(ids, select_float64(scores, records, rule=rule, geometry=NARROW))
    chosen = np.unique(ids[ids >= 0])
    assert chosen[-1] == MILLION - 2
    pages = np.unique(chosen // 4)
    table = np.full(MILLION // 4, -1, np.int32)
    table[pages] = rng.permutation(len(pages))
    kv = PagedKV.new("int8", MILLION, geometry=NARROW, table=table)
    # 1,056 bytes a cell: about 5 MB here, where the whole context would take 1.03 GiB.
    assert kv.pool.nbytes == 4 * len(pages) * 1056 < 8e6
    k, v = rng.standard_normal((2, len(chosen), 2, 256)).astype(np.float32)
    cpu.append_kv(k, v, kv, step_records(chosen.tolist(), geometry=NARROW))
    q = rng.standard_normal((2, 24, 256)).astype(np.float32)
    out = cpu.attend(q, kv, ids, records)
    assert same_bytes(out, exact.attend(q, kv, ids, records))
    assert same_bytes(out, cpu.attend(q, kv, ids, records, schedule="split"))
    # float32 has 2^-24 per rounding; 1e-6 is the project's bound for ordinary inputs.
    assert relative_error(out, attend_float64(q, kv, ids, records)) < 1e-6
