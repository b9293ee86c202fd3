"""``--ray``: cases as tasks of a cluster of two workers on this machine, one of them killed; poisonous cases."""

import collections
import importlib.util
import json
import os
import signal
import threading
import time

import pytest

from qsa.parity import cli
from qsa.parity.backend import Backend
from qsa.parity.running import sweep
from qsa.parity.running.sweep import TRIES, Job, Sweep

MISSING = importlib.util.find_spec("ray") is None
ray_only = [pytest.mark.ray, pytest.mark.skipif(MISSING, reason="ray is missing: pip install 'qsa-parity[ray]'")]


@pytest.fixture(scope="module")
def cluster():
    """Two workers on this machine."""
    ray = pytest.importorskip("ray")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


def marked(function):
    for mark in ray_only:
        function = mark(function)
    return function


def recorded(folder):
    """A worker's function: it writes when a case begins and ends, with its process. ``die`` ends its process, ``hang``
    does not end, ``victim`` waits the first time until it is killed."""
    folder = str(folder)

    def work(text):
        def note(what):
            with open(os.path.join(folder, "log"), "a") as file:
                file.write(json.dumps([what, text, os.getpid(), time.time()]) + "\n")

        note("begin")
        if text == "die":
            os._exit(3)
        if text == "hang":
            time.sleep(600)
        if text == "victim" and not os.path.exists(os.path.join(folder, "killed")):
            time.sleep(600)
        if text == "wrong":
            raise ValueError("the sources are others")
        time.sleep(0.05)
        note("end")
        return text.upper()

    return work


def log(folder):
    path = folder / "log"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@marked
def test_a_worker_that_is_killed_has_its_case_run_again(cluster, tmp_path):
    def kill():
        while True:
            begun = [pid for what, text, pid, _ in log(tmp_path) if (what, text) == ("begin", "victim")]
            if begun:
                (tmp_path / "killed").touch()
                os.kill(begun[0], signal.SIGKILL)
                return
            time.sleep(0.05)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    said = []
    texts = [f"a{number}" for number in range(20)]
    texts.insert(5, "victim")
    found = list(Sweep(recorded(tmp_path), told=said.append)(texts))
    thread.join()
    # Every case once, with its outcome; the others went on meanwhile.
    assert sorted(found) == sorted((text, text.upper(), "") for text in texts)
    assert len(said) == 1 and said[0].startswith("worker lost, ") and said[0].endswith("; again: victim")
    counts = collections.Counter(text for what, text, *_ in log(tmp_path) if what == "begin")
    assert counts.pop("victim") == 2 and set(counts.values()) == {1}
    assert len({pid for *_, pid, _ in log(tmp_path)}) >= 2


@marked
def test_what_takes_its_worker_along_is_named_after_three_times_and_the_last_is_alone(cluster, tmp_path):
    texts = ["die", "hang", *(f"b{number}" for number in range(12))]
    started = time.monotonic()
    sweeping = Sweep(recorded(tmp_path), limit=3)
    found = {text: (outcome, reason) for text, outcome, reason in sweeping(texts)}
    assert time.monotonic() - started < 60
    assert {text for text, (outcome, _) in found.items() if outcome is None} == {"die", "hang"}
    begin = f"poisonous: its worker was lost {TRIES} times, at last alone: "
    assert found["die"][1].startswith(begin + "WorkerCrashedError") and found["hang"][1] == begin + "no end within 3 s"
    assert all(outcome == text.upper() for text, (outcome, _) in found.items() if text.startswith("b"))
    events = log(tmp_path)
    assert [text for what, text, *_ in events if what == "begin"].count("die") == TRIES
    # The last tries come after everything else has ended.
    last = max(when for what, text, _, when in events if text.startswith("b"))
    assert all([when for what, text, _, when in events if text == name][-1] > last for name in ("die", "hang"))


@marked
def test_a_worker_that_cannot_work_ends_the_sweep(cluster, tmp_path):
    with pytest.raises(ValueError, match=r"--ray: a worker cannot run wrong: .*the sources are others"):
        list(Sweep(recorded(tmp_path))(["a", "wrong", "b"]))


