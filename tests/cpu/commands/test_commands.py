"""``qsa generate``: the engine's text and figures, Ctrl-C, pipes and terminals.

One file: all its tests share the model folders that are made at the top.
"""

import io
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from qsa.engine import Drafting, Sampling, generate
from qsa.engine.load import load_model
from qsa.engine.runner import Runner
from qsa.golden import GoldenError
from qsa.golden.families import text as golden_text
from qsa.parity.commands import model_options
from qsa.parity.running import compiling
from support.command_models import PROMPT, make, make_undrafted, run
from support.exact_models import SMALL_CONFIG
from support.interruptible import started

IDS = np.frombuffer(PROMPT.encode(), np.uint8)
HEAD = "lm_head.weight"
GOLDEN_MODEL = golden_text.MODEL

PATIENCE = 300
"""Seconds that a process of its own may take: it compiles the kernels where no cache holds them."""


@pytest.fixture(scope="module", autouse=True)
def compiled():
    """The kernels are compiled before any text: where they are not the commands say so on standard error."""
    compiling.compile_missing("tests")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make(tmp_path_factory.mktemp("bytes"))


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    """A model whose vocabulary is not bytes."""
    return make(tmp_path_factory.mktemp("numbered"), SMALL_CONFIG)


@pytest.fixture(scope="module")
def silent(tmp_path_factory):
    """A model of equal logits: ties go to the lowest id, the end of text."""
    return make(tmp_path_factory.mktemp("silent"), change=lambda tensors: tensors[HEAD].fill(0))


@pytest.fixture(scope="module")
def undrafted(tmp_path_factory):
    return make_undrafted(tmp_path_factory.mktemp("undrafted"))


@pytest.fixture(scope="module")
def model(folder):
    return load_model(folder)


def text(capsys, *arguments):
    """Standard output of ``qsa generate`` that ended well."""
    code, out, err = run(capsys, "generate", "--backend", "cpu", *arguments)
    assert code == 0, err
    return out


def as_text(tokens):
    return bytes(tokens).decode("utf-8", "replace") + "\n"


def test_generate_streams_the_engines_text_and_says_how_it_went(capsys, folder, model):
    want = generate(model, IDS, max_tokens=30, drafting=Drafting(), stop=(0,))
    code, out, err = run(capsys, "generate", "--model", folder, "--prompt", PROMPT, "--max-tokens", 30)
    assert code == 0 and out == as_text(want.tokens)
    lines = dict(line.split(None, 1) for line in err.splitlines())
    assert list(lines) == ["prompt", "text", "rounds", "drafts", "end"] and lines["end"] == "length"
    assert lines["prompt"].startswith(f"{len(IDS)} tokens in ") and "exact arithmetic" in lines["prompt"]
    assert lines["text"].startswith("30 tokens in ") and "tokens/s" in lines["text"]
    one = want.statistics
    assert lines["rounds"].startswith(f"{one.rounds} of ") and f"{one.tokens_per_round:.2f} tokens" in lines["rounds"]
    assert lines["drafts"].startswith(f"{one.drafted}, {100 * one.acceptance:.1f} % accepted, {one.rollbacks} rounds")
    assert one.drafted > 20


def test_compilation_is_told_apart_and_is_in_no_figure(capsys, folder, monkeypatch):
    """Known-faults-2 N6: 38 silent seconds, booked as "prompt 17 tokens, 0.4 tokens/s"."""
    asked = []

    def compile_missing(command):
        asked.append(command)
        print("compiling", file=sys.stderr)

    monkeypatch.setattr(model_options, "compile_missing", compile_missing)
    given = ("--model", folder, "--prompt", PROMPT, "--max-tokens", 2)
    _, _, err = run(capsys, "generate", "--backend", "cpu", *given)
    assert asked == ["qsa generate"] and err.startswith("compiling\nprompt")
    run(capsys, "generate", "--backend", "reference", *given)
    assert len(asked) == 1


