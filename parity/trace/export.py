"""Cases as workloads of the FlashInfer Trace schema: definitions, workloads, tensors, and a manifest.

=====================================  =============================================================================
``definitions/qsa/NAME.json``          a definition with its reference
``workloads/qsa/NAME.jsonl``           a line for each workload of it
``blob/workloads/qsa/NAME/*``          the tensors of a workload
``manifest.json``                      ours: the case and the call that each workload is of, and what was left out
=====================================  =============================================================================
"""

import json
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from qsa.golden import files

from .. import suite
from ..cases import tensors
from ..cases.calls import Recorder
from ..cases.export import Engine, record
from ..cases.index import Call, LeftOut
from ..contract import Declaration
from .definitions import CONST, OP_TYPE, Typed, definition, typed
from .schema import SafetensorsInput, Workload, WorkloadTrace

SPACE = uuid.UUID("6b0f4f4e-9d0c-5c6e-8f5a-2f6a3a0c7d11")
"""Namespace of the workloads' identifiers: the same case has the same one everywhere."""


class Entry(msgspec.Struct, frozen=True):
    """A workload of the manifest: its identifier and definition, and the call of the case that it is."""

    uuid: str
    definition: str
    case: str
    call: int


class Manifest(msgspec.Struct, frozen=True):
    """What ``manifest.json`` holds."""

    workloads: list[Entry]
    left_out: list[LeftOut]


def export(
    folder: Path, engine: Engine, cases: Iterable[suite.Case], on_case: Callable[[str, str], object] = print
) -> Manifest:
    """Write ``cases`` for ``engine`` to ``folder``, which is new or empty; ``on_case`` gets (case string, reason), the
    reason empty for a case that was written.

    Raises ValueError where the folder holds something, nothing could be exported, or the engine's ids are blocks (the
    definitions have cells), and OSError.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"DIR = {str(folder)!r}: is not empty: give a new folder")
    if "blocks" in (engine.declaration.ids, engine.declaration.attend_ids):
        raise ValueError("declaration.ids, attend_ids: 'blocks': the definitions of this format have cells")
    entries: list[Entry] = []
    left_out: list[LeftOut] = []
    lines: dict[str, list[str]] = {}
    used: dict[str, Typed] = {}
    for case in cases:
        recorder, reason = record(engine, case)
        made, reasons = ([], [reason]) if reason else _workloads(recorder, engine.declaration)
        for number, which, given in made:
            used[which.name] = which
            trace = _write(folder, case.text, number, which, given)
            lines.setdefault(which.name, []).append(msgspec.json.encode(trace).decode())
            entries.append(Entry(trace.workload.uuid, which.name, case.text, number))
        left_out += [LeftOut(case=case.text, reason=each) for each in dict.fromkeys(reasons)]
        on_case(case.text, "" if made else "; ".join(dict.fromkeys(reasons)))
    if not entries:
        raise ValueError(f"no case can be exported: {'; '.join(sorted({each.reason for each in left_out})[:5])}")
    for name, which in used.items():
        plain = msgspec.to_builtins(definition(which))
        files.write(folder / "definitions" / OP_TYPE / f"{name}.json", _text(plain))
        files.write(folder / "workloads" / OP_TYPE / f"{name}.jsonl", "".join(f"{line}\n" for line in lines[name]))
    manifest = Manifest(entries, left_out)
    files.write(folder / "manifest.json", _text(msgspec.to_builtins(manifest)))
    return manifest


def _text(plain: Any) -> str:
    return json.dumps(plain, indent=1, allow_nan=False) + "\n"


def _workloads(
    recorder: Recorder, declaration: Declaration
) -> tuple[list[tuple[int, Typed, dict[str, np.ndarray]]], list[str]]:
    """((number of the call, its definition, its inputs) of every call that has a definition, reasons of the others)."""
    made, reasons = [], []
    for number, call in enumerate(recorder.calls):
        base, given = _inputs(recorder, call)
        if given is None:
            reasons += [base] if base else []
        else:
            made.append((number, typed(base, declaration.types), given))
    return made, reasons


def _inputs(recorder: Recorder, call: Call) -> tuple[str, dict[str, np.ndarray] | None]:
    """(name of the definition, inputs by name); (the reason or "", None) where there is none."""
    given = {name: recorder.inputs[tensor.key] for name, tensor in call.inputs.items()}
    options, operation = call.options, call.operation
    if operation == "attend":
        if "slots" in given:
            return "attend: several slots: no definition has them", None
        if options.get("schedule", "batch") != "batch":
            return "attend: a schedule: no definition has one", None
        if call.handles:
            cells = _own_cells(recorder, call.handles["kv"])
            return "qsa_attend_cells_h24_kv2_d256", {
                "q": given["q"],
                **cells,
                "ids": given["ids"],
                "steps": given["steps"],
            }
        format = options["kv.format"]
        if format not in ("int8", "fp16"):
            return f"attend: format {format}: the schema has no unsigned codes", None
        parts = ("k.codes", "k.scale", "v.codes", "v.scale") if format == "int8" else ("k.codes", "v.codes")
        pool = {part.replace(".", "_"): given[f"kv.{part}"] for part in parts}
        others = {"table": given["kv.table"], "ids": given["ids"], "steps": given["steps"]}
        return f"qsa_attend_{format}_h24_kv2_d256", {"q": given["q"], **pool, **others}
    if operation == "block_scores":
        if call.handles:
            return "block_scores: an own index: its definition has pooled keys", None
        if options.get("index.format", "fp32") != "fp32":
            return "block_scores: encoded keys: its definition has float32 ones", None
        if recorder.declaration.tail_score:
            return "block_scores: with the tail's score (tail_score): its definition has none", None
        return "qsa_block_scores_h4_d128", {
            "q_idx": given["q_idx"],
            "pooled": given["index.pooled"],
            "steps": given["steps"],
        }
    if operation == "select":
        name = "qsa_select_blocks_b512_r4" if options.get("rule", "blocks") == "blocks" else "qsa_select_cells_c2051_r4"
        return name, {"scores": given["scores"], "steps": given["steps"]}
    if operation in ("cache", "append", "read"):
        # Part of an attend, whose definition has the cells.
        return "", None
    return f"{operation}: has no definition: it writes in place, or is a call of several operations", None


def _own_cells(recorder: Recorder, handle: int) -> dict[str, np.ndarray]:
    """``k``, ``v`` and ``positions``, ascending, of everything that was appended to a handle."""
    appends = [call for call in recorder.calls if call.operation == "append" and call.handles["cache"] == handle]
    parts = {
        name: np.concatenate([recorder.inputs[call.inputs[name].key] for call in appends])
        for name in ("k", "v", "positions")
    }
    order = np.argsort(parts["positions"], kind="stable")
    return {name: part[order] for name, part in parts.items()}


def _write(root: Path, case: str, number: int, which: Typed, given: dict[str, np.ndarray]) -> WorkloadTrace:
    name = str(uuid.uuid5(SPACE, f"{which.name} {case} {number}"))
    path = f"blob/workloads/{OP_TYPE}/{which.name}/{which.name}_{name}.safetensors"
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    tensors.write(root / path, given)
    axes: dict[str, int] = {}
    for tensor, (shape, _) in which.kind.inputs.items():
        axes.update(zip(shape.split(), given[tensor].shape, strict=True))
    var = {axis: size for axis, size in axes.items() if axis not in CONST}
    sources = {tensor: SafetensorsInput(path, tensor) for tensor in which.kind.inputs}
    return WorkloadTrace(which.name, Workload(var, sources, name))
