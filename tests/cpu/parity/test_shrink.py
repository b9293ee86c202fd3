"""``qsa shrink``: a failing case down to a small call that still fails, in a file that reproduces it."""

import sys
import types

import numpy as np
import pytest
from safetensors.numpy import save_file

from qsa.parity import shrink, suite
from qsa.parity.backend import Backend
from qsa.parity.cli import main
from qsa.reference import exact
from support.float_kernel import FloatKernel

OWN = "accuracy:op=attend,format=own,scores=ordinary,context=120,rows=2,tail=2,seed=1"
POOL = "accuracy:op=attend,format={},scores=ordinary,context=60,rows=2,tail=2,seed=1"
TIES = "selection:op=select,rule=blocks,scores=levels,context=8192,rows=2,tail=3,seed=2"


class FromHundred(FloatKernel):
    """Head 3 leaves out the first of more than 100 cells."""

    def attend(self, q, kv, ids, steps):
        out = super().attend(q, kv, ids, steps)
        for row, width in enumerate(steps[:, 3]):
            if width > 100:
                fewer = steps[[row]] - np.int32([0, 0, 0, 1])
                out[row, 3] = super().attend(q[[row]], kv, ids[[row], 1:], fewer)[0, 3]
        return out


class Raises(FloatKernel):
    def attend(self, q, kv, ids, steps):
        if (steps[:, 3] > 40).any():
            raise OverflowError("no room")
        return super().attend(q, kv, ids, steps)


class HigherTies(FloatKernel):
    def __init__(self):
        self.declaration = {"ties": "lowest"}

    def select(self, scores, steps, rule):
        ids = []
        for row, (_, n_kv, n_bid, width) in zip(scores, steps.tolist(), strict=True):
            blocks = (n_bid - 1 - np.argsort(-row[:n_bid][::-1], kind="stable"))[: 512 if rule == "blocks" else 513]
            cells = (blocks[:, None] * 4 + np.arange(4)).ravel()
            ids.append(np.concatenate([np.arange(n_bid * 4, n_kv), cells])[:width])
        return ids


@pytest.fixture
def backend_of(monkeypatch):
    def make(kernel):
        module = types.ModuleType("theirs")
        module.kernel = kernel
        monkeypatch.setitem(sys.modules, "theirs", module)
        return Backend("theirs:kernel")

    return make


def smallest(text, backend, tmp_path):
    """(smallest problem, how the one read back from a file fails, bytes of the file)."""
    problem, first = shrink.failing_call(suite.parse(text), backend)
    small = shrink.shrink(problem, backend, first)
    size = shrink.save(tmp_path / "small", small, {"case": text})
    case = suite.Case("shrunk", str(tmp_path / "small"), {}, shrink.load(tmp_path / "small"))
    result = suite.run_case(case, backend)
    assert result.status == "failed", result
    return small, "\n".join(result.lines(backend)), size


def test_rows_heads_length_and_cells_of_a_float_kernel(backend_of, tmp_path):
    small, report, size = smallest(OWN, backend_of(FromHundred()), tmp_path)
    assert len(small.q) == 1 and len(small.cells) == 101 and small.steps[0].tolist() == [100, 101, 25, 101]
    assert small.q.any(axis=(0, 2)).sum() <= 1 and "head 3" in report
    assert size < 100_000 and f"--shrunk {tmp_path / 'small'}" in report


@pytest.mark.parametrize("format", ["int8", "q4_0", "k8v4"])
def test_cells_of_our_pools_in_the_exact_arithmetic(format, backend_of, tmp_path):
    def attend(q, kv, ids, steps):
        """Loses the last of an odd number of cells."""
        fewer = steps - (steps[:, 3:] % 2 > 0) * np.int32([0, 0, 0, 1])
        return exact.attend(q, kv, ids, fewer)

    kernel = types.SimpleNamespace(attend=attend, declaration={"arithmetic": "exact"})
    small, report, size = smallest(POOL.format(format).replace("tail=2", "tail=3"), backend_of(kernel), tmp_path)
    assert len(small.cells) == 1 and len(small.q) == 1 and size < 10_000
    assert small.format == format and "consistent with" in report


def test_ids_that_are_needed_stay(backend_of, tmp_path):
    """A kernel that reads one id too many: what lies behind the width is kept while it counts."""

    def attend(q, kv, ids, steps):
        wide = steps.copy()
        wide[:, 3] = np.where(steps[:, 0] < 0, 0, np.minimum(ids.shape[1], steps[:, 3] + 1))
        return exact.attend(q, kv, ids, wide)

    kernel = types.SimpleNamespace(attend=attend, declaration={"arithmetic": "exact"})
    text = "pages:op=attend,format=int8,page=64,order=shuffled,missing=last,context=4092,tail=2,seed=1"
    small, _, _ = smallest(text, backend_of(kernel), tmp_path)
    assert (small.ids >= 0).sum() > small.steps[:, 3].sum() and len(small.cells) < 10


def test_an_exception_is_kept_by_its_type(backend_of, tmp_path):
    small, report, _ = smallest(OWN, backend_of(Raises()), tmp_path)
    assert len(small.cells) == 41 and "OverflowError: no room" in report


