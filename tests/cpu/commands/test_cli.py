"""The command line ``qsa``: exit codes, case strings, reports, and what an interrupted run leaves.

One file: all its tests run the command in the folder of a foreign kernel that is made at the top.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from xml.etree import ElementTree

import pytest

from qsa.parity import cli, environment, suite
from qsa.parity.evidence.process import ROOT
from support.interruptible import started

FAST = "selection:op=select,rule=blocks,scores=levels,context=2048,rows=1,tail=1,seed=1"
ATTEND = "accuracy:op=attend,format=int8,scores=ordinary,context=60,rows=1,tail=3,seed=1"

KERNEL = """
import numpy as np

declaration = {"arithmetic": "exact"}


def select(scores, steps, *, rule="blocks"):
    ids = np.full((len(scores), 2051), -1, np.int32)
    for row, (_, n_kv, n_bid, width) in enumerate(steps.tolist()):
        best = np.argsort(-scores[row, :n_bid], kind="stable")[: 512 if rule == "blocks" else 513]
        tail = np.arange(n_bid * 4, n_kv)
        cells = (best[:, None] * 4 + np.arange(4)).ravel()
        ids[row, :width] = np.sort(np.concatenate([tail, cells])[:width])
    return ids


def attend(q, kv, ids, steps, slots=None, out=None):
    return np.zeros(q.shape, np.float32)
"""


def run(capsys, *arguments):
    """(exit code, stdout, stderr) of a command in this process."""
    try:
        code = cli.main(list(arguments))
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def kernel(tmp_path):
    """A folder with a kernel of somebody else's: right selection, wrong attention, nothing more."""
    (tmp_path / "their_kernel.py").write_text(KERNEL)
    return tmp_path


def shell(folder, *arguments):
    """The completed ``qsa`` command in a process of its own."""
    command = [sys.executable, "-m", "qsa.parity.cli", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["parity", "accurcy"], ["'accurcy'", "accuracy, selection, split, pages, goldens"]),
        (["parity", "--arithmetic", "fast"], ["--arithmetic", "'fast'", "exact, float"]),
        (["parity", "--backend", "no_such_module"], ["'no_such_module'", "cpu, cuda, exact"]),
        (["parity", "--backend", "json"], ["'json'", "attend"]),
        (["parity", "--backend", "exact", "--arithmetic", "float"], ["'float'", "'exact'"]),
        (["parity", "pages", "--case", FAST], ["'pages'", "--case"]),
        (["parity", "--case", "selektion:op=select"], ["'selektion'", "selection"]),
        (["parity", "--case", FAST.replace("op=select", "op=choose")], ["'choose'", "select, unused, cut, indexer"]),
        (["parity", "--case", FAST.replace("blocks", "best")], ["'best'", "blocks, cells"]),
        (["parity", "--case", FAST.replace(",seed=1", "")], ["seed", "missing"]),
        (["parity", "--case", FAST + ",page=4"], ["page", "no parameter"]),
        (["parity", "--case", FAST + ",seed=2"], ["seed is given twice"]),
        (["parity", "--case", ATTEND.replace("context=60,rows=1", "context=1,rows=8")], ["rows = 8", "4 cells"]),
        (["parity", "--case", "attend:format=int8"], ["context", "missing"]),
        (["parity", "--json", "."], ["--json", "'.'"]),
        (["parity", "--junit", "/proc/none/report.xml"], ["--junit", "/proc/none/report.xml"]),
        (["parity", "--tolerance", "1"], ["--tolerance"]),
        (["provve"], ["provve", "parity"]),
        ([], ["COMMAND"]),
    ],
)
def test_bad_arguments_name_themselves_and_what_is_allowed(arguments, words, capsys):
    code, out, err = run(capsys, *arguments)
    assert code == 2 and "Traceback" not in err
    for word in words:
        assert word in err, err
    assert out == ""


