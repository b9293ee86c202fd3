"""FlashInfer Trace, the public schema of FlashInfer-Bench, as typed structs: definitions, workloads, solutions.

Source: the documentation of FlashInfer-Bench (docs/flashinfer_trace) and its package's models (0.1.2), which a test
holds these to where the package is installed.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from qsa.reference.validation import InvalidError, convert

from ..cases.untrusted import inside, read_json

Name = Annotated[str, Meta(min_length=1, description="a string, not empty")]
Count = Annotated[int, Meta(ge=0, description="an integer, 0 or more")]

DTYPE_NAMES = {
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float8_e4m3fn": "float8_e4m3fn",
    "float8_e5m2": "float8_e5m2",
    "int64": "int64",
    "int32": "int32",
    "int16": "int16",
    "int8": "int8",
    "bool": "bool",
}
"""Name of a dtype of NumPy or ml_dtypes -> its name in the schema, which has no unsigned integers."""

LARGEST = 4 << 20
"""Bytes of a solution's file at most."""


class AxisConst(msgspec.Struct, frozen=True, tag="const", tag_field="type"):
    """An axis of one size."""

    value: Count
    description: str | None = None


class AxisVar(msgspec.Struct, frozen=True, tag="var", tag_field="type"):
    """An axis whose size every workload gives."""

    description: str | None = None


class TensorSpec(msgspec.Struct, frozen=True):
    """Names of axes, and a dtype."""

    shape: list[Name] | None
    dtype: Name
    description: str | None = None


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """An operation: axes, inputs and outputs in order, and its reference: Python code with a function ``run``."""

    name: Name
    op_type: Name
    axes: dict[Name, AxisConst | AxisVar]
    inputs: dict[Name, TensorSpec]
    outputs: dict[Name, TensorSpec]
    reference: Name
    tags: list[Name] = []
    description: str | None = None
    constraints: list[Name] = []


class SafetensorsInput(msgspec.Struct, frozen=True, tag="safetensors", tag_field="type"):
    """An input in a file, by its path from the root and its key."""

    path: Name
    tensor_key: Name


class Workload(msgspec.Struct, frozen=True):
    """Sizes of the axes, and where every input comes from."""

    axes: dict[str, Count]
    inputs: dict[str, SafetensorsInput]
    uuid: Name


class WorkloadTrace(msgspec.Struct, frozen=True):
    """A line of a file of workloads: a trace that nothing has run yet."""

    definition: Name
    workload: Workload
    solution: None = None
    evaluation: None = None


class SourceFile(msgspec.Struct, frozen=True):
    """A source file: its relative path, and its text."""

    path: Name
    content: Name


class BuildSpec(msgspec.Struct, frozen=True):
    """How a solution is run. ``destination_passing_style``: outputs are the last arguments, else they are returned."""

    language: Literal["python", "triton", "cpp", "cuda", "tilelang"]
    target_hardware: Annotated[list[str], Meta(min_length=1, description="a list with an entry at least")]
    entry_point: Annotated[str, Meta(pattern=r"^[^:]+::[^:]+$", description="FILE.py::FUNCTION")]
    dependencies: list[Name] = []
    destination_passing_style: bool = True
    binding: str | None = None


class Solution(msgspec.Struct, frozen=True):
    """An implementation of a definition, with its sources."""

    name: Name
    definition: Name
    author: Name
    spec: BuildSpec
    sources: Annotated[list[SourceFile], Meta(min_length=1, description="a list with an entry at least")]
    description: str | None = None


def read_solution(path: Path) -> Solution:
    """The solution in a file; nothing of it is run. Raises ValueError that names the part which does not fit, and
    OSError."""
    try:
        solution = convert(_lower_language(read_json(path, LARGEST)), Solution)
    except InvalidError as error:
        raise ValueError(f"{path.name}: {error}") from None
    paths = [source.path for source in solution.sources]
    for each in paths:
        try:
            inside(Path(), each)
        except ValueError as error:
            raise ValueError(f"{path.name}: sources: {error}") from None
    if len(set(paths)) != len(paths):
        raise ValueError(f"{path.name}: sources: two have one path")
    entry = solution.spec.entry_point.split("::")[0]
    if entry not in paths:
        raise ValueError(f"{path.name}: spec.entry_point: {entry!r} is none of the sources: {', '.join(paths)}")
    return solution


def _lower_language(data: Any) -> Any:
    """Older files write ``Triton`` for ``triton``."""
    spec = data.get("spec") if isinstance(data, dict) else None
    if isinstance(spec, dict) and isinstance(spec.get("language"), str):
        return data | {"spec": spec | {"language": spec["language"].lower()}}
    return data