def test_no_window_backend_page_or_chunk_changes_the_text(capsys, folder, undrafted):
    asked = ("--prompt", PROMPT, "--max-tokens", 20, "--quiet")
    want = text(capsys, "--model", folder, *asked)
    assert len(want) > 10
    for more in (
        ("--spec", 1),
        ("--spec", 8, "--mtp-max-t", 5, "--mtp-window", 4),
        ("--spec", 3, "--spec-min-p", 0.02),
        ("--page-size", 64, "--chunk", 3, "--capacity", 500),
        ("--backend", "reference"),
    ):
        assert text(capsys, "--model", folder, *asked, *more) == want, more
    assert text(capsys, "--model", undrafted, *asked) == want
    assert run(capsys, "generate", "--model", folder, *asked)[2] == ""


@pytest.mark.parametrize("acceptance", ["exact_match", "rejection"])
def test_what_is_drawn_follows_the_options(capsys, folder, model, acceptance):
    sampling = Sampling(temperature=1.5, top_k=40, top_p=0.9, min_p=0.01, last_n=16, repeat=1.2, presence=0.1)
    options = {"sampling": sampling, "seed": 11, "acceptance": acceptance, "drafting": Drafting(3), "max_tokens": 25}
    want = as_text(generate(model, IDS, **options).tokens)
    asked = ["--model", folder, "--prompt", PROMPT, "--max-tokens", 25, "--spec", 3, "--acceptance", acceptance]
    asked += ["--temperature", 1.5, "--top-k", 40, "--top-p", 0.9, "--min-p", 0.01, "--last-n", 16, "--repeat", 1.2]
    asked += ["--presence", 0.1, "--ignore-eos"]
    assert text(capsys, *asked, "--seed", 11) == want != text(capsys, *asked, "--seed", 12)


@pytest.mark.parametrize("top_k", [None, 64, 65, 100, 256, 1000, 0])
def test_as_many_tokens_are_drawn_from_as_top_k_says(capsys, folder, model, top_k):
    """known-faults E6: a list beyond 64 was one of 64, and the whole vocabulary could not be drawn from."""
    given = () if top_k is None else ("--top-k", top_k)
    asked = ["--model", folder, "--prompt", PROMPT, "--max-tokens", 40, "--spec", 1, "--temperature", 100, "--quiet"]

    def drawn(kept):
        options = Sampling(temperature=100.0, top_k=kept, max_candidates=0)
        return as_text(generate(model, IDS, sampling=options, max_tokens=40).tokens)

    kept = 64 if top_k is None else top_k
    assert text(capsys, *asked, "--ignore-eos", *given) == drawn(kept)
    # At such a temperature all that is kept is about as probable, so another list is another text.
    assert len({drawn(kept) for kept in (64, 65, 100, 256)}) == 4 and drawn(0) == drawn(256) == drawn(1000)


def test_the_float_arithmetic(capsys, folder):
    model = load_model(folder, arithmetic="float")
    want = generate(model, IDS, max_tokens=12, kv_format="fp16")
    asked = ("--arithmetic", "float", "--kv-format", "fp16", "--prompt", PROMPT, "--max-tokens", 12, "--spec", 1)
    assert text(capsys, "--model", folder, *asked, "--ignore-eos") == as_text(want.tokens)


def test_prompts_from_files(capsys, folder, tmp_path, monkeypatch):
    asked = ("--model", folder, "--max-tokens", 9, "--quiet")
    want = text(capsys, *asked, "--prompt", PROMPT)
    (tmp_path / "prompt.txt").write_bytes(PROMPT.encode())
    assert text(capsys, *asked, "--prompt-file", tmp_path / "prompt.txt") == want
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(PROMPT.encode())))
    assert text(capsys, *asked, "--prompt-file", "-") == want


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "latin-1", "shift_jis"])
def test_a_terminal_that_is_not_utf8_gets_the_whole_text(capsys, folder, monkeypatch, encoding):
    """known-faults E7: the command ended where a character came that the encoding lacks."""
    asked = ("--model", folder, "--prompt", PROMPT, "--max-tokens", 30, "--quiet")
    want = text(capsys, *asked)
    with pytest.raises(UnicodeEncodeError):
        want.encode(encoding)
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding, newline=""))
    assert run(capsys, "generate", "--backend", "cpu", *asked)[0] == 0
    assert written.getvalue() == want.encode(encoding, "replace")


