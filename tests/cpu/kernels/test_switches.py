"""The switches: read once from the environment, replaced within a block of code."""

import threading
from dataclasses import asdict, replace

import pytest

from qsa.kernels.switches import VARIABLES, Switches, override, switches


@pytest.mark.parametrize("field", [name for name in VARIABLES if name != "arithmetic"])
def test_a_variable_sets_its_switch_alone(field):
    assert Switches.from_environment({VARIABLES[field]: "1"}) == Switches(**{field: True})
    assert Switches.from_environment({VARIABLES[field]: "0"}) == Switches(**{field: False})
    assert Switches.from_environment({VARIABLES[field]: ""}) == Switches(**{field: None}) == Switches()


def test_an_empty_environment_leaves_all_unset_and_the_arithmetic_exact():
    assert Switches.from_environment({}) == Switches()
    assert [getattr(Switches(), name) for name in VARIABLES] == [None] * (len(VARIABLES) - 1) + ["exact"]
    assert Switches.from_environment({"QSA_ARITHMETIC": "float"}).arithmetic == "float"


@pytest.mark.parametrize("variable, value", [("STRATA_QSA_TOPK_SCAN", "yes"), ("QSA_ARITHMETIC", "1")])
def test_a_wrong_value_is_named(variable, value):
    with pytest.raises(ValueError, match=f"{variable} = '{value}'"):
        Switches.from_environment({variable: value})


def test_the_environment_is_read_once(monkeypatch):
    before = switches()
    monkeypatch.setenv("STRATA_QSA_TOPK_SCAN", "0" if before.topk_scan is not False else "1")
    assert switches() is before


def test_override_holds_within_its_block_and_nests():
    before = switches()
    with override(topk_scan=True, arithmetic="float") as outer:
        assert switches() is outer and outer.topk_scan and outer.arithmetic == "float"
        with override(topk_scan=False, merge_active=True):
            assert switches() == replace(before, topk_scan=False, merge_active=True, arithmetic="float")
            with override(topk_scan=None):
                assert switches().topk_scan is None
        assert switches() is outer
    assert switches() is before


def test_override_ends_with_an_exception():
    before = switches()
    with pytest.raises(KeyError), override(topk_scan=not before.topk_scan):
        raise KeyError
    assert switches() is before


def test_override_leaves_other_threads_alone():
    before, seen = switches(), []
    with override(topk_scan=not before.topk_scan):
        thread = threading.Thread(target=lambda: seen.append(switches()))
        thread.start()
        thread.join()
    assert seen == [before]


@pytest.mark.parametrize(
    "values, error, named",
    [
        ({"topk": True}, TypeError, "topk"),
        ({"topk_scan": "on"}, ValueError, "topk_scan = 'on': allowed are None and False and True"),
        # Equal to False and True, but no reader's ``is False``.
        ({"topk_scan": 0}, ValueError, "topk_scan = 0"),
        ({"split_attn": 1}, ValueError, "split_attn = 1"),
        ({"arithmetic": None}, ValueError, "arithmetic = None"),
        ({"arithmetic": "exakt"}, ValueError, "arithmetic = 'exakt'"),
    ],
)
def test_override_names_what_is_wrong(values, error, named):
    with pytest.raises(error, match=named), override(**values):
        pass


@pytest.mark.parametrize("state", [None, False, True])
def test_the_states_survive_as_a_dictionary(state):
    """As they go to the process of a backend under test (``parity/isolation/remote.py``)."""
    with override(topk_scan=state) as outer:
        sent = asdict(outer)
    with override(**sent) as there:
        assert there == outer and there.topk_scan is state