def test_a_switch_with_a_bad_value_is_a_bad_argument(tmp_path):
    environment = {**os.environ, "STRATA_QSA_TOPK_SCAN": "yes"}
    command = [sys.executable, "-m", "qsa.parity.cli", "parity", "--case", FAST]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 2 and "STRATA_QSA_TOPK_SCAN = 'yes'" in done.stderr and "Traceback" not in done.stderr


def test_every_case_of_the_list_can_be_pasted_back(capsys):
    for arithmetic in ("exact", "float"):
        code, out, _ = run(capsys, "parity", "--full", "--list", "--arithmetic", arithmetic)
        assert code == 0
        texts = out.splitlines()
        assert len(texts) == len(set(texts)) > 200
        for text in texts:
            # What is read from the golden model's files has no seed.
            drawn = suite.parse(text).module not in ("seven", "spec", "nll", "needle")
            assert suite.parse(text).text == text and bool(re.search(r",seed=\d+(,|$)", text)) == drawn
        # In the float arithmetic texts may part, so windows of different sizes are not held together.
        modules = set(suite.MODULES) - ({"spec"} if arithmetic == "float" else set())
        assert {suite.parse(text).module for text in texts} == modules


def test_a_pasted_case_gives_the_recipe_that_the_module_made():
    for case in suite.collect(["accuracy", "goldens"], "exact"):
        assert suite.parse(case.text) == case


def test_one_case_runs_alone_and_says_everything(capsys):
    code, out, _ = run(capsys, "parity", "--backend", "exact", "--case", ATTEND)
    assert code == 0 and "1 passed, 0 failed, 0 unsupported" in out
    assert "attend: kernel: passed" in out and "bound: " in out and "quantisation" in out
    assert "\x1b" not in out


def test_reports_of_somebody_elses_kernel(kernel):
    arguments = ("--backend", "their_kernel", "--json", "deep/report.json", "--junit", "junit.xml")
    pages = "pages:op=append_kv,format=int8,page=4,order=identity,missing=none,rows=4,seed=1"
    done = shell(kernel, "parity", *arguments, "--case", FAST, "--case", ATTEND, "--case", pages)
    assert done.returncode == 1, done.stderr
    assert f"qsa parity --backend their_kernel --case '{ATTEND}'" in done.stdout
    assert "unsupported, 1 case: append_kv: the backend has none" in done.stdout
    report = json.loads((kernel / "deep" / "report.json").read_text())
    assert list(report) == ["passed", "failed", "unsupported", "environment", "cases"]
    assert (report["passed"], report["failed"], report["unsupported"]) == (1, 1, 1)
    assert report["environment"]["backend"] == "their_kernel" and report["environment"]["versions"]["numpy"]
    keys = {"module", "case", "status", "measure", "bound", "share", "seconds", "detail"}
    assert [one["status"] for one in report["cases"]] == ["passed", "failed", "unsupported"]
    assert all(one.keys() == keys for one in report["cases"])
    passed, failed, unsupported = report["cases"]
    assert (passed["measure"], passed["bound"], passed["share"]) == (0, 0, 0)
    assert failed["measure"] == 1 and failed["share"] == pytest.approx(1 / failed["bound"])
    assert failed["detail"]["comparisons"][0]["first"]["coordinate"] == [0, 0, 0]
    assert unsupported["measure"] is None and unsupported["detail"]["reason"]
    suites = ElementTree.parse(kernel / "junit.xml").getroot()
    assert {one.get("name"): (one.get("tests"), one.get("failures"), one.get("skipped")) for one in suites} == {
        "accuracy": ("1", "1", "0"),
        "selection": ("1", "0", "0"),
        "pages": ("1", "0", "1"),
    }
    failure = suites.find("testsuite/testcase/failure")
    assert "FAILED" in failure.get("message") and "consistent with: zeros" in failure.text
    assert suites.find("testsuite/testcase/skipped").get("message") == "append_kv: the backend has none"
    assert sorted(path.name for path in kernel.iterdir() if "pycache" not in path.name) == [
        "deep",
        "junit.xml",
        "their_kernel.py",
    ]


