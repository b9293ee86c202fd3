"""Shared by the commands that run a model: its options and their checks, the text that is read, the progress bar."""

import argparse
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from qsa.golden.families import text
from qsa.kernels.switches import ARITHMETICS
from qsa.reference.geometry import RULES
from qsa.reference.index import check_index_format

from ..environment import default_backend, facts
from ..progress import shown
from ..running.compiling import compile_missing


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose model, backend, arithmetic and K/V."""
    parser.add_argument("--model", metavar="DIR", help="checkpoint folder (default: the golden model)")
    parser.add_argument("--backend", metavar="NAME", help="cpu, cuda or reference (default: cuda where there is a GPU)")
    parser.add_argument("--arithmetic", metavar="exact|float", help="default: QSA_ARITHMETIC, else exact")
    parser.add_argument("--rule", default="blocks", metavar="blocks|cells", help="selection rule (default: blocks)")
    parser.add_argument("--kv-format", default="int8", metavar="NAME", help="int8, q4_0, k8v4; float: fp16 too")
    parser.add_argument("--index-format", default="fp32", metavar="NAME", help="of indexer keys: fp32, int16")
    parser.add_argument("--page-size", type=int, default=4, metavar="N", help="cells of a K/V page (default: 4)")
    parser.add_argument("--capacity", type=int, metavar="N", help="cells of the K/V (default: as many as are needed)")
    parser.add_argument("--ids", action="store_true", help="text is token ids, with spaces or commas between them")


def check_choice(option: str, value: object, allowed: Iterable[str]) -> None:
    """Raises ValueError, naming ``option``, unless ``value`` is one of ``allowed``."""
    allowed = list(allowed)
    if value not in allowed:
        raise ValueError(f"{option} = {value!r}: allowed are {', '.join(allowed)}")


def directory(arguments: argparse.Namespace) -> Path:
    """Folder of the model that the options choose."""
    return text.MODEL if arguments.model is None else Path(arguments.model)


def load(arguments: argparse.Namespace) -> tuple[Any, Any, str]:
    """(model, vocabulary, backend's name) that the options choose.

    Raises ValueError, naming the option, or OSError where there is no such model, backend or arithmetic.
    """
    # Imported here: every other command would wait for the kernels.
    from qsa.engine.load import BACKENDS, load_model
    from qsa.engine.tokenizer import vocabulary

    folder = directory(arguments)
    if arguments.model is None and not (folder / "config.json").is_file():
        raise ValueError("--model: missing: the golden model is not part of this installation")
    found = facts()
    backend = default_backend(found) if arguments.backend is None else arguments.backend
    check_choice("--backend", backend, BACKENDS)
    if arguments.arithmetic is not None:
        check_choice("--arithmetic", arguments.arithmetic, ARITHMETICS)
        if (backend, arguments.arithmetic) == ("reference", "float"):
            raise ValueError("--arithmetic = 'float': --backend = 'reference' has the exact arithmetic alone")
    check_choice("--rule", arguments.rule, RULES)
    if arguments.model is None:
        text.checked_folder()
    if not folder.is_dir():
        raise ValueError(f"--model = {str(folder)!r}: there is no such folder")
    if backend == "cuda" and default_backend(found) == "cpu":
        raise ValueError(f"--backend = 'cuda': no device: {found['gpu'].removeprefix('none: ')}")
    if backend == "cpu":
        try:
            compile_missing(f"qsa {arguments.command}")
        except RuntimeError as error:
            raise ValueError(str(error)) from error
    with warnings.catch_warnings(record=True, action="always", category=UserWarning) as found_warnings:
        model = load_model(folder, backend, arguments.arithmetic, arguments.rule)
    for warning in found_warnings:
        print(f"qsa {arguments.command}: {warning.message}", file=sys.stderr)
    return model, vocabulary(model.config, folder, arguments.ids), backend


def check_capacity(arguments: argparse.Namespace, what: str, needed: int) -> int:
    """Cells of the slot: those of the option ``--capacity``, else ``needed``.

    Raises ValueError, naming the option, where ``--capacity`` is none or has fewer than ``needed``; ``what`` says which
    text needs them.
    """
    from qsa.engine.request import integer
    from qsa.engine.slots.memory import MAX_CELLS

    if arguments.capacity is None:
        return needed
    capacity = integer("--capacity", arguments.capacity, 1, MAX_CELLS)
    if capacity < needed:
        raise ValueError(f"{what} need {needed} cells: --capacity = {capacity}")
    return capacity


def check_slot(arguments: argparse.Namespace, model: Any, capacity: int, derived: str) -> None:
    """Raises ValueError, naming the option, where ``model`` has no slot of ``capacity`` cells with the K/V format and
    the page size of the options, or this machine no memory for it.

    derived  what the capacity comes from when no option gives it
    """
    from qsa.engine.request import integer
    from qsa.engine.slots import memory

    page_size, kv_format = integer("--page-size", arguments.page_size, 1, memory.MAX_CELLS), arguments.kv_format
    if kv_format not in model.kv_formats:
        allowed = ", ".join(model.kv_formats)
        raise ValueError(f"--kv-format = {kv_format!r}: the {model.arithmetic} arithmetic takes {allowed}")
    index_format = check_index_format("--index-format", arguments.index_format)
    if hasattr(model.backend, "to_device"):
        # A device's own allocator raises when there is too little.
        return
    needed, available = memory.slot_bytes(model, capacity, page_size, kv_format, index_format), memory.host_bytes()
    if available is not None and needed > available:
        name = f"{derived}: capacity" if arguments.capacity is None else "--capacity"
        sizes = f"{name} = {capacity}, --page-size = {page_size}"
        raise ValueError(f"{sizes}: a slot takes at least {needed:,} bytes: this machine has {available:,}")


def source(name: str) -> str:
    """The name of the file ``name`` in errors."""
    return "standard input" if name == "-" else name


def read_bytes(name: str) -> bytes:
    """The content of the file ``name``, of standard input where it is ``-``. Raises OSError naming it, and ValueError
    on a folder."""
    if name != "-" and Path(name).is_dir():
        raise ValueError(f"{name}: is a folder: a file with a text is required, or - for standard input")
    return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()


def encode(vocabulary: Any, data: bytes, model: Any, what: str, least: int = 1) -> np.ndarray:
    """Ids int64 [n] of ``data``, bytes; ``what``: its name in errors. Raises ValueError unless there are ``least`` and
    all are in the model's vocabulary."""
    ids = vocabulary.encode(data, what)
    if len(ids) < least:
        raise ValueError(f"{what}: {len(ids)} tokens: at least {least} required")
    size = model.config.vocab_size
    if ids.max() >= size:
        raise ValueError(f"{what}: id {ids[ids >= size][0]}: the vocabulary is 0 to {size - 1}")
    return ids


@contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[int], object]]:
    """Shows the work on standard error as ``qsa.parity.progress`` does; yields a function that takes the count of what
    is done."""
    with shown(f"{description}, {total} tokens") as work:
        work.total = total

        def show(done: int) -> None:
            work.done = done

        yield show
