"""What ``--a`` and ``--b`` may say: words ``NAME=VALUE`` for the environment, and flags of the engine."""

import argparse
import difflib
import re
import shlex
from collections.abc import Mapping
from typing import Any, NoReturn

from qsa.kernels.ops import BACKENDS
from qsa.kernels.switches import ARITHMETICS, VARIABLES, Switches

from .structs import Arm

OWN = ("STRATA_", "QSA_")
"""Prefixes of the project's variables. One that is no switch is a mistyped switch, and would measure nothing."""

SETTINGS = ("NUMBA_", "OMP_", "GOMP_", "KMP_", "OPENBLAS_", "MKL_", "BLIS_", "CUDA_", "CUPY_", "NVIDIA_", "MALLOC_")
"""Prefixes of settings of numba, threads, BLAS, CUDA and the allocator."""

UNSAFE = re.compile(r"LD_|DYLD_|PYTHON|PATH$|HOME$|SHELL$|IFS$|TMPDIR$|GIT_")
"""Variables that choose what is run instead of how: the two sides would be other programs."""

WORD = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)

ACCEPTANCES = ("exact_match", "rejection")


class _Parser(argparse.ArgumentParser):
    """A parser whose faults are a ValueError."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def flags() -> argparse.ArgumentParser:
    """The parser of an arm: its flags, and ``NAME=VALUE`` words between them."""
    parser = _Parser(prog="--a, --b", add_help=False, allow_abbrev=False, usage="NAME=VALUE ... [flags]")
    parser.add_argument("words", nargs="*", metavar="NAME=VALUE", help="variables of the environment")
    parser.add_argument("--backend", metavar="NAME", help="another backend than that of the command")
    parser.add_argument("--arithmetic", metavar="|".join(ARITHMETICS), help="default: QSA_ARITHMETIC, else exact")
    parser.add_argument("--slots", type=int, default=1, metavar="N", help="texts that run at a time (1)")
    parser.add_argument("--groups", type=int, default=1, metavar="N", help="groups that windows rotate over (1)")
    parser.add_argument("--spec", type=int, default=5, metavar="T", help="rows of a window: T - 1 drafts (5)")
    parser.add_argument("--spec-min-p", type=float, default=0.5, metavar="P", help="draft on while the last one's is P")
    parser.add_argument("--acceptance", default="exact_match", metavar="|".join(ACCEPTANCES), help="of sampled texts")
    parser.add_argument("--chunk", type=int, default=1024, metavar="N", help="prompt tokens at a time (1024)")
    parser.add_argument("--page-size", type=int, default=4, metavar="N", help="cells of a K/V page (4)")
    parser.add_argument("--kv-format", default="int8", metavar="NAME", help="int8, q4_0, k8v4; float: fp16 too")
    parser.add_argument("--capacity", type=int, default=0, metavar="N", help="cells of a slot (as the screens need)")
    return parser


def parse(side: str, text: str, backend: str) -> Arm:
    """The :class:`Arm` ``A`` or ``B`` of what its option says; ``backend``: that of the command.

    Raises ValueError, naming the option, on a word or a flag that is not allowed.
    """
    option = f"--{side.lower()} = {text!r}"
    try:
        given = vars(flags().parse_intermixed_args(shlex.split(text)))
        words = given.pop("words")
        given["backend"] = given["backend"] or backend
        given["arithmetic"] = given["arithmetic"] or ""
        _check(given)
        return Arm(side=side, text=text, environment=environment(words, given["backend"]), **given)
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from error


def environment(words: list[str], backend: str) -> dict[str, str]:
    """Variables of the ``words``. A backend of one's own may read any variable that is safe.

    Raises ValueError on a word that is none, and on a variable that is unsafe, unknown or has a value that its switch
    does not have.
    """
    found: dict[str, str] = {}
    for word in words:
        match = WORD.fullmatch(word)
        if match is None:
            raise ValueError(f"{word!r}: must be NAME=VALUE, or one of the flags {', '.join(_flag_names())}")
        name, value = match.groups()
        if name in found:
            raise ValueError(f"{name}: is set twice")
        _check_variable(name, backend)
        found[name] = value
    Switches.from_environment(found)
    return found


def _flag_names() -> list[str]:
    return [name for action in flags()._actions for name in action.option_strings]


def _check_variable(name: str, backend: str) -> None:
    if UNSAFE.match(name):
        raise ValueError(f"{name}: chooses what is run: both sides must be the same program")
    if name.startswith(OWN):
        if name not in VARIABLES.values():
            near = difflib.get_close_matches(name, VARIABLES.values(), 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"{name}: is no switch: allowed are {', '.join(VARIABLES.values())}{hint}")
    elif not name.startswith(SETTINGS) and backend in BACKENDS:
        allowed = f"the switches ({', '.join(VARIABLES.values())}) and {', '.join(f'{each}*' for each in SETTINGS)}"
        raise ValueError(f"{name}: backend {backend!r} does not read it: allowed are {allowed}")


def _check(given: Mapping[str, Any]) -> None:
    """Raises ValueError, naming the flag, on a value outside what is allowed."""
    from qsa.engine.request import MAX_ROWS, integer
    from qsa.engine.slots.memory import MAX_CELLS
    from qsa.model import ExactModel, FloatModel

    bounds = {"slots": (1, MAX_ROWS), "groups": (1, MAX_ROWS), "spec": (1, MAX_ROWS), "chunk": (1, MAX_CELLS)}
    bounds |= {"page_size": (1, MAX_CELLS), "capacity": (0, MAX_CELLS)}
    for name, (low, high) in bounds.items():
        integer(f"--{name.replace('_', '-')}", given[name], low, high)
    if given["slots"] % given["groups"]:
        raise ValueError(f"--groups = {given['groups']}: must divide --slots = {given['slots']}")
    if not 0 <= given["spec_min_p"] <= 1:
        raise ValueError(f"--spec-min-p = {given['spec_min_p']!r}: must be a number from 0 to 1")
    allowed: dict[str, tuple[str, ...]] = {
        "arithmetic": ("", *ARITHMETICS),
        "acceptance": ACCEPTANCES,
        "kv_format": ExactModel.kv_formats if given["arithmetic"] == "exact" else FloatModel.kv_formats,
    }
    for name, values in allowed.items():
        if given[name] not in values:
            named = ", ".join(filter(None, values))
            raise ValueError(f"--{name.replace('_', '-')} = {given[name]!r}: allowed are {named}")


def process_environment(arm: Arm, of_command: Mapping[str, str]) -> dict[str, str]:
    """The environment of the arm's processes: that of the command without the switches, and the arm's own."""
    kept = {name: value for name, value in of_command.items() if name not in VARIABLES.values()}
    return kept | arm.environment
