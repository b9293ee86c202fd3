"""``qsa generate``: one line, with the option's own name, for everything that cannot be."""

import json
import math
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from qsa.engine import Sampling
from qsa.engine.slots import memory
from qsa.parity.commands.generate import SAMPLING
from qsa.reference.exact.sampler import constants
from support.command_models import make, make_undrafted, run
from support.exact_models import SMALL_CONFIG


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make(tmp_path_factory.mktemp("bytes"))


GENERATE = {
    "no prompt": ((), "one of the arguments --prompt --prompt-file is required"),
    "two prompts": (("--prompt", "a", "--prompt-file", "b"), "not allowed with argument"),
    "empty prompt": (("--prompt", ""), "prompt: 0 tokens: at least 1 required"),
    "missing prompt": (("--prompt-file", "nowhere.txt"), "error: nowhere.txt: No such file or directory"),
    # known-faults N12: the number and the words of the system's error.
    "prompt is a folder": (
        ("--prompt-file", "."),
        "error: .: is a folder: a file with a text is required, or - for st",
    ),
    "no ids": (("--prompt", "12 x", "--ids"), "prompt: 'x': ids are whole numbers"),
    "negative id": (("--prompt", "-3", "--ids"), "prompt: '-3': ids"),
    "id outside": (("--prompt", "1 256", "--ids"), "prompt: id 256: the vocabulary is 0 to 255"),
    "huge id": (("--prompt", "1" * 30, "--ids"), "ids are whole numbers"),
    "spec": (("--prompt", "a", "--spec", "9"), "error: --spec = 9: must be an integer, from 1 to 8"),
    "spec 0": (("--prompt", "a", "--spec", "0"), "error: --spec = 0: must be an integer, from 1 to 8"),
    "spec no number": (("--prompt", "a", "--spec", "four"), "argument --spec: invalid int value: 'four'"),
    "spec-min-p": (("--prompt", "a", "--spec-min-p", "2"), "error: --spec-min-p = 2.0: must be a number from 0 to 1"),
    "mtp-max-t": (("--prompt", "a", "--mtp-max-t", "99"), "error: --mtp-max-t = 99: must be an integer, from 1 to 8"),
    "mtp-window": (("--prompt", "a", "--mtp-window", "0"), "error: --mtp-window = 0: must be an integer, at least 1"),
    "temperature": (("--prompt", "a", "--temperature", "nan"), "error: --temperature = nan: must be a finite number"),
    # known-faults N12: it was taken for 0, which is greedy.
    "temperature below 0": (("--prompt", "a", "--temperature", "-1"), "--temperature = -1.0: must be at least 0"),
    "min-p": (("--prompt", "a", "--min-p", "2"), "error: --min-p = 2.0: must be from 0 to 1"),
    "top-p": (("--prompt", "a", "--top-p", "-1"), "error: --top-p = -1.0: must be from 0 to 1"),
    "top-k": (("--prompt", "a", "--top-k", "-1"), "error: --top-k = -1: must be at least 0"),
    "repeat": (("--prompt", "a", "--repeat", "0"), "error: --repeat = 0.0: must be above 0"),
    "seed": (("--prompt", "a", "--seed", "-1"), "error: --seed = -1: must be an integer, from 0"),
    "acceptance": (("--prompt", "a", "--acceptance", "all"), "error: --acceptance = 'all': allowed are greedy, exact"),
    "greedy while drawing": (
        ("--prompt", "a", "--acceptance", "greedy", "--temperature", "1"),
        "error: --acceptance = 'greedy': --temperature = 1.0: must be 0",
    ),
    "max-tokens": (
        ("--prompt", "abc", "--max-tokens", "0"),
        "--max-tokens = 0: must be an integer, from 1 to 2147483645",
    ),
    "max-tokens beyond all": (
        ("--prompt", "a", "--max-tokens", "100000000000"),
        "--max-tokens = 100000000000: must be",
    ),
    "max-tokens beyond memory": (
        ("--prompt", "abc", "--max-tokens", "2000000000"),
        "error: --max-tokens = 2000000000: capacity = 2000000002, --page-size = 4: a slot takes at least ",
    ),
    "capacity": (
        ("--prompt", "abc", "--capacity", "20"),
        "error: --prompt: 3 prompt tokens and --max-tokens = 256 need 258 cells: --capacity = 20",
    ),
    "no capacity": (("--prompt", "abc", "--capacity", "0"), "error: --capacity = 0: must be an integer, from 1 to 214"),
    "capacity beyond all": (
        ("--prompt", "a", "--capacity", "100000000000"),
        "error: --capacity = 100000000000: must be",
    ),
    "capacity beyond memory": (
        ("--prompt", "a", "--capacity", "2000000000"),
        "error: --capacity = 2000000000, --page-size = 4: a slot takes at least ",
    ),
    "chunk": (("--prompt", "a", "--chunk", "0"), "error: --chunk = 0: must be an integer, at least 1"),
    "page-size": (
        ("--prompt", "a", "--page-size", "0"),
        "error: --page-size = 0: must be an integer, from 1 to 214748",
    ),
    "page-size beyond all": (
        ("--prompt", "a", "--page-size", "100000000000"),
        "--page-size = 100000000000: must be an",
    ),
    "page-size beyond memory": (
        ("--prompt", "a", "--page-size", "2000000000"),
        "error: --max-tokens = 256: capacity = 256, --page-size = 2000000000: a slot takes at least ",
    ),
    "kv-format": (("--prompt", "a", "--kv-format", "fp8"), "--kv-format = 'fp8': the exact arithmetic takes int8"),
    "exact fp16": (("--prompt", "a", "--kv-format", "fp16"), "--kv-format = 'fp16': the exact arithmetic takes int8"),
    "backend": (("--prompt", "a", "--backend", "gpu"), "error: --backend = 'gpu': allowed are cpu, cuda, reference"),
    "arithmetic": (("--prompt", "a", "--arithmetic", "f32"), "error: --arithmetic = 'f32': allowed are exact, float"),
    "rule": (("--prompt", "a", "--rule", "best"), "error: --rule = 'best': allowed are blocks, cells"),
    "no model": (("--prompt", "a", "--model", "nowhere"), "error: --model = 'nowhere': there is no such folder"),
}
"""Options that cannot be; those of the model come last, so that they replace what stands before them."""


