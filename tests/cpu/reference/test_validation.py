"""Data held to annotated types: what fits, and that an error names the path, the value and what is allowed."""

from typing import Annotated, Any, Literal, TypedDict

import pytest
from msgspec import Meta, Struct

from qsa.reference.validation import LARGEST, InvalidError, convert

Positive = Annotated[float, Meta(gt=0, le=LARGEST, description="a positive number")]


class Extent(TypedDict):
    rows: int


class Part(Struct, forbid_unknown_fields=True):
    size: Annotated[int, Meta(ge=1, le=8, description="an integer from 1 to 8")]
    time: Positive | None = None
    kind: Literal["hot", "cold"] = "hot"


class Whole(Struct):
    parts: dict[str, list[Part]]
    extent: Extent
    names: Annotated[list[str], Meta(min_length=1, description="a list with a name")]
    flag: bool = False
    text: str = ""
    more: Any = None


def whole(**changes):
    return {"parts": {"a": [{"size": 1}, {"size": 2}]}, "extent": {"rows": 1}, "names": ["x"], **changes}


def test_what_fits_is_converted():
    made = convert(whole(unknown=1, more={"x": [1]}), Whole)
    assert (made.parts["a"][1].size, made.extent, made.more) == (2, {"rows": 1}, {"x": [1]})
    assert convert(3, Positive) == 3.0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "top: is []: must be an object"),
        ({"parts": {}, "names": ["x"]}, "extent: is missing"),
        (whole(parts={"a": [{"size": 1}, {}]}), "parts.a[1].size: is missing"),
        (whole(parts={"a": [{"size": True}]}), "parts.a[0].size: is True: must be an integer from 1 to 8"),
        (whole(parts={"a": [{"size": 9}]}), "parts.a[0].size: is 9: must be an integer from 1 to 8"),
        (whole(parts={"a": [{"size": 10**30}]}), f"parts.a[0].size: is {10**30}: must be an integer from 1 to 8"),
        (whole(parts={"a": [{"size": 1.0}]}), "parts.a[0].size: is 1.0: must be an integer from 1 to 8"),
        (whole(parts={"a": [{"size": 1, "x": 1}]}), "parts.a[0].x: is not a field; there are size, time, kind"),
        (whole(parts={"a": [{"size": 1, "time": 0}]}), "parts.a[0].time: is 0: must be a positive number"),
        (whole(parts={"a": [{"size": 1, "time": float("nan")}]}), "parts.a[0].time: is nan: must be a positive number"),
        (whole(parts={"a": [{"size": 1, "time": float("inf")}]}), "parts.a[0].time: is inf: must be a positive number"),
        (whole(parts={"a": [{"size": 1, "kind": "warm"}]}), "parts.a[0].kind: is 'warm': must be 'hot' or 'cold'"),
        (whole(parts={"a": {}}), "parts.a: is {}: must be a list"),
        (whole(parts=3), "parts: is 3: must be an object"),
        (whole(extent={}), "extent.rows: is missing"),
        (whole(extent={"rows": "1"}), "extent.rows: is '1': must be an integer"),
        (whole(extent=None), "extent: is None: must be an object"),
        (whole(names=[]), "names: is []: must be a list with a name"),
        (whole(names=["x", 1]), "names[1]: is 1: must be a string"),
        (whole(flag=1), "flag: is 1: must be true or false"),
        (whole(text=["x" * 500]), f"text: is ['{'x' * 118}...: must be a string"),
    ],
)
def test_an_error_names_path_value_and_what_is_allowed(data, message):
    with pytest.raises(InvalidError) as caught:
        convert(data, Whole)
    assert str(caught.value) == message
    with pytest.raises(InvalidError) as caught:
        convert(data, Whole, "file.json")
    assert str(caught.value).startswith("file.json")
