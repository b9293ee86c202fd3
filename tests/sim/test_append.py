"""``append_kv`` and ``append_index`` on CUDA, in the simulator."""

from cases.append_cases import *  # noqa: F403
