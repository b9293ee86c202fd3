"""A compilation that breaks its process, for the place of ``ptxcheck.table.verdict``: a process imports it here."""

import os

from qsa.kernels.cuda.ptxcheck.table import Verdict


def verdict(name, target):
    """Of the row ``sample`` none, for the process ends; of every other one an empty one."""
    if name == "sample":
        os._exit(1)
    return Verdict(name)
