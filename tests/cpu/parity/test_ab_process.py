"""One process of an arm of ``qsa ab`` on the CPU, with the smallest texts; and the whole command once."""

import json
import subprocess
import sys
import threading

import msgspec
import numpy as np
import pytest

from qsa.golden.families import text
from qsa.parity.ab import judge, process, screens
from qsa.parity.ab.arms import parse
from qsa.parity.ab.structs import ArmRun
from qsa.parity.bench import device
from qsa.parity.checks import golden_model

TINY = screens.SIZES["tiny"]

WRONG = """
import numpy as np
from qsa.kernels import cpu

declaration = {"arithmetic": "exact"}


def attend(q, kv, ids, steps, slots=None):
    return cpu.attend(q, kv, ids, steps, slots=slots) * np.float32(1.5)
"""


def speed(flags=""):
    return process.speed(parse("A", flags, "cpu"), TINY)


@pytest.fixture(scope="module")
def alone():
    return speed()


def test_the_screens_of_one_slot(alone):
    assert [len(one.tokens) for one in alone.decode_texts] == [24, 24, 4, 4, 4, 4, 4, 8]
    assert [(one.prompt, len(one.tokens)) for one in alone.prompt_texts] == [
        (32, 1),
        (32, 1),
        (64, 1),
        (96, 1),
        (128, 1),
    ]
    assert alone.arithmetic == "exact" and alone.windows == sum(one.rounds for one in alone.decode_texts)
    assert sum(one.decode for one in alone.decode_texts) == pytest.approx(alone.decode)
    assert all(0 < one.first < alone.total for one in (*alone.decode_texts, *alone.prompt_texts))
    for one in alone.decode_texts:
        assert 0 < one.rounds <= len(one.tokens) - 1 and one.accepted <= one.drafted
        # Every window emits its accepted drafts and one token more.
        assert one.rounds + one.accepted == len(one.tokens) - 1
    assert 0 < alone.device <= alone.decode <= alone.total
    assert len({one.hash for one in alone.prompt_texts}) > 1


def test_slots_and_drafts_change_times_and_no_text(alone):
    several = speed("--slots 4 --groups 2 --spec 2 --page-size 64 --chunk 50")
    assert {one.first for one in judge.outputs(alone, several)} == {-1}
    assert several.windows < sum(one.rounds for one in several.decode_texts)
    assert sum(one.decode for one in several.decode_texts) > several.decode
    plain = speed("--spec 1")
    assert {one.first for one in judge.outputs(alone, plain)} == {-1}
    assert sum(one.drafted for one in plain.decode_texts) == 0
    assert msgspec.json.decode(msgspec.json.encode(plain), type=ArmRun) == plain


def test_a_switch_of_the_arithmetic_is_the_arms(monkeypatch):
    assert speed("--arithmetic float --spec 1").arithmetic == "float"


def test_every_prompt_is_another_text():
    for size in screens.SIZES.values():
        prompts = screens.prompt_screen(size)
        assert len({one.ids.tobytes() for one in prompts}) == len(prompts) == sum(size.prompts.values())
        assert len(size.prompts) == 4 and [len(one.ids) for one in prompts if one.name.endswith(" 1")] == [
            *size.prompts
        ]
        beginnings = {one.ids[:32].tobytes() for one in prompts}
        assert len(beginnings) == len(prompts), "a shared beginning could be served from a cache"
        longest = max(len(one.ids) + one.count for one in (*prompts, *screens.decode_screen(size)))
        assert longest <= size.capacity


def test_the_full_screens_are_the_proposals():
    full = screens.SIZES["full"]
    assert [(len(one.ids), one.count) for one in screens.decode_screen(full)][-1] == (32768, 768)
    assert (full.answer, full.prompts) == (4096, {1024: 3, 4096: 3, 32768: 2, 122880: 2})
    assert (full.capacity, len(full.computations), len(full.needles)) == (131072, 7, 6)