def test_a_run_in_which_everything_is_unsupported_is_no_success(kernel):
    case = "pages:op=append_kv,format=int8,page=4,order=identity,missing=none,rows=4,seed=1"
    done = shell(kernel, "parity", "--backend", "their_kernel", "--case", case)
    assert done.returncode == 1 and "nothing passed" in done.stdout


def test_a_module_that_fails_while_it_is_imported(tmp_path):
    (tmp_path / "broken_kernel.py").write_text("def attend(:\n")
    done = shell(tmp_path, "parity", "--backend", "broken_kernel", "--case", FAST)
    assert done.returncode == 2 and "SyntaxError" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_run_that_is_killed_in_its_first_case_leaves_the_report_that_was_there(sent, code, tmp_path):
    (tmp_path / "slow_kernel.py").write_text(
        "import pathlib, time\n\n\ndef select(scores, steps, ids=None, *, rule='blocks'):\n"
        "    pathlib.Path('started').touch()\n    time.sleep(30)\n"
    )
    (tmp_path / "report.json").write_text("the report before")
    command = [sys.executable, "-m", "qsa.parity.cli", "parity", "--backend", "slow_kernel", "--case", FAST]
    streams = {"stderr": subprocess.PIPE, "text": True}
    with started([*command, "--json", "report.json"], cwd=tmp_path, **streams) as process:
        for _ in range(600):
            if (tmp_path / "started").exists() or process.poll() is not None:
                break
            time.sleep(0.05)
        process.send_signal(sent)
        _, err = process.communicate(timeout=20)
    assert process.returncode == code and "Traceback" not in err
    assert (tmp_path / "report.json").read_text() == "the report before"
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".tmp"]


def test_a_report_that_cannot_be_finished_leaves_nothing(tmp_path, monkeypatch):
    from qsa.golden import files
    from qsa.parity import report

    def full(*arguments):
        raise OSError("no space left")

    (tmp_path / "report.json").write_text("before")
    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        report.write_json(tmp_path / "report.json", {"passed": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    assert (tmp_path / "report.json").read_text() == "before"


def test_error_texts_with_control_characters_make_valid_xml(tmp_path):
    (tmp_path / "odd_kernel.py").write_text(
        "def select(*a, **k):\n    raise ValueError('\\x1b[31m \\x00 \\ud800 <&')\n"
    )
    done = shell(tmp_path, "parity", "--backend", "odd_kernel", "--case", FAST, "--junit", "junit.xml")
    assert done.returncode == 1
    failure = ElementTree.parse(tmp_path / "junit.xml").getroot().find("testsuite/testcase/failure")
    assert failure.text.startswith("  ValueError: ?[31m ? ? <&")


def test_env_names_the_machine(capsys):
    code, out, _ = run(capsys, "env")
    lines = dict(line.split(None, 1) for line in out.splitlines())
    assert code == 0 and {"cpu", "cores", "threads", "target", "versions", "gpu", "switches"} <= lines.keys()
    assert "numpy " in lines["versions"] and "QSA_ARITHMETIC" in lines["switches"]
    assert not lines["gpu"].startswith("none") or ": " in lines["gpu"]


INTERRUPTED = """
import os, signal, sys

class Finder:
    # Sends Ctrl-C when the module is imported, and finds nothing.
    def find_spec(self, name, *rest):
        if name == sys.argv[1]:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
from qsa.parity.cli import main
sys.exit(main([sys.argv[2]]))
"""


@pytest.mark.parametrize(
    ("module", "verb"),
    [
        ("numpy", "env"),
        ("qsa.parity.environment", "env"),
        ("qsa.parity.commands", "parity"),
        ("qsa.parity.suite", "parity"),
        ("qsa.parity.gate", "gate"),
    ],
)
def test_ctrl_c_in_the_first_second_is_one_line(tmp_path, module, verb):
    """Known-faults N12: it was a traceback while the modules were imported."""
    with started(
        [sys.executable, "-c", INTERRUPTED, module, verb], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"qsa: interrupted\n")


def test_version(capsys):
    """Known-faults N12."""
    code, out, err = run(capsys, "--version")
    assert (code, err) == (0, "") and re.fullmatch(r"qsa-parity \d+\.\d+\.\d+\n", out)


@pytest.mark.parametrize(
    "arguments",
    [("golden", "list"), ("golden", "list", "attend-x"), ("parity", "--list"), ("env",), ("gate", "--list")],
)
def test_a_reader_that_goes_away_is_no_error(arguments):
    """Known-faults N12: `qsa golden list | head` printed a broken pipe."""
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as out:
        command = [sys.executable, "-m", "qsa.parity.cli", *arguments]
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, timeout=60)
    if "attend-x" in arguments:
        assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)  # its own error, and no pipe is written
    else:
        assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("verb", ["score", "generate"])
