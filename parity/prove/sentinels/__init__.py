"""Kernels whose verdict is known, and what the suite must say about them."""
