"""The CUDA kernels in the simulator as a backend module: ``Backend("support.simulated")`` calls them as any
other."""

from qsa.kernels.cuda import simulator

_backend = simulator.load("backend")
append_kv, plan_append_kv = _backend.append_kv, _backend.plan_append_kv
append_index, plan_append_index = _backend.append_index, _backend.plan_append_index
block_scores, plan_block_scores = _backend.block_scores, _backend.plan_block_scores
select, plan_select = _backend.select, _backend.plan_select
attend, plan_attend = _backend.attend, _backend.plan_attend
layers, to_device, to_host = _backend.layers, _backend.to_device, _backend.to_host
declaration = {
    "arithmetic": ["exact", "float"],
    "index_formats": ["fp32", "int16"],
    "invariance": ["repeat", "batch", "schedule", "pages"],
}