def test_a_schedule_is_kept_where_it_alone_fails(backend_of, tmp_path):
    def attend(q, kv, ids, steps, *, schedule="batch", splits=1):
        fewer = steps - np.int32([0, 0, 0, splits > 2])
        return exact.attend(q, kv, ids, fewer)

    kernel = types.SimpleNamespace(attend=attend, declaration={"arithmetic": "exact"})
    text = "split:op=attend,schedule=split,splits=7,format=int8,context=60,rows=2,tail=2,seed=1"
    small, _, _ = smallest(text, backend_of(kernel), tmp_path)
    assert (small.schedule, small.splits, len(small.cells)) == ("split", 7, 1)


def test_a_slot_by_itself(backend_of, tmp_path):
    def attend(q, kv, ids, steps, slots=None, *, schedule="batch"):
        return exact.attend(q, kv, ids, steps, slots) * np.float32(1 + (steps[:, 1:2, None] % 2))

    kernel = types.SimpleNamespace(attend=attend, declaration={"arithmetic": "exact"})
    text = "split:op=attend,schedule=multi,splits=1,format=int8,context=60,rows=4,tail=2,seed=1"
    small, _, _ = smallest(text, backend_of(kernel), tmp_path)
    assert len(small.q) == 1 and small.steps[0, 1] % 2 == 1


def test_a_selection(backend_of, tmp_path):
    small, report, size = smallest(TIES, backend_of(HigherTies()), tmp_path)
    assert small.scores.shape == (1, 514) and small.steps[0, 2] == 513 and size < 4000
    assert len(np.unique(small.scores[0, :513])) == 1 and "ties broken to the higher block" in report


def test_a_failure_near_its_bound_stays_one_of_its_kind(backend_of):
    """Values that make every honest kernel bad are no smaller form of the failure: shares stay clear of the bound."""
    backend = backend_of(FromHundred())
    problem, first = shrink.failing_call(suite.parse(OWN), backend)
    small = shrink.shrink(problem, backend, first)
    assert first.share > 10 and suite.worst_of(small.check(backend)).share >= 10
    assert all(found.passed for found in small.check(backend_of(FloatKernel())))


@pytest.mark.parametrize(
    ("kernel", "text", "words"),
    [
        (FloatKernel, OWN, "passed: there is no failure to make smaller"),
        (
            type("Scores", (FloatKernel,), {"block_scores": lambda *given: 2 * FloatKernel.block_scores(*given)}),
            "accuracy:op=block_scores,context=1024,rows=2,tail=2,seed=6",
            "it calls block_scores too, which are not made smaller",
        ),
    ],
)
def test_what_cannot_be_made_smaller_is_said(kernel, text, words, backend_of):
    with pytest.raises(shrink.ShrinkError, match=words):
        shrink.failing_call(suite.parse(text), backend_of(kernel()))


def test_the_command_and_its_file(tmp_path, monkeypatch, capsys):
    path = tmp_path / "theirs.py"
    path.write_text(
        "from support.float_kernel import FloatKernel\n\n\nclass Last(FloatKernel):\n"
        "    def attend(self, q, kv, ids, steps):\n"
        "        return super().attend(q, kv, ids, steps - (steps > 1) * [0, 0, 0, 1])\n"
    )
    monkeypatch.chdir(tmp_path)
    name = f"{path}:Last"
    assert main(["shrink", OWN, "--backend", name, "--out", "small.safetensors"]) == 0
    printed = capsys.readouterr().out
    assert f"again: qsa parity --shrunk small.safetensors --backend {name}" in printed
    assert (tmp_path / "small.safetensors").stat().st_size < 100_000
    assert main(["parity", "--shrunk", "small.safetensors", "--backend", name]) == 1
    assert "the last selected cell left out" in capsys.readouterr().out
    assert main(["shrink", OWN, "--backend", "support.float_kernel:FloatKernel"]) == 1
    assert "there is no failure to make smaller" in capsys.readouterr().out
    assert main(["parity", "accuracy", "--shrunk", "small.safetensors", "--backend", name]) == 2
    assert main(["shrink", OWN, "--backend", name, "--seconds", "0"]) == 2
    assert "--seconds = 0: must be a number of seconds above 0" in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["cut", "json", "missing", "shape", "other"])
def test_a_file_that_is_none_is_one_line(damage, tmp_path, capsys):
    path = tmp_path / "small"
    scores, steps = np.zeros((1, 3), np.float32), np.array([[7, 8, 2, 8]], np.int32)
    shrink.save(path, shrink.SelectProblem(scores, steps, "blocks"), {})
    content = path.read_bytes()
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "json":
        save_file({"scores": scores}, path, {"qsa": "{"})
    elif damage == "missing":
        save_file({"scores": scores}, path, {"qsa": '{"version": 1, "kind": "select", "rule": "blocks"}'})
    elif damage == "shape":
        save_file(
            {"scores": scores, "steps": steps[0]}, path, {"qsa": '{"version": 1, "kind": "select", "rule": "blocks"}'}
        )
    else:
        save_file({"scores": scores}, path)
    assert main(["parity", "--shrunk", str(path), "--backend", "exact"]) == 2
    assert "is no file of qsa shrink" in capsys.readouterr().err