@marked
def test_a_cluster_without_the_gpu_that_is_needed_is_told(cluster, tmp_path):
    if cluster.cluster_resources().get("GPU", 0):
        pytest.skip("this machine has a GPU")
    with pytest.raises(ValueError, match="no machine of the cluster has one"):
        list(Sweep(recorded(tmp_path), gpus=1)(["a"]))


@marked
def test_another_machines_sources_must_be_these(cluster):
    job = Job.of(Backend("cpu", "exact"), 60.0, 1)
    other = Job(job.backend, job.arithmetic, job.seconds, job.repeats, "0123", job.folder)
    with pytest.raises(ValueError, match=r"the sources are others \(.*\) than the driver's \(0123\)"):
        sweep._backend(other)


KERNEL = """
import os, time
import numpy as np

declaration = {"ties": "lowest", "rules": ["blocks"]}


def select(scores, steps):
    if len(scores) == 2:
        os._exit(4)
    if len(scores) == 8:
        time.sleep(600)
    found = []
    for row, (_, n_kv, n_bid, width) in zip(scores, steps, strict=True):
        blocks = np.argsort(-row[:n_bid], kind="stable")[:512]
        cells = blocks[:, None] * 4 + np.arange(4)
        found.append(np.concatenate([np.arange(n_bid * 4, n_kv), cells.ravel()])[:width])
    return found
"""


@marked
def test_the_command_gives_the_report_of_a_run_without_ray(tmp_path, monkeypatch, capsys):
    """A kernel that crashes on some cases and hangs on others, in two ways of running it."""
    import ray

    if ray.is_initialized():
        ray.shutdown()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.py").write_text(KERNEL)
    words = ["parity", "selection", "--op", "select", "--where", "context=8192", "--where", "scores=continuous"]
    words += ["--where", "scores=levels", "--where", "context=2048", "--where", "context=16"]
    words += ["--where", "rule=blocks", "--backend", "kernel.py", "--timeout", "3"]
    reports = {}
    for name, options in (("here", []), ("ray", ["--ray", "local"])):
        path = tmp_path / f"{name}.json"
        assert cli.main([*words, *options, "--json", str(path)]) == 1
        reports[name] = json.loads(path.read_text())
    out = capsys.readouterr().out

    def outcomes(report):
        return [(case["case"], case["status"], case["measure"]) for case in report["cases"]]

    assert outcomes(reports["ray"]) == outcomes(reports["here"]) and reports["ray"]["passed"] > 1
    reasons = " ".join(case["detail"]["reason"] for case in reports["ray"]["cases"])
    assert "ended with exit status 4" in reasons and "no answer within 3 s" in reasons
    assert "again: qsa parity --backend kernel.py --case" in out
    (count,) = reports["ray"]["environment"]["workers"].values()
    assert count == len(reports["ray"]["cases"])
    assert not ray.is_initialized()


def test_without_ray_the_option_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(sweep.importlib.util, "find_spec", lambda name: None)
    assert cli.main(["parity", "--ray", "local", "--backend", "cpu"]) == 2
    assert "--ray: ray is missing: pip install 'qsa-parity[ray]'" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--bench", "verify-batch"], ["--in-process"], ["--shrunk", "a.safetensors"]])
def test_what_does_not_go_with_ray(option, capsys):
    assert cli.main(["parity", "--ray", "local", "--backend", "cpu", *option]) == 2
    assert f"--ray = 'local': not together with {option[0]}" in capsys.readouterr().err


@marked
@pytest.mark.parametrize("address", ["auto", "127.0.0.1:1"])
def test_an_address_without_a_cluster_is_one_line(address):
    import ray

    if ray.is_initialized():
        ray.shutdown()
    started = time.monotonic()
    with pytest.raises(ValueError, match=rf"--ray = '{address}': no cluster could be joined: "):
        sweep.start(address)
    assert time.monotonic() - started < 30
