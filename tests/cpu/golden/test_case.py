"""Case strings: there and back, and strictly."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qsa.golden.case import CaseError, format, parse

EXAMPLE = "attend:format=int8,context=65536,rows=4,tail=3,page=4,seed=7"


def test_example():
    module, parameters = parse(EXAMPLE)
    assert module == "attend"
    assert list(parameters.items()) == [
        ("format", "int8"),
        ("context", 65536),
        ("rows", 4),
        ("tail", 3),
        ("page", 4),
        ("seed", 7),
    ]
    assert format(module, parameters) == EXAMPLE


def test_kinds_of_values():
    text = "m:a=-3,b=0.5,c=1e-07,d=true,e=false,f=q4_0,g=-0.0"
    values = parse(text)[1]
    assert [type(value) for value in values.values()] == [int, float, float, bool, bool, str, float]
    assert format("m", values) == text
    assert parse("m") == ("m", {})


KEYS = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
VALUES = (
    st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
    | st.from_regex(r"[A-Za-z_][A-Za-z0-9_.+-]{0,8}", fullmatch=True).filter(lambda word: word not in ("true", "false"))
)


@settings(max_examples=200, deadline=None)
@given(KEYS, st.dictionaries(KEYS, VALUES, max_size=5))
def test_there_and_back(module, parameters):
    back, read = parse(format(module, parameters))
    assert (back, list(read.items())) == (module, list(parameters.items()))
    assert [type(value) for value in read.values()] == [type(value) for value in parameters.values()]


@pytest.mark.parametrize(
    "text, named",
    [
        ("", "module"),
        (":a=1", "module"),
        ("Attend:a=1", "module"),
        ("attend:", "nothing after"),
        ("attend:a", "'a'"),
        ("attend:a=", "value ''"),
        ("attend:a=1,", "''"),
        ("attend:a=1,,b=2", "''"),
        ("attend:a=1,a=2", "a is given twice"),
        ("attend:A=1", "'A=1'"),
        ("attend:a=1 ", "'1 '"),
        ("attend: a=1", "' a=1'"),
        ("attend:a=01", "'01'"),
        ("attend:a=-0", "'-0'"),
        ("attend:a=1.", "'1.'"),
        ("attend:a=b=c", "'b=c'"),
        ("attend:a=b:c", "'b:c'"),
        ("attend:a=\u0661", "'\u0661'"),
        ("attend:a=1\n", r"'1\\n'"),
    ],
)
def test_malformed_strings_are_named(text, named):
    with pytest.raises(CaseError, match=named):
        parse(text)


@pytest.mark.parametrize("value", [None, [1], "two words", "true", "7", "1.5", "", "a,b", float("nan"), 1j])
def test_values_that_would_not_come_back_are_refused(value):
    with pytest.raises(CaseError):
        format("m", {"a": value})
