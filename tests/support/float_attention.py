"""Problems for the float attention on CUDA, in the simulator and on a device alike, and the bound on its error.

``module`` is ``attend_float`` of either; ``device`` the module ``device`` beside it.
"""

import numpy as np

from qsa.reference.append_kv import append_kv
from qsa.reference.attend import attend, selected_cells
from qsa.reference.chunked import chunk_attention
from qsa.reference.formats import rotate
from qsa.reference.kv import PagedKV
from support.arrays import generator, relative_error
from support.attention import SMALL

FORMATS = ("int8", "q4_0", "k8v4", "fp16")

BOUND = 2
"""How many times the error of NumPy's float32 chunks the kernels' error may be. Both sum in float32, in another order;
the kernels' exp2 is an instruction of 2 ulp whose argument is a product in log2 units, each about as large as the
rounding of a score. On a device the ratio is 0.8 to 1; of the few numbers of a small problem it is up to 1.7."""


def store(rng, fmt, cells, geometry, page_size=4, missing=()):
    """(PagedKV of ``cells`` random cells behind a shuffled page table). Logical pages ``missing`` are not resident.

    Physical pages that no logical page leads to are full of NaN and of codes -1, as is a page's unused part.
    """
    pages = -(-cells // page_size)
    table = rng.permutation(pages + 2)[:pages].astype(np.int32)
    # The first physical page, which kernels read in the place of a cell they must not read, stays poisoned.
    table[table == 0] = pages + 2
    table[list(missing)] = -1
    kv = PagedKV.new(fmt, pages * page_size, page_size, geometry, table)
    kv.pool = type(kv.pool)(fmt, pages + 3, page_size, geometry)
    for side in (kv.pool.k, kv.pool.v):
        for array in (side.codes, side.scale):
            array.view(np.uint8).fill(0xFF)
    shape = (cells, geometry.n_head_kv, geometry.head_dim)
    k = rng.standard_normal(shape).astype(np.float32)
    v = (rng.standard_normal(shape) * np.exp(rng.standard_normal((*shape[:2], 1)))).astype(np.float32)
    steps = np.zeros((cells, 4), np.int32)
    steps[:, 0] = np.arange(cells)
    append_kv(k, v, kv, steps)
    return kv


def records(widths):
    """Step records [rows, 4] of rows that select ``widths`` cells: attention reads nothing else."""
    return np.array([[w - 1, w, w // 4, w] for w in widths], np.int32)


def selection(rng, widths, cells, cap):
    """ids [rows, cap] int32: ascending, unique, then numbers that no kernel may read."""
    ids = np.full((len(widths), cap), 0x7FFFFFFF, np.int32)
    for row, width in zip(ids, widths, strict=True):
        row[:width] = np.sort(rng.choice(cells, width, replace=False))
    return ids


def queries(rng, rows, geometry, spread=2.0):
    return (spread * rng.standard_normal((rows, geometry.n_head, geometry.head_dim))).astype(np.float32)


def yardstick(q, kv, ids, steps):
    """NumPy's float32 chunks on the values that ``kv`` holds."""
    out = np.zeros(q.shape, np.float32)
    for row, width in enumerate(steps[:, 3]):
        cells = selected_cells(kv, ids[row], width)
        turned = rotate(q[row]) if kv.pool.k.coding == "q4_0" else q[row]
        result = chunk_attention(turned, *cells.values())
        out[row] = rotate(result) if kv.pool.v.coding == "q4_0" else result
    return out


CUT = 2.0**-23
"""What tensor cores may add to the relative error: where four products are summed they cut off what does not fit,
always towards zero, so that a long row's sums are shifted by up to a unit in the last place. Over 32,768 cells:
1.35e-7, where NumPy's chunks have 0.62e-7."""


def check_error(got, q, kv, ids, steps, cut=0.0):
    """The error against float64 is within BOUND of the yardstick's, and ``cut`` more. Returns both, for a report."""
    want = attend(q, kv, ids, steps)
    mine, theirs = relative_error(got, want), relative_error(yardstick(q, kv, ids, steps), want)
    assert mine <= BOUND * theirs + cut, f"{mine:.2e} against float64, NumPy's float32 chunks {theirs:.2e}"
    return mine, theirs


def float_problem(seed, widths, fmt="int8", cells=330, cap=None, geometry=SMALL, **options):
    """q, PagedKV, ids and steps of rows that select ``widths`` cells."""
    rng = generator(seed)
    kv = store(rng, fmt, cells, geometry, **options)
    ids = selection(rng, widths, cells, cap or max(*widths, 1))
    return queries(rng, len(widths), geometry), kv, ids, records(widths)
