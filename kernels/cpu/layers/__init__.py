"""The operations of which layers are made, in numba: names, arguments and bytes of ``reference.exact.layers``.

States are advanced in place; every other input is read only. Weights of ``linear`` and ``experts`` come from
``load_linear``; tables of ``embed`` are read as they are stored.
"""

from qsa.reference.exact.select import last_cells

from .experts import experts, route
from .gates import add, add_gated, inject, mix_streams, ngram_gate, scaled_silu, sigmoid_gate, silu, swiglu
from .linear import embed, linear, load_linear, load_table
from .norm import gated_norm, l2_norm, rms_norm, rotate
from .recurrent import causal_conv, decay_beta, delta_rule

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
