"""The CUDA kernels in the simulator as a backend module: ``Backend("support.simulated")`` calls them as any
other."""

from qsa.kernels.cuda import simulator

append_kv = simulator.load("append_kv").append_kv
append_index = simulator.load("append_index").append_index
block_scores = simulator.load("block_scores").block_scores
select = simulator.load("select").select
attend = simulator.load("attend").attend
layers = simulator.load("layers")
to_device, to_host = simulator.load("device").to_device, simulator.load("device").to_host
declaration = {"arithmetic": ["exact", "float"], "invariance": ["repeat", "batch", "schedule", "pages"]}
