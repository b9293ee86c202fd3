"""Faults that kernels like ours have had, each with the smallest input that shows it and the right value.

The letters are those of the list the project keeps: A are faults of one engine and its forks, B and C of others. Every
backend is held to the same tests: the reference's exact arithmetic, the CPU kernels, the CUDA kernels in the simulator
and on a device. They lie by operation in ``known_faults_index`` (keys, scores), ``known_faults_select``,
``known_faults_attend`` (K/V, attention), ``known_faults_step`` (several operations, graphs) and ``known_faults_large``.
The last are left out of the simulator: it needs minutes for a row of 65,537 blocks, and its grids, which end at the
device's limits, are tested there with the limit lowered (``tests/sim/test_block_scores.py``).

Rows whose subject is no kernel are tested where their subject is: A17 (order and histories of the sampler) in
``tests/cpu/reference/test_sampler.py``, ``test_speculative.py``, their namesakes ``test_exact_*.py`` and
``tests/cpu/kernels/test_sampler.py``, A18 (text that depends on the window) and C6 (verified by the draft's own K/V) in
``test_speculative.py``, C9 (query and gate interleaved) and C10 (the norm's unit offset) in
``test_text_model.py`` and ``tests/oracle``. What the engine alone can get wrong is to be tested with the engine:
A13 (two blocks in one slot of the page cache), A20 (a staging buffer used again too early), B1 and C8 (a copied or
restored sequence without its indexer keys), C7 (the short convolution's state of another row).
"""

import numpy as np

from qsa.reference.geometry import REAL
from qsa.reference.index import Index
from support.arrays import normal
from support.attention import store

ACCURACY = 1e-6
"""Relative to float64 on the same codes; the project's bound for ordinary inputs, 16 roundings of 2^-24."""


def queries(rng, rows, geometry):
    """Normal queries [rows, n_head, head_dim] float32."""
    return normal(rng, rows, geometry.n_head, geometry.head_dim)


def vectors(rng, n, geometry):
    """Normal K and V [n, n_head_kv, head_dim] float32."""
    return normal(rng, 2, n, geometry.n_head_kv, geometry.head_dim)


def cells(rng, n, geometry, page_size=4, fmt="int8"):
    """A PagedKV of ``n`` normal cells behind a shuffled page table."""
    return store(*vectors(rng, n, geometry), fmt, page_size, geometry, rng)


def index_queries(rng, rows):
    """Normal indexer queries [rows, 4, 128] float32."""
    return normal(rng, rows, REAL.idx_heads, REAL.idx_dim)


def new_index(blocks, **options):
    """An Index of the real geometry with a norm weight of ones."""
    return Index(blocks, np.ones(REAL.idx_dim, np.float32), **options)


def raw_keys(rng, rows):
    """Normal raw indexer keys [rows, idx_dim] float32."""
    return normal(rng, rows, REAL.idx_dim)
