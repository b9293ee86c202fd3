"""``--shard K/N``: every case in one shard, which no other case moves; the merged reports are the whole."""

import json

import pytest

from qsa.parity import cli, suite
from qsa.parity.running import shards
from qsa.parity.running.shards import Shard

CASES = suite.collect(["selection", "split"], "exact")


@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_the_shards_are_disjoint_and_together_all(count):
    parts = [shards.chosen(CASES, Shard(number, count)) for number in range(1, count + 1)]
    texts = [case.text for part in parts for case in part]
    assert len(texts) == len(set(texts)) and set(texts) == {case.text for case in CASES}
    # Near enough to equal: five standard deviations of a draw.
    mean = len(CASES) / count
    assert all(abs(len(part) - mean) <= 5 * mean**0.5 for part in parts)
    # In each the order is that of the whole.
    order = {case.text: number for number, case in enumerate(CASES)}
    assert all([order[case.text] for case in part] == sorted(order[case.text] for case in part) for part in parts)


def test_a_case_that_comes_goes_or_moves_changes_no_other_ones_shard():
    before = {case.text: shards.number_of(case.text, 5) for case in CASES}
    for changed in (CASES[1:], CASES[::-1], CASES[3:] + CASES[:2]):
        for number in range(1, 6):
            assert all(before[case.text] == number for case in shards.chosen(changed, Shard(number, 5)))


def test_the_partition_is_the_same_everywhere():
    """By value: another Python, machine or hash seed gives these too."""
    attend = "accuracy:op=attend,format=int8,scores=ordinary,context={},rows=1,tail={},seed=1"
    texts = [attend.format(0, 1), attend.format(60, 3), attend.format(64, 0), ""]
    assert [shards.number_of(text, 1000) for text in texts] == [606, 838, 688, EMPTY]


EMPTY = 1 + 0x2D06800538D394C2 % 1000
"""Of xxh3_64's published value for no bytes."""


@pytest.mark.parametrize(
    "text", ["", "1", "0/2", "3/2", "1/0", "-1/2", "1/2/3", "a/b", "1/4097", " 1/2", "\u0661/\u0662"]
)
def test_what_is_no_shard_is_refused(text, capsys):
    with pytest.raises(ValueError, match=r"--shard = .*: must be K/N with 1 <= K <= N <= 4096"):
        shards.parse(text)
    assert cli.main(["parity", "--list", f"--shard={text}"]) == 2
    assert "--shard" in capsys.readouterr().err


def test_missing_shards():
    assert shards.missing(["1/3", "3/3"]) == ["2/3"] and shards.missing(["2/2", "1/2", "1/2"]) == []
    assert shards.missing([]) == []


WHERE = ["selection", "--op", "select", "--where", "context=2048", "--where", "rows=1", "--backend", "cpu"]


def listed(capsys, *options):
    assert cli.main(["parity", *WHERE, "--list", *options]) == 0
    return capsys.readouterr().out.split()


def test_the_list_shows_a_shard(capsys):
    whole = listed(capsys)
    parts = [listed(capsys, "--shard", f"{number}/3") for number in (1, 2, 3)]
    assert sorted(text for part in parts for text in part) == sorted(whole) and max(map(len, parts)) < len(whole)


def test_the_merged_reports_of_the_shards_are_the_report_of_the_whole(tmp_path, capsys):
    def report(name, *options):
        code = cli.main(["parity", *WHERE, "--in-process", "--json", str(tmp_path / name), *options])
        return code, json.loads((tmp_path / name).read_text())

    _, whole = report("whole.json")
    parts = [report(f"{number}.json", "--shard", f"{number}/3")[1] for number in (1, 2, 3)]
    assert [part["environment"]["shard"] for part in parts] == ["1/3", "2/3", "3/3"]
    files, out = [str(tmp_path / f"{number}.json") for number in (1, 2, 3)], str(tmp_path / "merged.json")
    capsys.readouterr()
    assert cli.main(["report", "merge", "--check", *files, "--out", out]) == 0
    assert "missing" not in capsys.readouterr().err
    merged = json.loads((tmp_path / "merged.json").read_text())

    def outcomes(found):
        return sorted((case["case"], case["status"], case["measure"]) for case in found["cases"])

    assert outcomes(merged) == outcomes(whole) and merged["passed"] == whole["passed"] > 1
    assert "shard" not in merged["environment"]
    # One that is lacking is told, and is still told when the rest comes in two steps.
    assert cli.main(["report", "merge", "--check", *files[:2], "--out", out]) == 1
    assert "shards are missing: 3/3" in capsys.readouterr().err
    assert cli.main(["report", "merge", *files[:2], "--out", out]) == 0
    assert cli.main(["report", "merge", "--check", out, files[2], "--out", str(tmp_path / "all.json")]) == 0
    assert outcomes(json.loads((tmp_path / "all.json").read_text())) == outcomes(whole)


def test_a_shard_without_cases_says_so(capsys):
    case = suite.collect(["split"], "exact")[0].text
    other = 1 + shards.number_of(case, 2) % 2
    assert cli.main(["parity", "--case", case, "--shard", f"{other}/2", "--backend", "cpu"]) == 1
    assert f"shard {other}/2: holds none of the 1 case" in capsys.readouterr().out
