"""Ports: kernels of other engines and libraries, and plain ones of ours, under the contract of a backend under test.

A port is run by its name: ``qsa parity --backend qsa.parity.ports.numpy_float``; ``docs/ports.md`` has the verdicts.

====================  ===============================================================================================
``numpy_float``       plain NumPy in float32: own storage, own index, every fused call
``c_kernel``          C in float32, compiled by the system's compiler when it is loaded
``torch_sdpa``        PyTorch: ``:Float32`` and ``:BFloat16``
``triton_attend``     a Triton kernel: ``:Float32`` and ``:BFloat16``
``transformers_qsa``  the published model code: ``:EagerFloat32``, ``:EagerBFloat16``, ``:SdpaFloat32``,
                      ``:SdpaBFloat16``
``ggml``              K and V as ggml stores them: ``:Q8_0`` and ``:Q4_0``
``vllm``, ``sglang``  the Triton kernels of these engines
``flashinfer``        FlashInfer's QSA
====================  ===============================================================================================

A port whose library is missing raises ImportError with the reason, which ``--backend`` shows.
"""
