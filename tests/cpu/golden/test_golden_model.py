"""The golden model: its files, its exercises, its network in torch, and what it can do."""

import dataclasses
import random
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import qsa.golden
from qsa.golden.training import convert, corpus, exercises
from qsa.golden.training.config import CONFIG
from qsa.model.checkpoint import read_quantised, write_quantised
from qsa.model.text_model import ExactModel
from qsa.parity import cli
from qsa.reference.exact.layers.linear import QuantisedLinear
from qsa.reference.model.presets import TINY_CONFIG
from qsa.reference.model.random_model import random_model, random_tensors
from qsa.reference.model.text_model import shapes

FOLDER = Path(qsa.golden.__file__).parent / "model"


def ids(data):
    return np.frombuffer(data, np.uint8).astype(np.int64)


@pytest.fixture(scope="module")
def golden():
    from qsa.kernels import cpu

    return ExactModel(*read_quantised(FOLDER), backend=cpu)


def greedy(model, prompt, count):
    """``count`` bytes after ``prompt``."""
    state, said = model.init_state(len(prompt) + count), b""
    logits, _ = model.forward(ids(prompt), state)
    for _ in range(count):
        said += bytes([int(logits[-1].argmax())])
        logits, _ = model.forward(ids(said[-1:]), state)
    return said


def test_files_have_the_configuration_and_fit():
    config, tensors = read_quantised(FOLDER)
    assert config == CONFIG
    assert set(tensors) == set(shapes(CONFIG, draft=True))
    matrices = [t for t in tensors.values() if isinstance(t, QuantisedLinear)]
    assert len(matrices) > 150 and all(t.codes.dtype == np.int8 for t in matrices)
    assert sum((FOLDER / name).stat().st_size for name in ("config.json", "model.safetensors")) <= convert.LIMIT


@pytest.mark.parametrize("name", ["text", "code", "math"])
def test_held_out_texts_are_long_enough_and_no_prose_of_the_exercises(name):
    data = (FOLDER / f"heldout-{name}.txt").read_bytes()
    assert 8192 + 1 <= len(data) <= 12_000 and 0 not in data and data.endswith(b"\n")


def test_held_out_math_is_made_of_problems_that_no_training_text_has():
    rng, text = random.Random("held out"), b""
    while len(text) < 10_000:
        text += exercises.arithmetic(rng, 900, kept=True).data
    assert (FOLDER / "heldout-math.txt").read_bytes() == text[: text.rfind(b"\n", 0, 10_000) + 1]
    kept = {exercises.problem(random.Random(seed), True)[:3] for seed in range(300)}
    trained = {exercises.problem(random.Random(seed), False)[:3] for seed in range(3000)}
    assert len(kept) > 100 and not kept & trained


@pytest.mark.parametrize("kind", ["arithmetic", "copying", "needles"])
def test_exercises_weigh_every_byte_and_answers_most(kind):
    rng = random.Random(kind)
    filler = exercises.lines_of([b"a line of filler\n", b"another one\n"], rng)
    text = {
        "arithmetic": lambda: exercises.arithmetic(rng, 500),
        "copying": lambda: exercises.copying(rng),
        "needles": lambda: exercises.needle_document(rng, 3000, filler),
    }[kind]()
    assert len(text.data) == len(text.weight)
    assert {exercises.DICE, exercises.ANSWER} <= set(text.weight) <= {exercises.DICE, exercises.PLAIN, exercises.ANSWER}
    answers = bytes(b for b, w in zip(text.data, text.weight, strict=True) if w == exercises.ANSWER)
    assert answers.endswith(b"\n") and answers


def test_haystack_holds_every_needle_once_at_its_depth():
    rows = [b"filler %d\n" % i for i in range(100)]
    hay, wanted = exercises.haystack(random.Random(1), 8000, (10, 50, 90), exercises.lines_of(rows, random.Random(2)))
    assert 7900 < len(hay) <= 8000 and hay.endswith(b"\n")
    for depth, needle in wanted.items():
        assert hay.count(needle.word.encode()) == hay.count(needle.place.encode()) == 1
        # Other needles, five dozen bytes each, and the end of a line move it a little.
        assert abs(hay.index(needle.fact.data) / len(hay) * 100 - depth) < 5
    for bad, size in (((101,), 8000), ((50,), 100)):
        with pytest.raises(ValueError):
            exercises.haystack(random.Random(1), size, bad, exercises.lines_of(rows, random.Random(2)))