def test_an_error_handler_of_the_users_own_stays(capsys, folder, monkeypatch):
    written = io.BytesIO()
    stdout = io.TextIOWrapper(written, encoding="ascii", errors="backslashreplace", newline="")
    monkeypatch.setattr(sys, "stdout", stdout)
    assert run(capsys, "generate", "--model", folder, "--prompt", PROMPT, "--max-tokens", 30, "--quiet")[0] == 0
    assert b"\\ufffd" in written.getvalue()


def test_ids_in_and_out(capsys, numbered, folder):
    tokens = generate(load_model(numbered), [5, 96, 0, 7], max_tokens=10).tokens
    asked = ("--max-tokens", 10, "--ignore-eos", "--ids", "--quiet")
    assert text(capsys, "--model", numbered, "--prompt", "5, 96 0\n7", *asked).split() == [str(one) for one in tokens]
    given = " ".join(map(str, IDS))
    out = text(capsys, "--model", folder, "--prompt", given, *asked)
    assert as_text(map(int, out.split())) == text(capsys, "--model", folder, "--prompt", PROMPT, *asked[:3])


def test_an_end_of_text_ends_the_text_and_is_not_written(capsys, silent):
    asked = ("--model", silent, "--prompt", PROMPT, "--max-tokens", 5)
    code, out, err = run(capsys, "generate", *asked)
    assert (code, out) == (0, "\n") and "end     stop" in err and "text    1 tokens" in err
    assert text(capsys, *asked, "--ignore-eos") == "\0" * 5 + "\n"


@pytest.mark.parametrize("ends", [[0, 7], [7, 0]])
def test_any_end_of_text_of_a_list_ends_the_text(capsys, silent, tmp_path, ends):
    """The model says 0: the list's first id, or another one."""
    shutil.copytree(silent, tmp_path, dirs_exist_ok=True)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | {"eos_token_id": ends}))
    asked = ("--model", tmp_path, "--prompt", PROMPT, "--max-tokens", 5)
    code, out, err = run(capsys, "generate", *asked)
    assert (code, out) == (0, "\n") and "end     stop" in err and "text    1 tokens" in err


@pytest.mark.parametrize("ends", [0, [0], [5, 0]])
def test_an_end_of_text_may_stand_in_generation_config_alone(capsys, silent, tmp_path, ends):
    """known-faults E9: the model says 0, which config.json does not hold; it was no end."""
    shutil.copytree(silent, tmp_path, dirs_exist_ok=True)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | {"eos_token_id": 7}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends, "temperature": 0.6}))
    asked = ("--model", tmp_path, "--prompt", PROMPT, "--max-tokens", 5)
    code, out, err = run(capsys, "generate", *asked)
    assert (code, out) == (0, "\n") and "end     stop" in err
    told = ", ".join(map(str, ends)) if isinstance(ends, list) else ends
    assert err.startswith(f"qsa generate: ids {told} of generation_config.json end the text\n")
    assert text(capsys, *asked, "--ignore-eos") == "\0" * 5 + "\n"
    assert run(capsys, "generate", *asked, "--quiet") == (0, "\n", "")


