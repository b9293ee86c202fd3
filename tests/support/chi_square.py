"""Pearson's test of counts against probabilities, for tests of what is drawn."""

import numpy as np


def chi_square_fails(tokens, probabilities):
    """Whether counts of ``tokens`` leave the 99.9 % region of ``probabilities`` [vocab], or leave its support.

    Cells that expect fewer than 5 draws are pooled. The quantile is Wilson and Hilferty's approximation.
    """
    counts = np.bincount(tokens, minlength=probabilities.size).astype(float)
    if counts[probabilities == 0].any():
        return True
    expected = probabilities * len(tokens)
    small = expected < 5
    counts, expected = (np.append(x[~small], x[small].sum()) for x in (counts, expected))
    counts, expected = counts[expected > 0], expected[expected > 0]
    freedom = len(counts) - 1
    if freedom == 0:
        return False
    spread = 2 / (9 * freedom)
    bound = freedom * (1 - spread + 3.0902 * spread**0.5) ** 3
    return ((counts - expected) ** 2 / expected).sum() > bound
