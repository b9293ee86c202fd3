"""The families, the goldens of this repository, and their commands."""

import argparse
import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from qsa.golden.case import CaseError, parse
from qsa.golden.families import FAMILIES, attend, grid, produce, select
from qsa.golden.store import Store
from qsa.parity.commands import golden as golden_command
from qsa.reference import attend as attend_reference
from qsa.reference import exact
from qsa.reference.kv import read_kv

SMALL = {"format": "int8", "context": 4096, "rows": 3, "tail": 2, "rule": "cells", "page": 4, "seed": 5}
SELECT = {"rule": "cells", "scores": "levels", "context": 4096, "rows": 3, "tail": 2, "seed": 5}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Results that these tests keep are theirs."""
    monkeypatch.setenv("QSA_CACHE", str(tmp_path / "cache"))


def qsa(*words):
    parser = argparse.ArgumentParser(prog="qsa")
    golden_command.add_parser(parser.add_subparsers())
    arguments = parser.parse_args(["golden", *map(str, words)])
    return arguments.run(arguments)


def test_the_records_are_those_of_the_grid():
    store = Store()
    assert set(store.names()) == set(grid())
    for name, case in grid().items():
        assert store.load(name).case == case
        assert store.load(name).provenance.reasons
    assert store.pending() == []


def test_the_reference_gives_the_goldens(capsys):
    # Of those that run the model the shortest: NumPy takes minutes for all of them. `make golden` recomputes every one.
    short = ("text-prompt-2k", "score-math-1024")
    names = [name for name in grid() if name.split("-")[0] not in OF_MODELS or name in short]
    assert qsa("check", "--fresh", *names) == 0, capsys.readouterr().out


def test_the_texts_are_the_seven_computations():
    assert [recipe["computation"] for recipe in FAMILIES["text"].grid()] == [
        *(f"{prompt}-{chain}" for prompt in ("math", "code") for chain in ("greedy", "sampled")),
        *(f"prompt-{k}k" for k in (2, 8, 16)),
    ]
    given = [FAMILIES["text"].make_inputs(recipe) for recipe in FAMILIES["text"].grid()]
    assert [one["count"] for one in given] == [1024] * 4 + [64] * 3 and {one["seed"] for one in given} == {11}
    assert [len(one["ids"]) for one in given[4:]] == [2048, 8192, 16384]


OF_MODELS = ("text", "score", "needle", "captured")


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in OF_MODELS])
def test_the_grid_holds_every_pair_of_values(family):
    recipes = list(FAMILIES[family].grid())
    if family == "verify_batch":
        # The five windows stand for (slots, rows), of which a window holds at most 8 rows.
        recipes = [{**one, "slots": (one["slots"], one["rows"]), "rows": 1} for one in recipes]
    keys = [key for key in recipes[0] if key not in ("seed", "page")]
    for a, b in combinations(keys, 2):
        values = [{recipe[key] for recipe in recipes} for key in (a, b)]
        pairs = {(recipe[a], recipe[b]) for recipe in recipes}
        assert len(pairs) == len(values[0]) * len(values[1]), (a, b)
    contexts = {
        "append_kv": {2**10, 2**12, 2**14},
        "append_index": {0, 2**10, 2**14, 2**16, 2**20},
        "verify_batch": {2**10, 2**14, 2**16},
    }
    assert {recipe["context"] for recipe in recipes} == contexts.get(family, {2**10, 2**14, 2**16, 2**20})
    if family == "attend":
        assert {recipe["page"] for recipe in recipes} == {1, 4, 64, 512}


@pytest.mark.parametrize("rule", ["blocks", "cells"])
@pytest.mark.parametrize("context", [16, 2048, 4096])
def test_rows_select_what_their_step_records_say(context, rule):
    steps = attend.window({**SMALL, "context": context, "rule": rule})
    ids = attend.selection({**SMALL, "context": context, "rule": rule}, steps)
    for row, (_, n_kv, n_bid, width) in zip(ids, steps.tolist(), strict=True):
        cells = row[:width]
        assert (row[width:] == -1).all() and (np.diff(cells) > 0).all() and cells[0] >= 0 and cells[-1] < n_kv
        counts = np.bincount(cells // 4, minlength=n_bid + 1)
        assert counts[n_bid] == n_kv % 4
        whole = (counts[:n_bid] == 4).sum()
        cut = counts[:n_bid][counts[:n_bid] % 4 > 0]
        assert len(cut) == ((width - n_kv % 4) % 4 > 0) and whole == (width - n_kv % 4) // 4


@pytest.mark.parametrize("format", ["int8", "q4_0", "k8v4"])
def test_inputs_are_ordinary_and_the_exact_output_is_near_float64(format):
    given = attend.make_inputs({**SMALL, "format": format})
    assert given["kv"].pool.format == format
    cells = read_kv(given["kv"], given["ids"][0, : given["steps"][0, 3]])
    assert cells.resident.all()
    for values in cells.values():
        # Codes times scales of deviation about 0.8 (int8) and 0.7 (q4_0): neither vanishing nor huge.
        assert 0.3 < values.std() < 2
    truth = attend_reference(**given)
    got = exact.attend(**given)
    # 3e-6 of the largest output: the design measured 1e-6 to 3e-6 on peaked scores.
    assert np.abs(got - truth).max() <= 3e-6 * np.abs(truth).max()


def test_cells_that_no_row_selects_are_poison():
    given = attend.make_inputs(SMALL)
    kv = given["kv"]
    used = np.unique(given["ids"][given["ids"] >= 0])
    pages = np.unique(used // 4)
    others = np.setdiff1d((pages[:, None] * 4 + np.arange(4)).ravel(), used)
    assert len(others) and np.isnan(read_kv(kv, others).k_scale).all()
    assert np.isfinite(read_kv(kv, used).v_scale).all()
    assert (kv.table >= 0).sum() == len(pages) < len(kv.table)


def test_pages_change_nothing():
    results = [produce("attend", {**SMALL, "page": page}) for page in (1, 4, 64, 512)]
    for result in results[1:]:
        for mine, first in ((result.inputs, results[0].inputs), (result.outputs, results[0].outputs)):
            assert all((mine[key] == first[key]).all() for key in first)


def test_a_million_cells_are_not_made():
    given = attend.make_inputs({**SMALL, "context": 2**20})
    assert given["kv"].capacity >= 2**20
    assert given["kv"].pool.nbytes < 8e6  # 2,600 cells of 1,056 bytes, in whole pages


@pytest.mark.parametrize("scores", select.SCORES)
def test_scores_have_what_they_are_named_for(scores):
    given = select.make_inputs({**SELECT, "scores": scores, "context": 65536})
    row, n_bid = given["scores"][0], int(given["steps"][0, 2])
    values = row[:n_bid]
    assert row[n_bid] > np.nanmax(values[np.isfinite(values)]) or scores == "special"
    if scores == "special":
        assert np.isnan(values).any() and np.isinf(values).any() and (np.signbit(values) & (values == 0)).any()
        assert (np.abs(values[values != 0]) < 1e-44).any() and (values < 0).any()
    else:
        distinct = len(np.unique(values))
        assert {"equal": distinct == 1, "levels": distinct == 64, "continuous": distinct > 10000}[scores]


def test_a_wrong_kernel_is_caught_and_located():
    """One cell too few in row 1; ties given to the higher index."""

    def drops_a_cell(q, kv, ids, steps):
        steps = steps.copy()
        steps[1, 3] -= 1
        return exact.attend(q, kv, ids, steps)

    def higher_index(scores, steps, rule):
        # Levels are an eighth apart and there are 1,025 blocks, so this decides between equal scores alone.
        return exact.select(scores + np.arange(scores.shape[1], dtype=np.float32) / 2**14, steps, rule=rule)

    good, bad = produce("attend", SMALL), produce("attend", SMALL, {"attend": drops_a_cell})
    changed = (good.outputs["out"] != bad.outputs["out"]).any(axis=(1, 2))
    assert changed.tolist() == [False, True, False]
    other = produce("select", SELECT, {"select": higher_index})
    assert (produce("select", SELECT).outputs["ids"] != other.outputs["ids"]).any()


@pytest.mark.parametrize(
    "case, named",
    [
        ("other:seed=1", "family 'other'"),
        ("attend:format=int8", "context: is missing"),
        ("attend:format=fp16,context=4096,rows=3,tail=2,rule=cells,page=4,seed=5", "format = 'fp16'"),
        ("attend:format=int8,context=4096,rows=9,tail=2,rule=cells,page=4,seed=5", "rows = 9: allowed are 1 to 8"),
        ("attend:format=int8,context=4096,rows=true,tail=2,rule=cells,page=4,seed=5", "rows = True"),
        ("attend:format=int8,context=4096,rows=3,tail=2,rule=cells,page=4,seed=-5", "seed = -5"),
        ("attend:format=int8,context=8,rows=3,tail=2,rule=cells,page=4,seed=5", "context = 8"),
        ("select:rule=cells,scores=levels,context=4096,rows=3,tail=4,seed=5", "tail = 4"),
        ("select:rule=cells,scores=levels,context=4096,rows=3,tail=1,seed=5,page=4", "page: is no parameter"),
    ],
)
def test_recipes_outside_the_family_are_named(case, named):
    with pytest.raises(CaseError, match=named):
        produce(*parse(case))


@pytest.fixture
def folder(tmp_path):
    """``--folder`` of two goldens, ``a`` and ``b``."""
    store = Store(tmp_path / "records")
    for seed, name in enumerate("ab"):
        store.regenerate({name: f"select:rule=blocks,scores=levels,context=64,rows=1,tail=0,seed={seed}"}, produce)
        store.accept(name, "a test")
    return "--folder", str(store.folder)


def test_a_damaged_golden_does_not_hide_the_next(folder, capsys):
    path = Path(folder[1]) / "a.json"
    path.write_text(path.read_text().replace('"axes": 1', '"axes": 0'))
    assert qsa(*folder, "check", "a", "b") == 2
    said = capsys.readouterr()
    assert "damaged a\n" in said.out and "equal   b\n" in said.out and "1 of 2 goldens equal" in said.out
    assert said.err.count("a.json: outputs.ids.axes: is 0") == 1


def test_a_second_check_computes_nothing_and_says_so(folder, capsys):
    assert qsa(*folder, "check", "a", "b") == 0
    assert "computed earlier" not in capsys.readouterr().out
    assert qsa(*folder, "check", "a", "b") == 0
    assert "2 of the results were computed earlier" in capsys.readouterr().out
    assert qsa(*folder, "check", "--fresh", "a", "b") == 0
    assert "computed earlier" not in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["check", "list"])
def test_a_missing_folder_is_one_line(tmp_path, capsys, verb):
    assert qsa("--folder", tmp_path / "none", verb) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "none': there is no such folder" in said.err


@pytest.mark.parametrize("words", [("regen", "a"), ("accept", "a", "--because", "x")])
def test_an_installed_package_is_not_written_to(tmp_path, capsys, monkeypatch, words):
    monkeypatch.setattr(golden_command, "root", lambda: tmp_path)
    assert qsa(*words) == 2
    assert "--folder is missing" in capsys.readouterr().err


def test_commands(tmp_path, capsys):
    name = next(name for name in grid() if name.startswith("select-1k"))
    folder = ("--folder", tmp_path)
    assert qsa(*folder, "check", name) == 1
    assert "no record" in capsys.readouterr().out
    assert qsa(*folder, "regen", name) == 1
    assert f"pending {name}" in capsys.readouterr().out
    assert qsa(*folder, "list", name) == 1
    assert qsa(*folder, "accept", name, "--because", " ") == 2
    assert "reason" in capsys.readouterr().err
    assert qsa(*folder, "accept", name, "--because", "first") == 0
    assert qsa(*folder, "accept", name, "--because", "again") == 2
    assert qsa(*folder, "check", name) == qsa(*folder, "regen", name) == qsa(*folder, "list", name) == 0
    assert qsa(*folder, "check", "nonsense") == 2
    assert "'nonsense'" in capsys.readouterr().err
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "contract": "x"}))
    assert qsa(*folder, "check", name) == 2
    assert "by hand" in capsys.readouterr().err
    with pytest.raises(SystemExit) as left:
        qsa(*folder, "accept", name)
    assert left.value.code == 2