def test_a_request_that_fails_says_so_and_is_no_success(capsys, tmp_path):
    def spoil(tensors):
        # Every V is then beyond what a scale can hold, 8.3 million.
        tensors["model.layers.3.self_attn.v_proj.weight"] *= 8e6

    code, out, err = run(capsys, "generate", "--model", make(tmp_path, change=spoil), "--prompt", PROMPT, "--quiet")
    assert (code, out) == (1, "\n")
    fault = "int8: values must be finite and their scale must fit fp16 (at most 65504)"
    assert err == f"qsa generate: error: v: row 2: {fault}\n"


def test_windows_that_ran_again_are_told(capsys, folder, monkeypatch):
    plain = Runner.run

    def rows_alone(runner, ids, slots, journal=None):
        if journal is not None and len(ids[0]) > 1:
            raise ValueError("no windows today")
        return plain(runner, ids, slots, journal)

    asked = ("generate", "--model", folder, "--backend", "cpu", "--prompt", PROMPT, "--max-tokens", 5)
    want = run(capsys, *asked)[1]
    monkeypatch.setattr(Runner, "run", rows_alone)
    code, out, err = run(capsys, *asked)
    assert (code, out) == (0, want) and "windows failed 3 times and ran again: no windows today" in err


@pytest.fixture
def golden_folder(monkeypatch, tmp_path):
    """A folder in place of the golden model's."""
    monkeypatch.setattr(golden_text, "MODEL", tmp_path)
    golden_text.weights_hash.cache_clear()
    golden_text.tensors.cache_clear()
    yield tmp_path
    golden_text.weights_hash.cache_clear()
    golden_text.tensors.cache_clear()


def test_the_golden_model_is_the_default_and_its_hash_is_checked(capsys, golden_folder):
    """Known-faults N11: overwritten bytes of the weights were loaded, and a text was made of them."""
    asked = ("generate", "--backend", "cpu", "--prompt", PROMPT, "--max-tokens", 3, "--quiet")
    shutil.copytree(GOLDEN_MODEL, golden_folder, dirs_exist_ok=True)
    code, out, _ = run(capsys, *asked)
    assert code == 0 and (0, out) == run(capsys, *asked, "--model", GOLDEN_MODEL)[:2]
    for name in golden_text.FILES:
        shutil.copy(GOLDEN_MODEL / name, golden_folder / name)
        data = bytearray((golden_folder / name).read_bytes())
        data[-9] ^= 1
        (golden_folder / name).write_bytes(data)
        golden_text.weights_hash.cache_clear()
        code, out, err = run(capsys, *asked)
        assert (code, out) == (2, "") and err.count("\n") == 1
        assert "config.json and model.safetensors have the hash" in err and "the goldens were made with 52fa24da" in err
        with pytest.raises(GoldenError, match="the goldens were made with 52fa24da"):
            golden_text.tensors()
        shutil.copy(GOLDEN_MODEL / name, golden_folder / name)


def test_the_golden_model_may_not_be_installed(capsys, golden_folder):
    code, _, err = run(capsys, "generate", "--prompt", PROMPT, "--max-tokens", 3)
    assert code == 2 and err == "qsa generate: error: --model: missing: the golden model is not part of this " + (
        "installation\n"
    )


def command(*arguments):
    return [sys.executable, "-m", "qsa.parity.cli", *map(str, arguments)]


def test_ctrl_c_ends_the_text_where_it_is(folder, tmp_path):
    asked = command("generate", "--model", folder, "--backend", "cpu", "--prompt", PROMPT, "--max-tokens", 200_000)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started([*asked, "--ignore-eos"], cwd=tmp_path, **streams) as process:
        begun = process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130 and b"Traceback" not in err
    assert len(begun) == 20 and rest.endswith(b"\n")
    assert "end     cancelled" in err.decode() and "tokens/s" in err.decode()


