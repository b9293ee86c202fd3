"""The engine's benchmark, and the times that the engine counts."""

import json

import pytest

from qsa.engine import Drafting, Engine
from qsa.parity.bench import engine as bench
from support.engine_models import engine_model, prompt


def test_figures_of_texts_with_and_without_drafts(tmp_path, capsys):
    path = tmp_path / "figures.json"
    options = [
        "--backends",
        "cpu",
        "--texts",
        "math-greedy",
        "math-rejection",
        "--slots",
        "1",
        "2",
        "--drafts",
        "0",
        "2",
    ]
    assert bench.main([*options, "--tokens", "9", "--json", str(path)]) == 0
    figures = json.loads(path.read_text())
    assert len(figures) == 8 and len(capsys.readouterr().out.splitlines()) == 9
    for slots in (1, 2):
        plain, drafted = (figures[f"cpu, math-greedy, {slots} slots, {drafts} drafts"] for drafts in (0, 2))
        assert plain["tokens/round"] == slots and plain["times"] == 1 and plain["accepted"] == 0
        assert drafted["tokens/round"] > slots and 0 < drafted["accepted"] <= 1
        assert drafted["times"] == pytest.approx(drafted["tokens/s"] / plain["tokens/s"])
        assert plain["ms"] == pytest.approx(plain["host ms"] + plain["device ms"])


def test_a_text_that_drafts_change_is_named(monkeypatch, capsys):
    found = bench.timed

    def changed(engine, name, drafts, tokens):
        figure = found(engine, name, drafts, tokens)
        return figure._replace(texts=[[0]]) if drafts else figure

    monkeypatch.setattr(bench, "timed", changed)
    options = ["--backends", "cpu", "--slots", "1", "--drafts", "0", "1", "--tokens", "3"]
    assert bench.main([*options, "--texts", "math-greedy", "math-rejection"]) == 1
    said = [line for line in capsys.readouterr().out.splitlines() if "wrong" in line]
    assert said == ["wrong result: cpu, math-greedy, 1 slots, 1 drafts: another text"]


@pytest.mark.parametrize("slots", [1, 8])
def test_host_and_device_make_up_the_time_of_decoding(slots):
    """Without a device the model's calls are the device's time; a batch of 8 slots has drafts in all of them."""
    engine = Engine(engine_model(), slots, 80)
    requests = [engine.submit(prompt(9, seed), 12, drafting=Drafting(4)) for seed in range(slots)]
    engine.run()
    for request in requests:
        counted = request.statistics
        assert request.error is None and counted.drafted > counted.rounds
        assert counted.host_seconds > 0 and counted.device_seconds > 0
        assert counted.host_seconds + counted.device_seconds == pytest.approx(counted.decode_seconds)
        assert counted.rounds_per_second == pytest.approx(1000 / counted.ms_per_round)
        assert counted.ms_per_round == pytest.approx(counted.host_ms_per_round + counted.device_ms_per_round)
