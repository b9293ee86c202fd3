"""Calls of a case: recorded with the results of the reference, and answered with results of somebody else."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from qsa.reference.index import Index
from qsa.reference.kv import PagedKV

from ..compare.input_changes import WRITTEN
from ..contract import Declaration
from . import tensors
from .index import Call, Input, Output
from .reference import Reference
from .tensors import Handle, flat
from .truth import Truth, truth

RESULTS = {
    "block_scores": ("scores",),
    "select": ("ids",),
    "indexer": ("ids",),
    "attend": ("out",),
    "attend_gated": ("out",),
    "sparse_attention": ("out",),
    "read": ("k_read", "v_read"),
    "index_read": ("keys_read",),
}
"""Function -> names of what it returns. Others write into what they are given."""

MAKES = ("cache", "index_cache")
"""Functions that give storage of the engine's own."""


def written(operation: str, arguments: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays of the arguments that a call writes into, by name."""
    endings = WRITTEN.get(operation, ())
    given = {name: value for name, value in arguments.items() if isinstance(value, (PagedKV, Index, list))}
    return {name: array for name, array in flat(given).tensors.items() if endings and name.endswith(endings)}


class Recorder:
    """Records every call of a case: ``calls``, with the tensors of ``inputs`` and ``expected`` by key.

    Equal tensors of a case are kept once. The result of a call is that of the reference.
    """

    def __init__(self, arithmetic: str, declaration: Declaration) -> None:
        self.reference, self.declaration = Reference(arithmetic, declaration), declaration
        self.calls: list[Call] = []
        self.inputs: dict[str, np.ndarray] = {}
        self.expected: dict[str, np.ndarray] = {}
        self._keys: dict[str, str] = {}
        self._handles = 0

    def called(self, operation: str, arguments: dict[str, Any]) -> Any:
        """The reference's result of a call, which is recorded."""
        given = flat(arguments)
        inputs = {name: self._input(name, array) for name, array in given.tensors.items()}
        right: dict[str, Truth] = {}
        if not self.reference.exact:
            right = truth(operation, arguments, self.reference)
        result = getattr(self.reference, operation)(**arguments)
        gives = None
        if operation in MAKES:
            gives, self._handles = self._handles, self._handles + 1
            result = Handle(gives, result)
        results = written(operation, arguments) | _named(operation, result)
        outputs = {name: self._output(name, array, right.get(name)) for name, array in results.items()}
        options = {name: value for name, value in given.options.items()}
        call = Call(
            operation=operation, inputs=inputs, options=options, handles=given.handles, gives=gives, outputs=outputs
        )
        self.calls.append(call)
        return result

    def _input(self, name: str, array: np.ndarray) -> Input:
        hashed = tensors.digest(array)
        key = self._keys.setdefault(hashed, f"{len(self.calls)}.{name}")
        if key not in self.inputs:
            self.inputs[key] = array.copy()
        return Input(key=key, dtype=tensors.dtype_name(array), shape=list(array.shape), xxh3_128=hashed)

    def _output(self, name: str, array: np.ndarray, right: Truth | None) -> Output:
        key = f"{len(self.calls)}.{name}"
        self.expected[key] = array.copy()
        dtypes = [tensors.dtype_name(array)]
        if not self.reference.exact:
            # A wider type has every value of the narrow one.
            wider = {"I32": "I64", "BF16": "F32", "F16": "F32", "F8_E4M3": "F32", "F8_E5M2": "F32"}
            wide = "F64" if name.endswith("_read") else wider.get(dtypes[0])
            # K/V codes have one type.
            dtypes += [wide] if wide and "." not in name else []
        if right is not None:
            self.expected[f"{key}.truth"], self.expected[f"{key}.bound"] = right.values, right.bound
        return Output(key=key, dtypes=dtypes, shape=list(array.shape), measure=right.measure if right else "")


class Replay:
    """Answers the ``calls`` of a case from ``outputs``: key -> array.

    A call whose inputs are not those that were recorded raises ValueError, and ``differs`` says which.
    """

    def __init__(self, calls: list[Call], outputs: Mapping[str, np.ndarray]) -> None:
        self.calls, self.outputs = calls, outputs
        self.made = 0
        self.differs = ""

    def called(self, operation: str, arguments: dict[str, Any]) -> Any:
        """The result that ``outputs`` has for this call. Raises ValueError."""
        self.differs = self.differs or self._difference(operation, arguments)
        if self.differs:
            raise ValueError(self.differs)
        call, number = self.calls[self.made], self.made
        self.made += 1
        if call.gives is not None:
            return Handle(call.gives)
        into = written(operation, arguments)
        names = (*into, *RESULTS.get(operation, ()))
        if set(names) != set(call.outputs):
            raise ValueError(f"call {number}, {operation}: outputs are {', '.join(names)}: not those of the index")
        arrays = {name: self._array(number, call, name) for name in names}
        for name, array in into.items():
            if array.shape != arrays[name].shape or array.dtype != arrays[name].dtype:
                raise ValueError(f"call {number}, {operation}: {name} is not {array.dtype} {list(array.shape)}")
            array[...] = arrays[name]
        found = [np.array(arrays[name]) for name in RESULTS.get(operation, ())]
        return True if not found else found[0] if len(found) == 1 else tuple(found)

    def _array(self, number: int, call: Call, name: str) -> np.ndarray:
        output = call.outputs[name]
        if output.key not in self.outputs:
            raise ValueError(f"call {number}, {call.operation}: there is no tensor {output.key!r}")
        return self.outputs[output.key]

    def _difference(self, operation: str, arguments: dict[str, Any]) -> str:
        """How a call differs from the recorded one, empty where it does not."""
        number = self.made
        if number >= len(self.calls):
            return f"call {number}, {operation}: the index has {number} calls of this case"
        call, given = self.calls[number], flat(arguments)
        if call.operation != operation:
            return f"call {number}: is of {operation}, in the index of {call.operation}"
        for what, ours, theirs in (
            ("options", given.options, call.options),
            ("handles", given.handles, call.handles),
            ("inputs", sorted(given.tensors), sorted(call.inputs)),
        ):
            if ours != theirs:
                return f"call {number}, {operation}: {what} are {ours}, in the index {theirs}"
        for name, array in given.tensors.items():
            if tensors.digest(array) != call.inputs[name].xxh3_128:
                return f"call {number}, {operation}: {name} differs from the exported one"
        return ""


def _named(operation: str, result: Any) -> dict[str, np.ndarray]:
    names = RESULTS.get(operation, ())
    if not names:
        return {}
    return dict(zip(names, result if len(names) > 1 else (result,), strict=True))