def test_corpus_cleans_texts_and_makes_chapters(tmp_path):
    assert corpus.clean(b"short") is None
    assert corpus.clean("é".encode() * 300) is None
    long = "\u201cA\tline\u201d  \r\n".encode() * 40
    assert corpus.clean(long) == b'"A      line"\n' * 40
    lines = (
        b"Hit '?' for help.\nbible(KJV) [Gen1:1]> gen1:1-rev22:21\nGe1:1 In the beginning\nGe1:2 And the\nGe2:1 Thus\n"
    )
    assert corpus.verses(lines) == [b"Ge 1\n\n1 In the beginning\n2 And the\n", b"Ge 2\n\n1 Thus\n"]


def test_convert_writes_what_was_trained(tmp_path, monkeypatch):
    from safetensors.numpy import save_file

    config = dataclasses.replace(TINY_CONFIG, head_dim=64)
    monkeypatch.setattr(convert, "CONFIG", config)
    tensors = {
        n: np.asarray(t, np.float32) for n, t in random_tensors(config, 4, draft=True).items() if t.dtype != np.int64
    }
    names = sorted(tensors)
    for number, part in enumerate((names[::2], names[1::2])):
        save_file(
            {name: np.ascontiguousarray(tensors[name]) for name in part}, tmp_path / f"weights-{number}.safetensors"
        )
    convert.main(tmp_path, tmp_path / "model")
    write_quantised(tmp_path / "direct", config, random_tensors(config, 4, draft=True))
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("model", "direct"))
    assert one == other
    monkeypatch.setattr(convert, "LIMIT", 1000)
    with pytest.raises(ValueError, match="1000"):
        convert.main(tmp_path, tmp_path / "model")
    with pytest.raises(FileNotFoundError):
        convert.tensors(tmp_path / "nothing")


def test_it_calculates(golden):
    """37 exercises that it has not seen; the card says how many of all it gets right. No guess gets 30 of 37."""
    rng, right = random.Random(3), 0
    few = exercises.joined(exercises.sum_line(rng) for _ in range(4)).data
    problems = [exercises.problem(rng, True) for _ in range(37)]
    for a, operator, b, result in problems:
        wanted = f" {result}\n".encode()
        right += greedy(golden, few + f"{a} {operator} {b} =".encode(), len(wanted)) == wanted
    assert right >= 30


def test_it_finds_a_needle_far_beyond_its_budget(golden):
    """2,048 bytes are eight times the 256 cells that a row selects. (4K and 16K: the module ``needle``.)"""
    rows = (FOLDER / "heldout-text.txt").read_bytes().splitlines(keepends=True)
    hay, wanted = exercises.haystack(random.Random(5), 2048, (10,), exercises.lines_of(rows, random.Random(6)))
    expected = wanted[10].word.encode() + b"\n"
    assert greedy(golden, hay + wanted[10].question.encode(), len(expected)) == expected


torch_only = pytest.mark.torch


COMMAND = re.compile(r"^qsa (generate (?:.*\\\n)*.*)$", re.M)


def test_the_cards_commands_print_the_cards_figures(capsys):
    """Drafts and accepted ones of `prompt-math.txt`, greedy and sampled."""
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    (row,) = (line for line in card.splitlines() if line.startswith("| `prompt-math.txt` | "))
    figures = [(int(accepted), int(drafted)) for accepted, drafted in re.findall(r"(\d+) of (\d+) ", row)]
    commands = [shlex.split(found.replace("\\\n", " ")) for found in COMMAND.findall(card)]
    assert len(figures) == len(commands) == 2 and "--seed" in commands[1]
    for command, (accepted, drafted) in zip(commands, figures, strict=True):
        here = [word.replace("golden/model", str(FOLDER)) for word in command]
        assert cli.main([*here, "--backend", "cpu"]) == 0
        assert f"drafts  {drafted}, {100 * accepted / drafted:.1f} % accepted" in capsys.readouterr().err


