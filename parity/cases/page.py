"""``README.txt``, which lies beside exported cases."""

README = """\
Cases of qsa-parity in files

index.json                       the cases and their calls, in order (schema: docs/schema/cases.schema.json)
cases/NUMBER/inputs.safetensors    what the calls get
cases/NUMBER/expected.safetensors  what the reference gives; truth and bounds in the float arithmetic
cases/NUMBER/outputs.safetensors   what your engine writes

For every case of index.json, and every one of its calls in order:
1. read the tensors of "inputs" from inputs.safetensors: each has its key, dtype and shape;
2. read "options" (plain values) and "handles" (numbers of own storage, which a call with "gives" made);
3. compute what "operation" says;
4. write every tensor of "outputs" under its key, in one of its dtypes and in its shape, to outputs.safetensors.

All tensors are in C order and little-endian, as safetensors has them. No call needs the result of another one; calls
on own storage need what was appended before. A case without outputs.safetensors counts as unsupported.

Then: qsa cases check DIR

docs/cases.md of qsa-parity says what every operation gets and gives.
"""
