"""The CUDA kernels in numba-CUDA: the five operations and the sampler, a file each under the reference's own names.

Importing this package needs nothing. ``backend`` is the backend that loads them all: it needs numba-cuda and CuPy.
``simulator`` runs the same files without a GPU; ``ptxcheck`` reads what the compiler makes of them.
"""
