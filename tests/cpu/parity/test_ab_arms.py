"""What an arm of ``qsa ab`` may say: words of the environment and flags."""

import re

import pytest

from qsa.parity.ab.arms import parse, process_environment
from qsa.parity.ab.structs import Arm


def test_words_and_flags_in_any_order():
    text = "--slots 2 STRATA_QSA_SPLIT_ATTN=1 --spec=3 NUMBA_NUM_THREADS=2 --kv-format q4_0 --backend cuda"
    environment = {"STRATA_QSA_SPLIT_ATTN": "1", "NUMBA_NUM_THREADS": "2"}
    expected = Arm(side="B", text=text, environment=environment, backend="cuda", slots=2, spec=3, kv_format="q4_0")
    assert parse("B", text, "cpu") == expected


def test_an_empty_arm_is_the_proposals_server():
    arm = parse("A", "", "cpu")
    assert (arm.environment, arm.backend, arm.slots) == ({}, "cpu", 1)
    # Four draft tokens, draft floor 0.5.
    assert (arm.spec, arm.spec_min_p) == (5, 0.5)


def test_an_empty_value_and_quotes():
    assert parse("A", "STRATA_QSA_SPLIT_ATTN= CUDA_CACHE_PATH='a b=c'", "cpu").environment == {
        "STRATA_QSA_SPLIT_ATTN": "",
        "CUDA_CACHE_PATH": "a b=c",
    }


def test_a_kernel_of_ones_own_may_read_any_safe_variable():
    assert parse("A", "MY_TILE=64", "mine.py").environment == {"MY_TILE": "64"}
    assert parse("A", "MY_TILE=64 --backend mine.py", "cpu").environment == {"MY_TILE": "64"}
    with pytest.raises(ValueError, match="LD_PRELOAD: chooses what is run"):
        parse("A", "LD_PRELOAD=x.so", "mine.py")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("STRATA_QSA_SPLIT_ATN=1", "is no switch: allowed are .*; did you mean STRATA_QSA_SPLIT_ATTN?"),
        ("QSA_CACHE=/x", "QSA_CACHE: is no switch"),
        ("STRATA_QSA_SPLIT_ATTN=2", "STRATA_QSA_SPLIT_ATTN = '2': allowed are 0 and 1"),
        ("QSA_ARITHMETIC=fast", "allowed are exact and float"),
        ("FOO=1", "FOO: backend 'cpu' does not read it: allowed are the switches"),
        ("PATH=/x", "PATH: chooses what is run"),
        ("PYTHONPATH=/x", "PYTHONPATH: chooses what is run"),
        ("DYLD_INSERT_LIBRARIES=x", "chooses what is run"),
        ("hello", "'hello': must be NAME=VALUE, or one of the flags --backend, "),
        ("=1", "'=1': must be NAME=VALUE"),
        ("1A=1", "'1A=1': must be NAME=VALUE"),
        ("NUMBA_OPT=1 NUMBA_OPT=2", "NUMBA_OPT: is set twice"),
        ("--bogus 3", "unrecognized arguments: --bogus"),
        ("--slot 3", "unrecognized arguments: --slot"),
        ("--slots", "--slots: expected one argument"),
        ("--slots x", "--slots: invalid int value: 'x'"),
        ("--slots 9", "--slots = 9: must be an integer, from 1 to 8"),
        ("--slots 2 --groups 3", "--groups = 3: must divide --slots = 2"),
        ("--spec 0", "--spec = 0: must be an integer, from 1 to 8"),
        ("--spec-min-p nan", "--spec-min-p = nan: must be a number from 0 to 1"),
        ("--acceptance greedy", "--acceptance = 'greedy': allowed are exact_match, rejection"),
        ("--arithmetic fast", "--arithmetic = 'fast': allowed are exact, float"),
        ("--kv-format fp8", "--kv-format = 'fp8': allowed are int8, q4_0, k8v4, fp16"),
        ("--arithmetic exact --kv-format fp16", "--kv-format = 'fp16': allowed are int8, q4_0, k8v4"),
        ("--capacity -1", "--capacity = -1: must be an integer"),
        ("'", "No closing quotation"),
    ],
)
def test_what_is_not_allowed_is_named(text, said):
    with pytest.raises(ValueError, match="--b = ") as caught:
        parse("B", text, "cpu")
    assert re.search(said, str(caught.value))


def test_the_commands_own_switches_reach_no_arm():
    given = {"PATH": "/bin", "STRATA_QSA_SPLIT_ATTN": "1", "QSA_ARITHMETIC": "float", "NUMBA_OPT": "2"}
    made = process_environment(parse("B", "STRATA_QSA_TOPK_SCAN=1 NUMBA_OPT=3", "cpu"), given)
    assert made == {"PATH": "/bin", "STRATA_QSA_TOPK_SCAN": "1", "NUMBA_OPT": "3"}
