"""Case strings: a check and its parameters on one line, to be printed, stored and pasted back.

``attend:format=int8,context=65536,rows=4,tail=3,page=4,seed=7``: the module, then ``key=value`` pairs in their order.
A value is an integer, a float (it has a point or an exponent), ``true``, ``false``, or a word. Formatting and parsing
are each other's inverse.
"""

import re
from collections.abc import Mapping

_KEY = re.compile(r"[a-z][a-z0-9_]*")
_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?(e[-+]?[0-9]+)?")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.+-]*")
_KINDS = "an integer, a float, true, false, or a word of letters, digits and _ . + - that starts with a letter or _"


Value = bool | int | float | str


class CaseError(ValueError):
    """A case string, or parameters that cannot be written as one; the message names the offending part."""


def _read(text: str, case: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    if _INTEGER.fullmatch(text) and text != "-0":
        return int(text)
    if _FLOAT.fullmatch(text) and text != "-0":
        return float(text)
    if _WORD.fullmatch(text):
        return text
    raise CaseError(f"case {case!r}: value {text!r}: must be {_KINDS}")


def parse(text: str) -> tuple[str, dict[str, Value]]:
    """(module, parameters) of a case string; the parameters keep their order.

    Raises :class:`CaseError`, a ValueError, on anything malformed or a key given twice.
    """
    module, colon, rest = text.partition(":")
    if not _KEY.fullmatch(module):
        raise CaseError(f"case {text!r}: module {module!r}: must be lower-case letters, digits and _")
    if colon and not rest:
        raise CaseError(f"case {text!r}: nothing after the colon")
    parameters: dict[str, Value] = {}
    for pair in rest.split(",") if rest else []:
        key, equals, value = pair.partition("=")
        if not equals or not _KEY.fullmatch(key):
            raise CaseError(f"case {text!r}: {pair!r}: must be key=value, the key of lower-case letters, digits and _")
        if key in parameters:
            raise CaseError(f"case {text!r}: {key} is given twice")
        parameters[key] = _read(value, text)
    return module, parameters


def format(module: str, parameters: Mapping[str, Value]) -> str:
    """The case string of a module and its parameters, in the order given.

    Raises :class:`CaseError` on a name or value that :func:`parse` would not give back.
    """
    pairs = []
    for key, value in parameters.items():
        written = str(value).lower() if isinstance(value, bool) else str(value)
        pairs.append(f"{key}={written}")
        if not isinstance(value, (bool, int, float, str)):
            raise CaseError(f"{key} = {value!r}: must be {_KINDS}")
    text = f"{module}:{','.join(pairs)}" if pairs else module
    back, read = parse(text)
    if (back, list(read.items())) != (module, list(parameters.items())) or any(
        type(read[key]) is not type(value) for key, value in parameters.items()
    ):
        raise CaseError(f"case {text!r}: does not read back as {parameters!r}")
    return text
