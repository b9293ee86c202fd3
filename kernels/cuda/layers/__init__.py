"""The operations of which layers are made, in numba-CUDA: names, arguments and bytes of ``reference.exact.layers``.

Arrays lie on the device. Inputs may be views whose last axis is contiguous; results are new and C-contiguous, from
CuPy's pool. States are advanced in place; every other input is read only. Nothing synchronises, so every operation can
be captured in a graph. Weights of ``linear`` and ``experts`` come from ``load_linear``, tables of ``embed`` from
``load_table``; norms' weights, taps and the like are device arrays of float32.
"""

from .convolution import causal_conv
from .experts import experts, route
from .gates import add, add_gated, inject, mix_streams, ngram_gate, scaled_silu, sigmoid_gate, silu, swiglu
from .last_cells import last_cells
from .linear import embed, linear, load_linear, load_table
from .norm import gated_norm, l2_norm, rms_norm, rotate
from .recurrent import decay_beta, delta_rule

__all__ = [
    "add",
    "add_gated",
    "causal_conv",
    "decay_beta",
    "delta_rule",
    "embed",
    "experts",
    "gated_norm",
    "inject",
    "l2_norm",
    "last_cells",
    "linear",
    "load_linear",
    "load_table",
    "mix_streams",
    "ngram_gate",
    "rms_norm",
    "rotate",
    "route",
    "scaled_silu",
    "sigmoid_gate",
    "silu",
    "swiglu",
]
