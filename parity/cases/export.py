"""Writing cases into a folder: every case is run on the reference, and its calls are recorded.

A case is left out, with the reason, where the engine lacks its functions or has not declared its inputs, where it feeds
a kernel's own results into the next call (a file has the calls of one kernel only), and where it runs a whole model.
"""

import importlib.metadata
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from qsa.golden import files
from qsa.reference.exact import CONTRACT

from .. import suite
from ..backend import Backend
from ..contract import Declaration, Kernel
from . import tensors
from .calls import Recorder, Replay
from .functions import OFFERED, FileFunctions
from .index import EXPECTED, INPUTS, NAME, TEXTS, Case, Index, LeftOut, Storage, json_text, runs_a_model
from .page import README

MODULES = tuple(name for name in suite.MODULES if name not in TEXTS)
"""Modules whose cases can be exported."""


class Engine:
    """What an engine behind files is: its ``arithmetic``, ``storage``, functions (``operations``), ``declaration``, and
    whether its calls name ``schedules``."""

    def __init__(
        self,
        arithmetic: str,
        storage: Storage,
        declaration: Declaration,
        operations: Iterable[str] | None = None,
        schedules: bool = False,
    ) -> None:
        allowed = OFFERED[storage]
        self.operations = allowed if operations is None else tuple(operations)
        for name in self.operations:
            if name not in allowed:
                raise ValueError(f"--op = {name!r}: with --storage {storage} allowed are {', '.join(allowed)}")
        if storage == "own" and arithmetic == "exact":
            raise ValueError("--storage = 'own': goes with --arithmetic float: exact is defined on codes of our pools")
        if arithmetic not in declaration.arithmetics:
            declared = ", ".join(declaration.arithmetics)
            raise ValueError(f"--arithmetic = {arithmetic!r}: the declaration has {declared}")
        # Arrays in files are of no library and on no device.
        self.declaration = replace(declaration, arrays="numpy", device="cpu")
        self.arithmetic, self.storage, self.schedules = arithmetic, storage, schedules

    def backend(self, called: Callable[[str, dict[str, Any]], Any]) -> Backend:
        """A new backend whose calls go to ``called``. Every case has its own: inputs that a module keeps for a backend
        would hold storage of another case."""
        functions = FileFunctions(self.operations, self.declaration, self.schedules, called)
        backend = Backend("files", self.arithmetic, Kernel(functions, self.declaration))
        # The calls of a case are what is in its file.
        backend.experiments = False
        return backend


class _Done(BaseException):
    """The last recorded call was made: nothing else is of interest. No check catches it."""


def export(
    folder: Path, engine: Engine, cases: Iterable[suite.Case], on_case: Callable[[str, str], object] = print
) -> Index:
    """Write ``cases`` for ``engine`` to ``folder``, which is new or empty; ``on_case`` gets (case string, reason), the
    reason empty for a case that was written.

    Raises ValueError where the folder holds something or no case could be exported, and OSError.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"DIR = {str(folder)!r}: is not empty: give a new folder")
    written: list[Case] = []
    left_out: list[LeftOut] = []
    for each in cases:
        recorder, reason = record(engine, each)
        if reason:
            left_out.append(LeftOut(case=each.text, reason=reason))
        else:
            written.append(_write(folder, f"cases/{len(written):04}", each, recorder))
        on_case(each.text, reason)
    if not written:
        reasons = sorted({each.reason for each in left_out})
        raise ValueError(f"no case can be exported: {'; '.join(reasons[:5]) or 'there is none'}")
    index = Index(
        kind="qsa-cases",
        version=1,
        made_by=f"qsa-parity {_version()}",
        contract=CONTRACT,
        arithmetic="exact" if engine.arithmetic == "exact" else "float",
        storage=engine.storage,
        operations=list(engine.operations),
        schedules=engine.schedules,
        declaration=engine.declaration,
        cases=written,
        left_out=left_out,
    )
    files.write(folder / "README.txt", README)
    # Last: a folder without an index is not one of cases.
    files.write(folder / NAME, json_text(index))
    return index


def _version() -> str:
    try:
        return importlib.metadata.version("qsa-parity")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def record(engine: Engine, case: suite.Case) -> tuple[Recorder, str]:
    """(the recorded calls of ``case``, the reason why it cannot be exported or ""). Raises ValueError where the case
    ends in an error: that is a fault of ours, and no reason."""
    recorder = Recorder(engine.arithmetic, engine.declaration)
    if runs_a_model(case):
        return recorder, f"{case.module}: runs a model, whose every call depends on results of those before it"
    result = suite.run_case(case, engine.backend(recorder.called))
    if result.status == "unsupported":
        return recorder, result.reason
    if result.status == "failed":
        if result.worst is None:
            raise ValueError(f"{case.text}: {result.reason}")
        return recorder, f"the reference itself does not pass as such an engine: {next(iter(result.worst.lines()))}"
    return recorder, _forwarding(engine, case, recorder)


def _forwarding(engine: Engine, case: suite.Case, recorder: Recorder) -> str:
    """Why the calls of ``case`` depend on its results, "" where they do not: with other results, its inputs are the
    same."""
    if sum(bool(call.outputs) for call in recorder.calls) < 2:
        return ""
    others = {key: _other(array) for key, array in recorder.expected.items()}
    replay = Replay(recorder.calls, others)

    def called(operation: str, arguments: dict[str, Any]) -> Any:
        result = replay.called(operation, arguments)
        if replay.made == len(recorder.calls):
            raise _Done
        return result

    try:
        suite.run_case(case, engine.backend(called))
    except _Done:
        return ""
    if replay.differs:
        return f"feeds the kernel's own results into a later call: {replay.differs}"
    return f"stops after call {replay.made - 1} of {len(recorder.calls)} where that gives another result"


def _other(array: np.ndarray) -> np.ndarray:
    """Another result of the same shape, which any check can read: floats a little larger, of ids and codes one lost."""
    other = array.copy()
    if array.dtype.kind in "iu":
        other.reshape(-1)[:1] = -1 if array.dtype.kind == "i" else 255
    else:
        other = (array.astype(np.float64) * (1 + 2.0**-5)).astype(array.dtype)
    return other


def _write(root: Path, name: str, case: suite.Case, recorder: Recorder) -> Case:
    folder = root / name
    folder.mkdir(parents=True)
    tensors.write(folder / INPUTS, recorder.inputs)
    tensors.write(folder / EXPECTED, recorder.expected)
    return Case(case=case.text, folder=name, calls=recorder.calls)
