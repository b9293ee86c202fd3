"""The operations of which layers are made, beside the five of attention: the namespace that a backend fills.

``qsa.kernels.cpu.layers`` has the same names with the same arguments and the same bytes. Rows are independent: a row's
bytes do not depend on the rows beside it, and a row that is not finite makes itself NaN (0x7fc00000), nothing else.
"""

from ..scalar import silu
from ..select import last_cells
from .experts import experts, route
from .gates import add, add_gated, inject, mix_streams, ngram_gate, scaled_silu, sigmoid_gate, swiglu
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