@torch_only
@pytest.mark.parametrize("seed", [5, 6])
def test_torch_network_agrees_with_the_float64_reference(seed):
    """Same weights, float32 against float64: logits to 1e-5 of their standard deviation, ten times what is seen.

    192 tokens in three chunks of the delta rule, a budget of 16 cells, PLE, experts and the draft layer. A row whose
    cut between selected and other blocks is a tie in float32 may select otherwise, and differ wholly: scores of 0 at
    both sides of it are the usual case. Such rows are at most one in twenty, and found by the reference's own scores.
    """
    torch = pytest.importorskip("torch")
    from qsa.golden.training.network import FIXED, Network

    config = dataclasses.replace(TINY_CONFIG, indexer_n_heads=4)
    model = random_model(config, seed, draft=True)
    tokens = np.random.Generator(np.random.PCG64(seed)).integers(0, config.vocab_size, 192)
    expected = model.forward(tokens, model.init_state())
    drafted, _ = model.draft.forward(expected.streams[:-1], tokens[1:], model.draft.init_state())
    tensors = {n: torch.tensor(np.asarray(t, np.float32)) for n, t in model.tensors.items() if not n.endswith(FIXED)}
    logits, drafts = Network(config, tensors).logits(torch.from_numpy(tokens))
    error = np.abs(logits.numpy() - expected.logits).max(axis=1) / expected.logits.std()
    assert (error > 1e-5).mean() <= 0.05
    assert np.median(error) < 3e-6
    # The reference's draft layer selects, the trained one is dense: they are the same up to the budget.
    part = config.indexer_budget
    assert np.abs(drafts.numpy() - drafted)[:part].max() < 1e-5 * drafted.std()
    dense = Network(config, tensors).logits(torch.from_numpy(tokens), select=False)[0].numpy()
    assert (np.abs(dense - expected.logits).max(axis=1) / expected.logits.std() > 1e-3).mean() > 0.5
    assert np.abs(dense - expected.logits)[:part].max() < 1e-5 * expected.logits.std()


@torch_only
def test_chunked_delta_rule_is_the_recurrent_one():
    """Equal keys without decay and full steps, where powers of the triangular matrix would overflow float32, and
    ordinary ones. float32 over 192 rows against float64: 1e-5 of the largest output."""
    torch = pytest.importorskip("torch")
    from qsa.golden.training.layers import CHUNK, delta_chunks
    from qsa.golden.training.scan import Carry
    from qsa.reference.model.deltanet import delta_rule

    rng, rows, heads, dim = np.random.Generator(np.random.PCG64(2)), 3 * CHUNK, 2, 16
    q, k, v = (rng.normal(size=(rows, heads, dim)) for _ in range(3))
    k[:, 0] = k[0, 0]
    q, k = (a / np.linalg.norm(a, axis=-1, keepdims=True) for a in (q, k))
    decay, beta = rng.uniform(0.5, 1, (rows, heads)), rng.uniform(0, 1, (rows, heads))
    decay[:, 0], beta[:, 0] = 1, 1
    expected, _ = delta_rule(q, k, v, decay, beta, np.zeros((heads, dim, dim)))

    def chunked(a):
        return torch.from_numpy(a).float().unflatten(0, (-1, CHUNK)).transpose(1, 2)

    m, n, reads, rest = delta_chunks(*(chunked(a) for a in (q, k, v, np.log(decay), beta)))
    out = reads @ Carry.apply(m, n, 3) + rest
    assert np.abs(out.transpose(1, 2).flatten(0, 1).numpy() - expected).max() < 1e-5 * np.abs(expected).max()


@torch_only
def test_gradients_of_the_recurrences():
    torch = pytest.importorskip("torch")
    from qsa.golden.training.scan import Carry, invert

    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return (0.3 * torch.randn(shape, generator=generator, dtype=torch.float64)).requires_grad_()

    assert torch.autograd.gradcheck(lambda m, n: Carry.apply(m, n, 3), (draw(6, 2, 4, 4), draw(6, 2, 4, 4)))
    assert torch.autograd.gradcheck(lambda a: invert(torch.tril(a, -1)), (draw(2, 16, 16),))
