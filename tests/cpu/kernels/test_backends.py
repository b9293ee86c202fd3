"""Our backends fit the protocols of ``kernels/backend.py``.

``inspect`` compares parameters. mypy reads this file too (``support.type_check``) and compares types: to mypy a module
is a value that may fit a protocol.
"""

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

import qsa.kernels.cpu
import qsa.kernels.cpu.sampler
import qsa.reference.exact
from qsa.kernels.backend import Backend, DeviceSampler, Layers, Operations, Sampler
from qsa.kernels.cuda import simulator
from qsa.kernels.ops import OPERATIONS

EXACT: Operations = qsa.reference.exact
EXACT_LAYERS: Layers = qsa.reference.exact.layers
CPU: Backend = qsa.kernels.cpu
CPU_LAYERS: Layers = qsa.kernels.cpu.layers
CPU_SAMPLER: Sampler = qsa.kernels.cpu.sampler

if TYPE_CHECKING:
    import qsa.kernels.cuda.backend

    CUDA: Backend = qsa.kernels.cuda.backend
    CUDA_LAYERS: Layers = qsa.kernels.cuda.backend.layers
    CUDA_SAMPLER: DeviceSampler = qsa.kernels.cuda.backend.row_sampler

SIMULATED = simulator.load("backend")
"""The CUDA backend as it stands in the simulator: the same functions, importable without the CUDA wheels."""

FITS = [
    (qsa.reference.exact, Operations),
    (qsa.reference.exact.layers, Layers),
    (qsa.kernels.cpu, Backend),
    (qsa.kernels.cpu.layers, Layers),
    (qsa.kernels.cpu.sampler, Sampler),
    (SIMULATED, Backend),
    (SIMULATED.layers, Layers),
    (SIMULATED.row_sampler, DeviceSampler),
]


def functions(protocol: type) -> Iterator[str]:
    """Names of a protocol's functions, those of its bases included."""
    for name in dir(protocol):
        if not name.startswith("_") and inspect.isfunction(getattr(protocol, name)):
            yield name


def shape(function: Any) -> list[tuple[str, Any, Any]]:
    """(name, kind, default) of a function's parameters, without ``self``."""
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in parameters if p.name != "self"]


def differences(module: ModuleType, protocol: type) -> list[str]:
    """What of ``module`` does not fit ``protocol``, a line for each function."""
    found = []
    for name in functions(protocol):
        function = getattr(module, name, None)
        if not callable(function):
            found.append(f"{name}: missing")
            continue
        asked, own = shape(getattr(protocol, name)), shape(function)
        in_order = [p for p in asked if p[1] is not inspect.Parameter.KEYWORD_ONLY]
        further = [p for p in own if p not in asked]
        if own[: len(in_order)] != in_order or [p for p in own if p in asked] != asked:
            found.append(f"{name}: {own}: {asked} is required")
        elif any(default is inspect.Parameter.empty for _, _, default in further):
            found.append(f"{name}: {further}: a further parameter must have a default")
    return found


@pytest.mark.parametrize(("module", "protocol"), FITS, ids=lambda x: x.__name__.split(".", 1)[-1])
def test_a_backend_fits_its_protocol(module: ModuleType, protocol: type) -> None:
    assert differences(module, protocol) == []


def test_the_protocols_have_the_operations_and_the_layers() -> None:
    assert set(functions(Operations)) == set(functions(Backend)) == set(OPERATIONS)
    assert sorted(functions(Layers)) == sorted(qsa.reference.exact.layers.__all__)


def test_a_difference_is_found() -> None:
    module = ModuleType("other")
    for name in functions(Backend):
        setattr(module, name, getattr(qsa.kernels.cpu, name))
    assert differences(module, Backend) == []
    module.select = lambda scores, steps: None  # type: ignore[attr-defined]
    module.append_kv = lambda k, v, kv, steps, slots=None, *, more: None  # type: ignore[attr-defined]
    del module.append_index
    assert [line.split(":")[0] for line in differences(module, Backend)] == ["append_index", "append_kv", "select"]
