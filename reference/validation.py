"""Plain data held to annotated types: msgspec checks, and an error names the first part that does not fit.

The types are msgspec's: ``msgspec.Struct`` for an object, ``Annotated[int, msgspec.Meta(ge=1)]`` for a limit. The text
of ``Meta(description=...)`` is what an error says is allowed.
"""

import sys
from collections.abc import Iterator
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints, is_typeddict

import msgspec
from msgspec import Meta

T = TypeVar("T")

LARGEST = sys.float_info.max
"""The largest float: infinity is above it, and NaN is within no limit."""

_SHOWN = 120
"""Characters of a value that an error shows."""

_NAMES = {
    bool: "true or false",
    int: "an integer",
    float: "a finite number",
    str: "a string",
    list: "a list",
    dict: "an object",
}


class InvalidError(ValueError):
    """A part of some data that does not fit its type.

    path     of the part, such as ``steps[3].seconds``; empty when it is the whole
    value    of the part; None when it is missing
    allowed  what is allowed, such as ``an integer from 1 to 8``
    text     the message after the path, when it is not about what is allowed
    """

    def __init__(self, path: str, value: object, allowed: str, text: str = "") -> None:
        self.path, self.value, self.allowed = path, value, allowed
        super().__init__(f"{path or 'top'}: {text or f'is {shown(value)}: must be {allowed}'}")


def shown(value: object) -> str:
    """``value`` as an error shows it: its representation, cut after 120 characters."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def convert(data: object, kind: type[T], path: str = "") -> T:
    """``data``, made of the plain values of JSON, as ``kind``. The types are strict: a bool is no number, and of the
    numbers only an integer stands for a float.

    path  of ``data`` itself; it begins the paths in errors

    Raises InvalidError, a ValueError, that names the first part which does not fit.
    """
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise _first_fault(data, kind, path) or InvalidError(path, data, "", str(error)) from None


def _first_fault(data: object, kind: Any, path: str) -> InvalidError | None:
    """The error about the first part of ``data`` that does not fit; None when all of it does."""
    bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    optional = [part for part in get_args(bare) if part is not NoneType]
    if NoneType in get_args(bare) and len(optional) == 1 and data is not None:
        return _first_fault(data, optional[0], path)
    if isinstance(data, dict) and _fields(bare):
        found = _missing_or_unknown(data, bare, path)
        if found:
            return found
    for part_path, part, part_kind in _parts(data, bare, path):
        found = _first_fault(part, part_kind, part_path)
        if found:
            return found
    try:
        msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        allowed = _allowed(kind, bare)
        return InvalidError(path, data, allowed, "" if allowed else f"is {data!r}: {error}")
    return None


def _missing_or_unknown(data: dict, kind: Any, path: str) -> InvalidError | None:
    fields = _fields(kind)
    missing = sorted(name for name, (_, required) in fields.items() if required and name not in data)
    if missing:
        return InvalidError(_joined(path, missing[0]), None, "", "is missing")
    unknown = sorted(data.keys() - fields.keys())
    if unknown and _is_struct(kind) and kind.__struct_config__.forbid_unknown_fields:
        text = f"is not a field; there are {', '.join(fields)}"
        return InvalidError(_joined(path, unknown[0]), data[unknown[0]], "", text)
    return None


def _parts(data: object, kind: Any, path: str) -> Iterator[tuple[str, object, Any]]:
    """(path, value, type) of every part of ``data`` that has a type of its own."""
    fields = _fields(kind)
    if fields and isinstance(data, dict):
        for name, (part, _) in fields.items():
            if name in data:
                yield _joined(path, name), data[name], part
    elif get_origin(kind) is dict and isinstance(data, dict):
        for key, value in data.items():
            yield _joined(path, str(key)), value, get_args(kind)[1]
    elif get_origin(kind) is list and isinstance(data, list):
        for index, value in enumerate(data):
            yield f"{path}[{index}]", value, get_args(kind)[0]


def _allowed(kind: Any, bare: Any) -> str:
    """What a type allows, in words; empty when it has none."""
    if bare is not kind:
        for note in get_args(kind)[1:]:
            if isinstance(note, Meta) and note.description:
                return note.description
    if get_origin(bare) is Literal:
        return " or ".join(repr(value) for value in get_args(bare))
    return "an object" if _fields(bare) else _NAMES.get(get_origin(bare) or bare, "")


def _fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    """(type, whether it must be there) of every field of a Struct or TypedDict; empty for other types."""
    if _is_struct(kind):
        return {field.name: (field.type, field.required) for field in msgspec.structs.fields(kind)}
    if is_typeddict(kind):
        return {name: (part, True) for name, part in get_type_hints(kind, include_extras=True).items()}
    return {}


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
