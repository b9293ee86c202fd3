"""``qsa prove``: changes on purpose, each of which a stated check must find: wrong kernels, engines and judges."""
