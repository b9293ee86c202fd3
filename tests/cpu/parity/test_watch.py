"""``qsa parity --watch``: what is watched, and that a change runs the kernel as it is now."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qsa.parity import cli
from qsa.parity.running import watch
from support.interruptible import started

SELECT = "selection:op=select,rule=blocks,scores=levels,context=2048,rows=1,tail=1,seed=1"

KERNEL = """
import numpy as np

declaration = {"arithmetic": "exact"}


def select(scores, steps, *, rule="blocks"):
    ids = np.full((len(scores), 2051), -1, np.int32)
    for row, (_, n_kv, n_bid, width) in enumerate(steps.tolist()):
        best = np.argsort(-scores[row, :n_bid], kind="stable")[:KEPT]
        cells = (best[:, None] * 4 + np.arange(4)).ravel()
        ids[row, :width] = np.resize(np.sort(np.concatenate([np.arange(n_bid * 4, n_kv), cells])), width)
    return ids
"""

NEEDS = pytest.mark.skipif(importlib.util.find_spec("watchfiles") is None, reason="extra watch: watchfiles is missing")


def test_of_a_file_its_folder_is_watched_and_of_ours_the_project():
    assert watch.folders("/a/b/kernel.py:Kernel") == [Path("/a/b")] and watch.folders("their.module") == [Path.cwd()]
    names = {path.name for path in watch.folders(None)}
    assert (
        names
        == {path.name for path in watch.folders("cpu")}
        == {"reference", "kernels", "model", "engine", "golden", "parity"}
    )


@pytest.mark.parametrize(
    ("path", "counts"),
    [
        ("/a/kernel.py", True),
        ("/a/k.cu", True),
        ("/a/report.json", False),
        ("/a/__pycache__/k.py", False),
        ("/.git/x.py", False),
    ],
)
def test_sources_count_and_what_a_run_writes_does_not(path, counts):
    assert watch.is_source(None, path) is counts


def test_a_run_of_its_own_does_not_watch():
    assert watch.without_watch(["parity", "--watch", "--where", "rows=4", "--wat"]) == ["parity", "--where", "rows=4"]


def test_without_watchfiles_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(watch.importlib.util, "find_spec", lambda name: None)
    assert cli.main(["parity", "--watch"]) == 2
    assert "--watch: watchfiles is missing: pip install 'qsa-parity[watch]'" in capsys.readouterr().err


@NEEDS
def test_a_change_runs_the_kernel_as_it_is_now(tmp_path):
    kernel = tmp_path / "kernel.py"
    kernel.write_text(KERNEL.replace("KEPT", "511"))
    command = [sys.executable, "-m", "qsa.parity.cli", "parity", "--backend", "kernel.py", "--case", SELECT, "--watch"]
    out = tmp_path / "out.txt"
    with (
        open(out, "w") as file,
        started(command, cwd=tmp_path, stdout=file, stderr=subprocess.STDOUT, start_new_session=True) as process,
    ):

        def wait_for(text):
            for _ in range(1200):
                if text in out.read_text():
                    return
                assert process.poll() is None, out.read_text()
                time.sleep(0.05)
            pytest.fail(f"{text!r} did not come: {out.read_text()}")

        wait_for("0 passed, 1 failed")
        time.sleep(0.5)
        kernel.write_text(KERNEL.replace("KEPT", "512"))
        wait_for("changed: kernel.py")
        wait_for("1 passed, 0 failed")
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(20) == 130
    assert "Traceback" not in out.read_text()
