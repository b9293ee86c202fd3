"""The layers with a state on CUDA, in the simulator."""

from cases.recurrent_cases import *  # noqa: F403
