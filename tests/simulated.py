"""The CUDA kernels in the simulator as a backend module: ``Backend("simulated")`` calls them as it does any other."""

from qsa.kernels.cuda import simulate

append_kv = simulate.load("append_kv").append_kv
append_index = simulate.load("append_index").append_index
block_scores = simulate.load("block_scores").block_scores
select = simulate.load("select").select
attend = simulate.load("attend").attend
to_device, to_host = simulate.load("device").to_device, simulate.load("device").to_host
