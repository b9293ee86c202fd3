"""Known faults that show over several operations or when a call's launches are made again; see ``known_faults``."""

import numpy as np

from cases.known_faults import ACCURACY, cells, index_queries, new_index, queries, raw_keys, vectors
from qsa.reference.append_index import append_index as append_index_float64
from qsa.reference.append_kv import append_kv as append_kv_reference
from qsa.reference.attend import attend as attend_float64
from qsa.reference.block_scores import block_scores as block_scores_float64
from qsa.reference.geometry import Geometry, step_records
from qsa.reference.kv import PagedKV
from qsa.reference.select import select as select_float64
from support.arrays import generator, relative_error, same_bytes
from support.attention import record


class Step:
    """The operations of a decode step of ``rows`` rows. Inputs, states and results have fixed buffers."""

    def __init__(self, backend, rows, capacity=48):
        g = backend.geometry
        self.backend, self.rows, self.geometry = backend, rows, g
        self.budget = Geometry(budget=g.budget)
        self.inputs = [
            backend.to_device(np.zeros(shape, np.float32))
            for shape in ((rows, g.n_head, 256), *[(rows, g.n_head_kv, 256)] * 2, (rows, 4, 128), (rows, 128))
        ]
        self.steps = backend.to_device(step_records([-1] * rows, geometry=g))
        self.kv = backend.to_device(PagedKV.new("int8", capacity, geometry=g))
        self.index = backend.to_device(new_index(capacity // 4 + 1))
        self.scores = backend.to_device(np.zeros((rows, capacity // 4 + 1), np.float32))
        self.ids = backend.to_device(np.zeros((rows, g.max_width), np.int32))
        self.out = backend.to_device(np.zeros((rows, g.n_head, 256), np.float32))

    def launch(self):
        """Append, score, select and attend."""
        call = self.backend.call
        q, k, v, q_idx, raw = self.inputs
        call("append_kv", k, v, self.kv, self.steps)
        call("append_index", raw, self.steps, self.index)
        call("block_scores", q_idx, self.index, self.steps, self.scores)
        call("select", self.scores, self.steps, self.ids, geometry=self.budget)
        call("attend", q, self.kv, self.ids, self.steps, out=self.out)

    def fill(self, rng, positions):
        """Write new inputs and step records into the buffers; returns (inputs, step records) in NumPy."""
        g, rows = self.geometry, self.rows
        given = [queries(rng, rows, g), *vectors(rng, rows, g), index_queries(rng, rows), raw_keys(rng, rows)]
        records = step_records(positions, geometry=self.budget)
        for buffer, value in zip((*self.inputs, self.steps), (*given, records), strict=True):
            self.backend.write(buffer, value)
        return given, records


class Reference:
    """The same steps in float64 on the same codes: (scores, ids, outputs) of a call."""

    def __init__(self, geometry, capacity=48):
        self.kv = PagedKV.new("int8", capacity, geometry=geometry)
        self.index = new_index(capacity // 4 + 1, dtype=np.float64)
        self.geometry = Geometry(budget=geometry.budget)

    def __call__(self, given, records):
        q, k, v, q_idx, raw = given
        append_kv_reference(k, v, self.kv, records)
        append_index_float64(raw, records, self.index)
        scores = block_scores_float64(q_idx, self.index, records)
        ids = select_float64(scores, records, geometry=self.geometry)
        return scores, ids, attend_float64(q, self.kv, ids, records)


def compare(step, wanted, records):
    """Compare scores, ids and outputs of every row in use with those of float64. Returns the outputs."""
    scores, ids, out = (step.backend.to_host(x) for x in (step.scores, step.ids, step.out))
    for row in np.flatnonzero(records[:, 1]):
        blocks, width = records[row, 2] + 1, records[row, 3]
        # float32 over 4 heads of 128 products, beside the tail's 1e9.
        assert np.allclose(scores[row, :blocks], wanted[0][row, :blocks], rtol=1e-6, atol=1e-4)
        assert ids[row, :width].tolist() == wanted[1][row, :width].tolist()
        assert relative_error(out[row], wanted[2][row]) < ACCURACY
    return out


def test_a3_launches_made_again_follow_the_step_records(backend):
    """The launches are captured with unused rows and made again at cells 0 to 3, 4 to 7, 8, ...: complete blocks stay.

    On a device the launches are a captured graph; elsewhere the calls are made again with the same buffers.
    """
    rng = generator(40)
    step, reference = Step(backend, 4), Reference(backend.geometry)
    again = backend.captured(step.launch)
    pooled = None
    windows = [0, 1, 2, 3], [4, 5, 6, 7], [8, -1, -1, -1], [9, 10, 11, -1], [12, 13, 14, 15], [16, 17, 18, 19]
    for positions in windows[: 2 if backend.small else None]:
        given, records = step.fill(rng, positions)
        again()
        compare(step, reference(given, records), records)
        now = backend.to_host(step.index).pooled
        if pooled is not None:
            done = positions[0] // 4
            assert same_bytes(now[:done], pooled[:done])
        pooled = now.copy()
        assert pooled[: (max(positions) + 1) // 4].any(axis=1).all()
        assert not pooled[(max(positions) + 1) // 4 :].any()


def test_b6_decode_steps_after_the_first(backend):
    """Steps of one row are right, finite and of many values on every kind of machine that has a build of its own."""
    for machine in backend.machines:
        with machine():
            rng = generator(41)
            step, reference = Step(backend, 1), Reference(backend.geometry)
            for pos in range(2 if backend.small else 6):
                given, records = step.fill(rng, [pos])
                step.launch()
                out = compare(step, reference(given, records), records)
                assert np.unique(out).size > 64


def test_b8_identical_runs(backend):
    """Three runs of score, selection and attention give the same bytes, with ties beyond the budget."""
    rng, g = generator(42), backend.geometry
    n, rows = g.budget + 24, 1 if backend.small else 2
    kv, q, q_idx = cells(rng, n, g), queries(rng, rows, g), index_queries(rng, rows)
    index = new_index(n // 4 + 1)
    # Four kinds of blocks: every cut goes through a tie.
    index.pooled[:] = rng.standard_normal((4, 128))[rng.integers(0, 4, n // 4 + 1)]
    steps = step_records(range(n - rows, n), geometry=Geometry(budget=g.budget))
    runs = []
    for _ in range(3):
        scores = backend.block_scores(q_idx, index, steps)
        ids = backend.select(scores, steps, geometry=Geometry(budget=g.budget))
        runs.append((scores, ids, backend.attend(q, kv, ids, steps)))
    for other in runs[1:]:
        for first, repeated in zip(runs[0], other, strict=True):
            assert first.tobytes() == repeated.tobytes()
    scores, ids, out = runs[0]
    assert np.array_equal(ids, select_float64(scores, steps, geometry=Geometry(budget=g.budget)))
    assert relative_error(out, attend_float64(q, kv, ids, steps)) < ACCURACY


def test_c14_a_padded_row_is_not_read(backend):
    """A call captured with 4 rows gets 3: ids, query and scores of the padded row are not valid, and are not read."""
    rng, g = generator(12), backend.geometry
    kv, q = cells(rng, 64, g), queries(rng, 4, g)
    ids = np.stack([rng.permutation(64) for _ in range(4)]).astype(np.int32)
    widths = (17, 9, 2, 5) if backend.small else (64, 9, 33, 50)
    steps = np.concatenate([record(width) for width in widths])
    want = attend_float64(q, kv, ids, steps)
    arrays = [backend.to_device(x) for x in (q, kv, ids, steps)]
    out = backend.to_device(np.ones_like(q))
    again = backend.captured(lambda: backend.call("attend", *arrays, out=out))
    q[3], ids[3], steps[3] = np.nan, 2**30, step_records([-1])
    for i, value in ((0, q), (2, ids), (3, steps)):
        backend.write(arrays[i], value)
    again()
    got = backend.to_host(out)
    assert want[3].any() and not got[3].any()
    for row in range(3):
        assert relative_error(got[row], want[row]) < ACCURACY, row
    scores = np.full((2, 9), np.nan, np.float32)
    scores[0] = 1
    for schedule in backend.schedules["select"]:
        chosen = backend.select(scores, step_records([37, -1]), schedule=schedule)[:, :40].tolist()
        assert chosen == [[*range(38), -1, -1], [-1] * 40], schedule
    index, q_idx = new_index(3), index_queries(rng, 2)
    index.pooled[:] = rng.standard_normal(index.pooled.shape)
    alone = backend.block_scores(q_idx[:1], index, step_records([8]))
    q_idx[1] = np.nan
    for schedule in backend.schedules["block_scores"]:
        scores = backend.block_scores(q_idx, index, step_records([8, -1]), schedule=schedule)
        assert same_bytes(scores[:1], alone) and (scores[1] == -np.inf).all(), schedule


def test_c18_an_odd_number_of_rows(backend):
    """Every row of a call has the bytes that it has alone, by every schedule of the scores."""
    for rows in (1, 3) if backend.small else (1, 3, 5, 7):
        rng, g = generator(15), backend.geometry
        n = 10 if backend.small else 40
        index = backend.append_index(raw_keys(rng, n), step_records(range(n)), new_index(n // 4 + 1))
        q, steps = index_queries(rng, rows), step_records(range(n - rows, n))
        kv, heads = cells(rng, n, g), queries(rng, rows, g)
        for schedule in backend.schedules["block_scores"]:
            scores = backend.block_scores(q, index, steps, schedule=schedule)
            for row in range(rows):
                alone, blocks = slice(row, row + 1), steps[row, 2] + 1
                want = backend.block_scores(q[alone], index, steps[alone])
                assert same_bytes(scores[alone, :blocks], want[:, :blocks]), (rows, schedule, row)
        ids = backend.select(scores, steps)
        assert all(ids[row, : n_kv + 1].tolist() == [*range(n_kv), -1] for row, n_kv in enumerate(steps[:, 1]))
        wanted = attend_float64(heads, kv, ids, steps)
        for got, want in zip(backend.attend(heads, kv, ids, steps), wanted, strict=True):
            assert relative_error(got, want) < ACCURACY, rows
