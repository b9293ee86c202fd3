"""Judging what an engine wrote beside exported cases, with the checks of the suite.

Truth is made again from the case strings; of the files only the engine's outputs count, and the hashes of the inputs
show that the engine was given what is judged. What an engine copied from expected.safetensors is right, of course: the
verdict is about the files, not about how they came to be.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from .. import suite
from . import tensors
from .calls import Replay
from .export import Engine
from .index import OUTPUTS, Case, Index, declared_by
from .untrusted import inside


def check(
    folder: Path,
    index: Index,
    chosen: Iterable[str] | None = None,
    on_result: Callable[[suite.Result], object] = lambda result: None,
) -> suite.Tally:
    """The :class:`~..suite.Tally` of the cases of ``index``, of those ``chosen`` by case string if given.

    A case without outputs.safetensors is unsupported, one whose file does not fit has failed. Raises ValueError on a
    case that is not in the index.
    """
    names = None if chosen is None else list(chosen)
    known = {case.case for case in index.cases}
    for name in names or ():
        if name not in known:
            raise ValueError(f"--case = {name!r}: is not in the index")
    engine = Engine(index.arithmetic, index.storage, declared_by(index), index.operations, index.schedules)
    tally = suite.Tally()
    for case in index.cases:
        if names is None or case.case in names:
            result = _judge(folder, engine, case)
            tally.results.append(result)
            on_result(result)
    return tally


def _judge(root: Path, engine: Engine, case: Case) -> suite.Result:
    parsed = suite.parse(case.case)
    try:
        outputs = read_outputs(root, case)
    except FileNotFoundError:
        return suite.Result(parsed, "unsupported", 0.0, reason=f"there is no {OUTPUTS}")
    except (ValueError, OSError) as error:
        reason = suite.printable(f"{case.folder}/{OUTPUTS}: {error}")
        return suite.Result(parsed, "failed", 0.0, reason=reason)
    return suite.run_case(parsed, engine.backend(Replay(case.calls, outputs).called))


def read_outputs(root: Path, case: Case) -> dict[str, np.ndarray]:
    """The engine's outputs of ``case`` by key, mapped; every one is in the index, with its dtype and shape.

    Raises FileNotFoundError where there is no file, ValueError on one that does not fit, and OSError.
    """
    found = tensors.read(inside(root, f"{case.folder}/{OUTPUTS}"))
    known = {output.key: output for call in case.calls for output in call.outputs.values()}
    for name, array in found.items():
        if name not in known:
            raise ValueError(f"tensor {name[:100]!r}: is no output of this case")
        dtype, shape = tensors.dtype_name(array), list(array.shape)
        if dtype not in known[name].dtypes or shape != known[name].shape:
            allowed = f"{' or '.join(known[name].dtypes)} {known[name].shape}"
            raise ValueError(f"tensor {name!r}: is {dtype} {shape}: must be {allowed}")
    return found
