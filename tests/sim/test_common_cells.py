"""Rows that have cells in common, in the simulator."""

from cases.common_cells_cases import *  # noqa: F403