@pytest.mark.parametrize("call", [1, 2, 9])
def test_ctrl_c_inside_a_step_does_so_too(capsys, folder, monkeypatch, call):
    """In the prompt's last chunk, in the first window, in a later one."""
    calls, plain = [], Runner.logits

    def logits(runner, x):
        calls.append(x)
        if len(calls) == call:
            raise KeyboardInterrupt
        return plain(runner, x)

    monkeypatch.setattr(Runner, "logits", logits)
    asked = ("--model", folder, "--backend", "cpu", "--prompt", PROMPT, "--spec", 1, "--ignore-eos")
    code, out, err = run(capsys, "generate", *asked)
    assert code == 130 and out.endswith("\n") and err.endswith("end     cancelled\n") and "error" not in err


@pytest.mark.parametrize("where", ["read_bytes", "load", "encode"])
@pytest.mark.parametrize("verb", ["generate", "score"])
def test_ctrl_c_before_there_is_a_text_is_one_line(capsys, folder, tmp_path, monkeypatch, verb, where):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    (tmp_path / "prompt.txt").write_text(PROMPT)
    file = {"generate": ("--prompt-file", tmp_path / "prompt.txt"), "score": (tmp_path / "prompt.txt",)}[verb]
    monkeypatch.setattr(model_options, where, interrupted)
    try:
        found = run(capsys, verb, "--model", folder, "--backend", "cpu", *file)
    except KeyboardInterrupt:
        found = None  # it would end the tests
    assert found == (130, "", f"qsa {verb}: interrupted\n")


def test_ctrl_c_while_a_prompt_is_typed(folder, tmp_path):
    asked = command("generate", "--model", folder, "--backend", "cpu", "--prompt-file", "-")
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with started(asked, cwd=tmp_path, **streams) as process:
        deadline = time.monotonic() + PATIENCE
        # It reads standard input before it loads the model; what it has read of a full pipe frees its room.
        os.set_blocking(process.stdin.fileno(), False)
        filled = 0
        while time.monotonic() < deadline:
            try:
                filled += os.write(process.stdin.fileno(), b"a" * 65536)
            except BlockingIOError:
                time.sleep(0.05)
            if filled > 4 * 2**20:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, err.decode()) == (130, b"", "qsa generate: interrupted\n")


def test_a_reader_that_goes_away_is_no_error(folder, tmp_path):
    asked = command("generate", "--model", folder, "--backend", "cpu", "--prompt", PROMPT, "--max-tokens", 200_000)
    process = subprocess.Popen([*asked, "--ignore-eos"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(20)
    process.stdout.close()
    assert process.wait(timeout=PATIENCE) == 1 and process.stderr.read() == b""
    process.stderr.close()


def on_a_terminal(arguments, folder, stream):
    """What a command writes to ``stream``, ``stdout`` or ``stderr``, when that is a terminal."""
    ours, theirs = pty.openpty()
    other = {"stdout": "stderr", "stderr": "stdout"}[stream]
    streams = {stream: theirs, other: subprocess.DEVNULL}
    process = subprocess.Popen(command(*arguments), cwd=folder, env={**os.environ, "TERM": "xterm"}, **streams)
    os.close(theirs)
    found, deadline = b"", time.monotonic() + PATIENCE
    while time.monotonic() < deadline and select.select([ours], [], [], PATIENCE)[0]:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # Linux says so that the other end is closed
            break
        if not piece:
            break
        found += piece
    os.close(ours)
    assert process.wait(timeout=PATIENCE) == 0
    return found.decode()


def test_a_terminal_gets_no_control_characters_of_a_models(silent, tmp_path):
    asked = ("generate", "--model", silent, "--backend", "cpu", "--prompt", "a", "--max-tokens", 3, "--ignore-eos")
    assert on_a_terminal(asked, tmp_path, "stdout") == "\ufffd" * 3 + "\r\n"


def test_progress_of_a_prompt_on_a_terminal(silent, tmp_path):
    asked = ("generate", "--model", silent, "--backend", "cpu", "--prompt", "a" * 90, "--chunk", 30, "--max-tokens", 1)
    seen = on_a_terminal(asked, tmp_path, "stderr")
    assert "prompt, 90 tokens" in seen and seen.rstrip().endswith("end     stop")
