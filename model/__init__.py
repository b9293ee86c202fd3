"""The text model over the operations of any backend, in the exact and in the float arithmetic.

A backend is a module with the five operations (``append_kv``, ``append_index``, ``block_scores``, ``select``,
``attend``) and a namespace ``layers``: ``reference.exact``, ``kernels.cpu`` or ``kernels.cuda``. A backend with a
device also has ``to_device`` and ``to_host``.

A run may be recorded in a graph and replayed for other positions (``engine/programs/graphs.py``). So the model is cut
in two: :meth:`TextModel.inputs` makes everything that depends on ids and positions on the host, and
:meth:`TextModel.compute` launches only operations that read it from device arrays.
"""

from .arithmetic import Arithmetic
from .checkpoint import read_quantised, write_quantised
from .float_layers import FloatLayers
from .float_model import FloatModel
from .generate import Text, generate
from .mtp import Draft
from .state import Inputs, Output, State
from .text_model import ExactModel, TextModel

__all__ = [
    "Arithmetic",
    "Draft",
    "ExactModel",
    "FloatLayers",
    "FloatModel",
    "Inputs",
    "Output",
    "State",
    "Text",
    "TextModel",
    "generate",
    "read_quantised",
    "write_quantised",
]
