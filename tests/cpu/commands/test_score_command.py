"""``qsa score``: the engine's figures, and one line for everything that cannot be."""

import json
import math

import numpy as np
import pytest

from qsa.engine import score
from qsa.engine.load import load_model
from qsa.engine.slots import memory
from support.command_models import PROMPT, make, run
from support.exact_models import SMALL_CONFIG


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make(tmp_path_factory.mktemp("bytes"))


SCORE = {
    "no file": ((), "the following arguments are required: FILE"),
    "missing": (("nowhere.txt",), "nowhere.txt: No such file or directory"),
    "one token": (("one.txt",), "one.txt: 1 tokens: at least 2 required"),
    "window": (("text.txt", "--window", "9"), "error: --window = 9: must be an integer, from 1 to 8"),
    "chunk": (("text.txt", "--chunk", "0"), "error: --chunk = 0: must be an integer, at least 1"),
    "both": (("text.txt", "--chunk", "4", "--window", "2"), "argument --window: not allowed with argument --chunk"),
    "capacity": (("text.txt", "--capacity", "9"), "error: text.txt: 40 tokens need 39 cells: --capacity = 9"),
    "no capacity": (("text.txt", "--capacity", "0"), "error: --capacity = 0: must be an integer, from 1 to 2147483647"),
    "capacity beyond all": (("text.txt", "--capacity", "100000000000"), "--capacity = 100000000000: must be an intege"),
    "capacity beyond memory": (("text.txt", "--capacity", "2000000000"), "--capacity = 2000000000, --page-size = 4: a"),
    "page-size": (("text.txt", "--page-size", "100000000000"), "--page-size = 100000000000: must be an integer, from"),
    "page beyond memory": (
        ("text.txt", "--page-size", "2000000000"),
        "error: text.txt: capacity = 39, --page-size = 2000000000: a slot takes at least ",
    ),
    "no ids": (("words.txt", "--ids"), "error: words.txt: 'two': ids are whole numbers from 0 on"),
    "json": (("text.txt", "--json", "."), "--json = '.': must be a file that can be written"),
    "model": (("text.txt", "--model", "nowhere"), "there is no such folder"),
}


@pytest.mark.parametrize(("arguments", "message"), SCORE.values(), ids=SCORE)
def test_score_says_on_one_line_what_cannot_be(capsys, folder, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(memory, "host_bytes", lambda: 2**34)
    (tmp_path / "one.txt").write_text("a")
    (tmp_path / "text.txt").write_text("a" * 40)
    (tmp_path / "words.txt").write_text("1 two 3")
    code, out, err = run(capsys, "score", "--model", folder, "--backend", "cpu", *arguments)
    last = err.splitlines()[-1]
    assert (code, out) == (2, "") and last.startswith("qsa score: error: ") and message in last


def test_score_gives_the_engines_figures(capsys, folder, tmp_path):
    data = (PROMPT * 4).encode()
    (tmp_path / "text.txt").write_bytes(data)
    ids = np.frombuffer(data, np.uint8)
    want = score(load_model(folder), ids)
    asked = ("score", "--model", folder, "--backend", "cpu", tmp_path / "text.txt")
    code, out, err = run(capsys, *asked, "--json", tmp_path / "deep" / "figures.json")
    assert (code, err) == (0, "")
    figures = json.loads((tmp_path / "deep" / "figures.json").read_text())
    assert (figures["tokens"], figures["bytes"], figures["nll"]) == (len(ids) - 1, len(ids) - 1, want.nll.mean())
    assert figures["bits_per_byte"] == pytest.approx(want.nll.mean() / math.log(2))
    assert figures["perplexity"] == pytest.approx(math.exp(want.nll.mean()))
    assert figures["top_1"] == (want.top == ids[1:]).mean()
    assert figures["nll_standard_error"] == pytest.approx(want.nll.std(ddof=1) / math.sqrt(len(want.nll)))
    assert (figures["backend"], figures["arithmetic"], figures["window"]) == ("cpu", "exact", 8)
    assert f"mean NLL       {want.mean:.4f} nats" in out and f"bits per byte  {figures['bits_per_byte']:.4f}" in out
    for more in (("--window", 1), ("--chunk", 50), ("--page-size", 64)):
        code, out, _ = run(capsys, *asked, "--json", "-", *more)
        said = json.loads(out)
        name, value = more[0].lstrip("-").replace("-", "_"), more[1]
        assert code == 0 and said["nll"] == figures["nll"] and said[name] == value
        assert ("window" in said) != ("chunk" in said)


def test_the_bytes_of_ids_are_not_known(capsys, tmp_path):
    numbered = make(tmp_path / "numbered", SMALL_CONFIG)
    (tmp_path / "ids.txt").write_text("1 2 3 4 5 6")
    code, out, _ = run(capsys, "score", "--model", numbered, "--ids", tmp_path / "ids.txt")
    assert code == 0 and "tokens         5" in out and "bits per byte" not in out