@pytest.mark.parametrize(("arguments", "message"), GENERATE.values(), ids=GENERATE)
def test_generate_says_on_one_line_what_cannot_be(capsys, folder, monkeypatch, arguments, message):
    monkeypatch.setattr(memory, "host_bytes", lambda: 2**34)
    code, out, err = run(capsys, "generate", "--model", folder, "--backend", "cpu", *arguments)
    assert (code, out) == (2, "") and message in err
    # Kernels that no one has used yet are compiled first, and that is said.
    told = ("qsa generate: compiling kernels", "qsa generate: kernels compiled")
    lines = [line for line in err.splitlines() if not line.startswith(told)]
    assert lines[-1].startswith("qsa generate: error: ") and message in lines[-1]
    # argparse says its usage first; everything else is one line.
    assert len(lines) == 1 or lines[0].startswith("usage: ")


def test_tensors_that_the_index_does_not_name_are_told(capsys, folder, tmp_path):
    """known-faults E10: they are skipped, and counted on a line of their own."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    stored = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    save_file(stored | {"spare": np.zeros(1, np.float32)}, tmp_path / "a.safetensors")
    index = {"weight_map": dict.fromkeys(stored, "a.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    asked = "--backend", "cpu", "--prompt", "a", "--max-tokens", 3, "--quiet"
    code, out, err = run(capsys, "generate", "--model", tmp_path, *asked)
    assert (code, out) == run(capsys, "generate", "--model", folder, *asked)[:2]
    assert err.startswith("qsa generate: ") and err.count("\n") == 1
    assert "1 tensors of its files are not in model.safetensors.index.json and were skipped: spare in" in err


@pytest.mark.parametrize(
    ("name", "bound", "outward"),
    [
        (name, bound, outward)
        for name, option in SAMPLING.items()
        for bound, outward in ((option.low, -1), (option.high, 1))
        if bound is not None
    ],
)
def test_an_option_has_the_bounds_of_the_sampler(name, bound, outward):
    field, kind = name.replace("-", "_"), SAMPLING[name].kind
    outside = bound + outward if kind is int else math.nextafter(bound, outward * math.inf)
    assert constants(Sampling(**{field: kind(bound)}))
    with pytest.raises(ValueError, match=f"^{field} = "):
        constants(Sampling(**{field: outside}))


def test_what_a_model_does_not_have(capsys, tmp_path):
    undrafted, numbered = make_undrafted(tmp_path / "undrafted"), make(tmp_path / "numbered", SMALL_CONFIG)
    code, _, err = run(capsys, "generate", "--model", undrafted, "--prompt", "a", "--spec", "2")
    assert code == 2 and "--spec = 2: the model has no draft layer: only 1 is possible" in err
    code, _, err = run(capsys, "generate", "--model", numbered, "--prompt", "a")
    assert code == 2 and "a vocabulary of 97 and no tokenizer.json: give the text as ids (--ids)" in err
