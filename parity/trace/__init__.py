"""FlashInfer Trace, the public schema of FlashInfer-Bench: cases as its workloads, its solutions as backends.

See ``docs/cases.md``.
"""
