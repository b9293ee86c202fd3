"""The CUDA backend: the operations, the layers and the sampler, as ``qsa.kernels.backend`` describes them.

Importing it needs the extra cuda12 or cuda13; raises ImportError, saying so, where numba-cuda or CuPy is missing.
"""

try:
    from . import layers, rounds
    from . import sampler as row_sampler
    from .append_index import append_index, plan_append_index
    from .append_kv import append_kv, plan_append_kv
    from .attend import attend, plan_attend
    from .block_scores import block_scores, plan_block_scores
    from .device.containers import read_kv, to_device, to_host
    from .device.graphs import Program, Staging, program_stream, together
    from .select import plan_select, select
    from .toolchain.compiler import pinned
except ModuleNotFoundError as error:
    raise ImportError(f"the CUDA backend needs the extra cuda12 or cuda13: {error}") from error

__all__ = [
    "Program",
    "Staging",
    "append_index",
    "append_kv",
    "attend",
    "block_scores",
    "declaration",
    "layers",
    "pinned",
    "plan_append_index",
    "plan_append_kv",
    "plan_attend",
    "plan_block_scores",
    "plan_select",
    "program_stream",
    "read_kv",
    "rounds",
    "row_sampler",
    "select",
    "to_device",
    "to_host",
    "together",
]

declaration = {
    "arithmetic": ["exact", "float"],
    "index_formats": ["fp32", "int16"],
    "invariance": ["repeat", "batch", "schedule", "pages"],
}
"""What the backend declares under the judge (``parity/contract/declaration.py``)."""
