"""Finding a backend by the name that ``--backend`` was given.

========================  ===========================================================================================
``cpu``, ``exact``, ...   one of our own (``qsa.kernels.ops.BACKENDS``)
``name``                  an installed entry point of the group ``qsa.backends``
``package.module``        an importable module, also of a file in the current folder
``module:attribute``      an object in a module, or in a file; a class is called without arguments
``path/to/file.py``       a file; its folder can be imported from
``path/to/file.json``     a solution in the FlashInfer Trace schema (``trace/solution.py``)
========================  ===========================================================================================
"""

import hashlib
import importlib
import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from typing import Any

from qsa.kernels.ops import BACKENDS

from .operations import FUNCTIONS

GROUP = "qsa.backends"
"""Group of entry points by which an installed package offers a backend."""


def load(name: str) -> Any:
    """The backend ``name``: a module or an object. Raises ValueError, whatever its import raises, naming the cause."""
    try:
        found = _find(name)
        # A backend may load an operation when it is first asked for, so asking can fail as importing does.
        offered = [each for each in FUNCTIONS if callable(getattr(found, each, None))]
    except ValueError:
        raise
    except ImportError as error:
        text = f"backend = {name!r}: {error}"
        if error.name is None or name.startswith(error.name):
            text += f"; known are {', '.join(BACKENDS)}, or a module's name, module:attribute, file.py"
        raise ValueError(text) from error
    except Exception as error:
        # A module under development may fail in any way while it is imported.
        raise ValueError(f"backend = {name!r}: {type(error).__name__} while importing it: {error}") from error
    if not offered:
        raise ValueError(f"backend = {name!r}: defines none of {', '.join(FUNCTIONS)}")
    return found


def _find(name: str) -> Any:
    place, _, attribute = name.partition(":")
    found = _place(place)
    for part in attribute.split(".") if attribute else ():
        if not hasattr(found, part):
            raise ValueError(f"backend = {name!r}: {place} has no attribute {part!r}")
        found = getattr(found, part)
    return found() if isinstance(found, type) else found


def _place(place: str) -> Any:
    """The module, file or entry point that stands before the colon."""
    if place in BACKENDS:
        return importlib.import_module(BACKENDS[place])
    if place.endswith(".py"):
        return _file(Path(place))
    if place.endswith(".json"):
        # Imported here: it needs the contract.
        from ..trace.solution import load as load_solution

        return load_solution(Path(place))
    for point in importlib.metadata.entry_points(group=GROUP, name=place):
        return point.load()
    return importlib.import_module(place)


def _file(path: Path) -> Any:
    """The module of a file, loaded once under a name of its own."""
    path = path.resolve()
    if not path.is_file():
        raise ValueError(f"backend = {str(path)!r}: there is no such file")
    name = f"qsa_backend_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"backend = {str(path)!r}: cannot be loaded as a module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
