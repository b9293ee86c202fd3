"""The float arithmetic's attention in NumPy: float32, chunks of 64 cells, merged by log-sum-exp in chunk order.

Source: design section 8 (the standing path of the engines). It is a yardstick of error, not of bits: exp and the order
of the sums inside a chunk are the library's own.
"""

import numpy as np

CHUNK = 64


def chunk_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, chunk: int = CHUNK) -> np.ndarray:
    """Softmax attention of one row over ``n`` cells in float32.

    q [n_head, dim]; k, v [n, n_head_kv, dim]; scores scaled by 1/sqrt(dim). Returns float32 [n_head, dim], zeros when n
    is 0.
    """
    q, k, v = (np.asarray(x, np.float32) for x in (q, k, v))
    n_head, dim = q.shape
    grouped = q.reshape(k.shape[1], -1, dim)
    factor = np.float32(dim**-0.5)
    top: np.ndarray | None = None
    mass = value = np.empty(0)
    for start in range(0, len(k), chunk):
        part = slice(start, start + chunk)
        scores = grouped @ k[part].transpose(1, 2, 0) * factor
        m = scores.max(axis=-1, keepdims=True)
        weight = np.exp(scores - m)
        total, acc = weight.sum(axis=-1, keepdims=True), weight @ v[part].transpose(1, 0, 2)
        if top is None:
            top, mass, value = m, total, acc
            continue
        above = np.maximum(top, m)
        old, new = np.exp(top - above), np.exp(m - above)
        top, mass, value = above, mass * old + total * new, value * old + acc * new
    if top is None:
        return np.zeros((n_head, dim), np.float32)
    return (value / mass).reshape(n_head, dim)
