"""Slots: the complete state of one sequence, its cells, its bytes, its identity and its size."""
