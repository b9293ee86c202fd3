"""The definitions of QSA's operations in the FlashInfer Trace schema, for the number types of an engine.

The name of a definition says its number types where they are not float32: ``qsa_attend_cells_h24_kv2_d256__q-bf16``.
"""

import inspect
from typing import Any, NamedTuple

from qsa.reference.formats import GROUP
from qsa.reference.geometry import REAL

from ..contract.number_types import NUMBER_TYPES
from .schema import DTYPE_NAMES, AxisConst, AxisVar, Definition, TensorSpec

OP_TYPE = "qsa"

CONST = {
    "num_qo_heads": REAL.n_head,
    "num_kv_heads": REAL.n_head_kv,
    "head_dim": REAL.head_dim,
    "scale_groups": REAL.head_dim // GROUP["int8"],
    "idx_heads": REAL.idx_heads,
    "idx_dim": REAL.idx_dim,
    "max_width": REAL.max_width,
    "step_fields": 4,
}

VAR = {
    "rows": "query tokens of the call",
    "num_cells": "cells whose K and V are given",
    "num_pages": "physical pages",
    "page_size": "cells of a page",
    "logical_pages": "entries of the page table",
    "max_blocks": "blocks of 4 cells that fit",
}


class Kind(NamedTuple):
    """An operation of the schema. ``inputs`` and ``outputs``: name -> (axes separated by spaces, dtype). A dtype in
    capitals is the stage of ``contract.Types`` whose number type it has. ``reference`` is the name of the function in
    ``references.py``, which is right and so is not loaded with a solution."""

    operation: str
    inputs: dict[str, tuple[str, str]]
    outputs: dict[str, tuple[str, str]]
    reference: str


_Q, _OUT = ("rows num_qo_heads head_dim", "QUERY"), ("rows num_qo_heads head_dim", "OUTPUT")
_STEPS, _IDS = ("rows step_fields", "int32"), ("rows max_width", "int32")
_POOL, _CELL = "num_pages num_kv_heads page_size", "num_cells num_kv_heads head_dim"
_ROW = {"table": ("logical_pages", "int32"), "ids": _IDS, "steps": _STEPS}
_SCORES = ("rows max_blocks", "INDEX_SCORES")

KINDS = {
    "qsa_attend_cells_h24_kv2_d256": Kind(
        "attend",
        {"q": _Q, "k": (_CELL, "float32"), "v": (_CELL, "float32"), "positions": ("num_cells", "int64"), "ids": _IDS}
        | {"steps": _STEPS},
        {"out": _OUT},
        "attend_cells",
    ),
    "qsa_attend_int8_h24_kv2_d256": Kind(
        "attend",
        {"q": _Q}
        | {
            f"{side}_{part}": spec
            for side in "kv"
            for part, spec in {
                "codes": (f"{_POOL} head_dim", "int8"),
                "scale": (f"{_POOL} scale_groups", "float16"),
            }.items()
        }
        | _ROW,
        {"out": _OUT},
        "attend_int8",
    ),
    "qsa_attend_fp16_h24_kv2_d256": Kind(
        "attend",
        {"q": _Q} | {f"{side}_codes": (f"{_POOL} head_dim", "float16") for side in "kv"} | _ROW,
        {"out": _OUT},
        "attend_fp16",
    ),
    "qsa_block_scores_h4_d128": Kind(
        "block_scores",
        {
            "q_idx": ("rows idx_heads idx_dim", "INDEX_QUERY"),
            "pooled": ("max_blocks idx_dim", "float32"),
            "steps": _STEPS,
        },
        {"scores": _SCORES},
        "block_scores",
    ),
    "qsa_select_blocks_b512_r4": Kind("select", {"scores": _SCORES, "steps": _STEPS}, {"ids": _IDS}, "select_blocks"),
    "qsa_select_cells_c2051_r4": Kind("select", {"scores": _SCORES, "steps": _STEPS}, {"ids": _IDS}, "select_cells"),
}
"""Name of a definition in float32 -> its :class:`Kind`."""


class Typed(NamedTuple):
    """A definition's name and kind, and the number types (stage of ``contract.Types`` -> name) that are not float32."""

    name: str
    kind: Kind
    types: dict[str, str]

    def dtype(self, tensor: str) -> str:
        """The name of a tensor's dtype in the schema."""
        dtype = (self.kind.inputs | self.kind.outputs)[tensor][1]
        return _schema_name(self.types.get(dtype.lower(), "float32")) if dtype.isupper() else dtype


def _schema_name(number_type: str) -> str:
    return DTYPE_NAMES[NUMBER_TYPES[number_type].dtype.name]


def typed(base: str, types: Any) -> Typed:
    """The definition ``base`` of :data:`KINDS` for the number ``types`` of a declaration."""
    kind, found, name = KINDS[base], {}, base
    for tensor, (_, dtype) in (kind.inputs | kind.outputs).items():
        stage = dtype.lower()
        if dtype.isupper() and getattr(types, stage) != "float32":
            found[stage] = getattr(types, stage)
            name += f"__{tensor}-{found[stage]}"
    return Typed(name, kind, found)


def named(name: str) -> Typed:
    """The definition of a name that :func:`typed` gives. Raises ValueError on another one."""
    base, *parts = name.split("__")
    kind, types = KINDS.get(base), {}
    for part in parts:
        tensor, _, number_type = part.partition("-")
        stage = (kind.inputs | kind.outputs).get(tensor, ("", ""))[1] if kind else ""
        if not stage.isupper() or number_type not in NUMBER_TYPES:
            kind = None
            break
        types[stage.lower()] = number_type
    if kind is None:
        raise ValueError(f"definition {name[:200]!r}: known are {', '.join(KINDS)}, with __TENSOR-TYPE behind")
    return Typed(name, kind, types)


def definition(which: Typed) -> Definition:
    """The :class:`Definition` of ``which``."""
    kind = which.kind

    def spec(tensors: dict[str, tuple[str, str]]) -> dict[str, TensorSpec]:
        return {name: TensorSpec(axes.split(), which.dtype(name)) for name, (axes, _) in tensors.items()}

    used = dict.fromkeys(axis for axes, _ in (kind.inputs | kind.outputs).values() for axis in axes.split())
    # Imported here: a process that runs a solution has no right answers.
    from . import references

    function = getattr(references, kind.reference)
    text = inspect.getsource(function).replace(f"def {kind.reference}(", "def run(", 1)
    # A definition's source is read alone, where no annotation is defined.
    text = text.replace(": Any", "").replace(" -> Any", "")
    output = next(iter(kind.outputs))
    text = text.replace("return out.to(torch.float32)", f"return out.to(torch.{which.dtype(output)})")
    return Definition(
        name=which.name,
        op_type=OP_TYPE,
        axes={axis: AxisConst(CONST[axis]) if axis in CONST else AxisVar(VAR[axis]) for axis in used},
        inputs=spec(kind.inputs),
        outputs=spec(kind.outputs),
        reference=text,
        tags=["model:qwen4_exp", "status:verified"],
        description=inspect.getdoc(function),
    )
