"""The round trip of another language: an engine in C reads exported cases, writes its outputs, and is judged."""

import shutil
import subprocess

import pytest

from qsa.kernels.sources import root
from qsa.parity import cli
from qsa.parity.cases import index

CC = shutil.which("cc")
SOURCE = root() / "tests" / "support" / "cases_engine.c"
OPERATIONS = ("cache", "append", "read", "attend", "select")
ATTEND = (
    "accuracy:op=attend,format=own,scores=ordinary,context=60,rows=1,tail=3,seed=1",
    "accuracy:op=attend,format=own,scores=flat,context=16384,rows=4,tail=3,seed=2",
    "pages:op=attend,format=own,page=4,order=identity,missing=none,context=300,tail=2,seed=1",
)
OTHERS = (
    "accuracy:op=append_kv,format=own,rows=16,seed=4",
    "selection:op=select,rule=blocks,scores=levels,context=8192,rows=8,tail=1,seed=2",
    "selection:op=select,rule=cells,scores=equal,context=2048,rows=4,tail=0,seed=2",
)

pytestmark = [
    pytest.mark.skipif(CC is None, reason="there is no C compiler (cc)"),
    pytest.mark.skipif(not SOURCE.is_file(), reason="not a checkout of the repository"),
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """The compiled engine."""
    program = tmp_path_factory.mktemp("engine") / "engine"
    subprocess.run([CC, "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, SOURCE, "-lm"], check=True)
    return program


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folder of cases for an engine with storage of its own."""
    folder = tmp_path_factory.mktemp("cases") / "new"
    named = [part for case in (*ATTEND, *OTHERS) for part in ("--case", case)]
    functions = [part for name in OPERATIONS for part in ("--op", name)]
    assert cli.main(["cases", "export", str(folder), "--storage", "own", *functions, *named]) == 0
    return folder


def judged(engine, folder, capsys, *options):
    """(exit code, case -> status) of what the engine writes."""
    done = subprocess.run([engine, folder, *options], check=True, capture_output=True, text=True)
    assert done.stdout == f"{len(index.read(folder).cases)} cases\n"
    capsys.readouterr()
    code = cli.main(["cases", "check", str(folder)])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    return code, {line[1]: line[0] for line in lines if line and line[0] in ("passed", "failed", "unsupported")}


def test_an_engine_in_c_passes(engine, exported, capsys):
    code, found = judged(engine, exported, capsys)
    assert (code, found) == (0, dict.fromkeys((*ATTEND, *OTHERS), "passed"))


def test_one_dropped_cell_fails(engine, exported, capsys):
    """The wrong engine leaves out a cell of every row: every case of attention fails, and no other."""
    code, found = judged(engine, exported, capsys, "drop")
    assert (code, found) == (1, dict.fromkeys(ATTEND, "failed") | dict.fromkeys(OTHERS, "passed"))