def test_checks_of_a_right_side(tmp_path):
    found = process.checks(parse("A", "--slots 2", "cpu"), TINY, tmp_path / "logits.npz")
    assert [(one.name, one.golden, len(one.tokens)) for one in found.seven] == [
        ("math-greedy", "", 24),
        ("code-sampled", "", 24),
    ]
    with np.load(tmp_path / "logits.npz") as arrays:
        assert {name: array.shape for name, array in arrays.items()} == {"math": (64, 256)}
    assert (found.needles, found.arithmetic) == ({}, "exact")


def test_other_codes_have_no_golden():
    found = process.checks(parse("A", "--kv-format q4_0", "cpu"), TINY)
    assert {one.golden for one in found.seven} == {None}


def test_a_wrong_kernel_of_ones_own_is_found(tmp_path):
    (tmp_path / "wrong.py").write_text(WRONG)
    found = process.checks(parse("B", "", str(tmp_path / "wrong.py")), TINY)
    assert any("first wrong token" in one.golden for one in found.seven)


def test_a_long_text_holds_the_golden_of_all_of_it():
    size = screens.Size(**{**vars(TINY), "computations": ("prompt-2k",), "part": 0, "nll": {}})
    found = process.checks(parse("A", "", "cpu"), size)
    assert [(one.golden, len(one.tokens)) for one in found.seven] == [("", text.COMPUTATIONS["prompt-2k"][2])]


def test_a_window_that_fails_ends_the_process(monkeypatch):
    """A text whose window ran again row by row is right, and its time is of something else."""

    def refuse(request):
        raise RuntimeError("a window failed")

    monkeypatch.setattr(golden_model, "check_windows", refuse)
    with pytest.raises(RuntimeError, match="a window failed"):
        speed()


def test_the_share_of_other_work(monkeypatch):
    monkeypatch.setattr(process, "cores", lambda: 2)
    for times, share in (
        (((5.0, 1.0, 0.0), (11.0, 3.0, 4.0)), 0.5),  # 6 s busy, 2 of them mine, of 4 s on two processors
        (((5.0, 1.0, 0.0), (7.0, 3.1, 4.0)), 0.0),
        ((None, None), None),
    ):
        told = iter(times)
        monkeypatch.setattr(process.OtherWork, "_now", staticmethod(lambda told=told: next(told)))
        assert process.OtherWork().share() == (share if share is None else pytest.approx(share))
    monkeypatch.undo()
    real = process.OtherWork()
    sum(range(1_000_000))
    assert real.share() is None or 0 <= real.share() <= 1


def test_a_gpus_clock_is_read_while_it_works(monkeypatch):
    worked = threading.Event()

    def clocks():
        assert worked.wait(10)
        return {"throttled": ["software power cap"]}

    monkeypatch.setattr(device, "clocks", clocks)
    arm = parse("A", "", "cuda")
    assert process._throttled(arm, 0, worked.set) == ["software power cap"]


def test_the_command_on_the_cpu(tmp_path):
    """Both sides, every process, the smallest texts: about half a minute."""
    path = tmp_path / "report.json"
    words = ["--a", "STRATA_QSA_SPLIT_ATTN=0", "--b", "STRATA_QSA_SPLIT_ATTN=1 --slots 2", "--backend", "cpu"]
    command = [sys.executable, "-m", "qsa.parity.cli", "ab", *words, "--size", "tiny", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    report = json.loads(path.read_text())
    assert (report["verdict"], len(report["runs"]), len(report["rows"])) == ("right", 4, 14)
    assert {one["status"] for one in report["checks"]} == {"passed"}
    assert all(one["first"] == -1 for one in (*report["outputs"], *report["seven"]))
    assert "13 of 13 texts of the screens have equal hashes in A and B" in done.stdout
    assert "arm 4 of 4 (A)" in done.stderr or report["seconds"] < 60