def test_a_file_that_is_none_is_named_without_the_systems_number(capsys, tmp_path, verb):
    option = ["--prompt-file"] if verb == "generate" else []
    code, _, err = run(capsys, verb, *option, str(tmp_path))
    assert code == 2
    assert (
        err == f"qsa {verb}: error: {tmp_path}: is a folder: a file with a text is required, or - for standard input\n"
    )
    code, _, err = run(capsys, verb, *option, str(tmp_path / "none"))
    assert (code, err) == (2, f"qsa {verb}: error: {tmp_path / 'none'}: No such file or directory\n")


def test_env_says_what_is_supported_and_why_not(capsys, monkeypatch):
    missing = {"watchfiles", "jinja2"}
    find = environment.importlib.util.find_spec
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda name: None if name in missing else find(name))
    monkeypatch.setattr(environment, "_gpu", lambda: "none: no driver")
    code, out, _ = run(capsys, "env")
    lines = out.splitlines()
    assert code == 0 and "supported  backend cpu" in lines
    assert "left out   backend cuda, tests/gpu, evidence of a device: no driver" in lines
    assert "left out   reports in HTML (--html): jinja2 missing: pip install 'qsa-parity[report]'" in lines
    left_out = [line for line in lines if line.startswith("left out")]
    assert len(left_out) >= 3 and all(": " in line for line in left_out)


def test_every_extra_that_env_names_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extra, packages in environment._EXTRAS.values():
        declared = " ".join(project["optional-dependencies"][extra])
        assert all(name in declared for name in packages)


def test_a_verb_is_parsed_without_the_others(monkeypatch):
    imported = []
    real = cli.importlib.import_module
    monkeypatch.setattr(cli.importlib, "import_module", lambda *names: imported.append(names[0]) or real(*names))
    cli.parser("env").parse_args(["env"])
    assert imported == [".environment"]
    cli.parser("no-such-verb")
    ours = [name for name in imported if name.startswith(".")]
    assert ours == [".environment", *(f".{module}" for module in cli.VERBS.values())]


def test_a_shell_gets_completions(tmp_path):
    pytest.importorskip("argcomplete")
    line = "qsa parity --exit"
    asked = {
        "_ARGCOMPLETE": "1",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "_ARGCOMPLETE_STDOUT_FILENAME": "out",
    }
    command = [sys.executable, "-m", "qsa.parity.cli"]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, **asked}, timeout=60, check=True)
    assert (tmp_path / "out").read_text().split("\x0b") == ["--exitfirst "]


def test_every_command_is_a_verb():
    files = (ROOT / "parity" / "commands").glob("*.py")
    # The options of `qsa parity` have a file of their own, which is no verb.
    modules = {path.stem for path in files if "add_parser(" in path.read_text()} - {"parity_options"}
    assert {f"commands.{name}" for name in modules} == set(cli.VERBS.values()) - {"environment"} and len(modules) >= 10
