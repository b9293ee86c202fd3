"""The gate's decisions on rows of a benchmark."""

import pytest

from qsa.parity.bench import regression
from support.evidence_records import row, wrong


@pytest.mark.parametrize(
    ("recorded", "measured", "status", "says"),
    [
        (row(), row(), "passed", "50.0 % of the limit, 50.0 % in the record"),
        # 2 % of spread and 5 % besides may be lost; what counts is the share, not the time.
        (row(), row(median=10.69), "passed", ""),
        (row(), row(median=10.71), "failed", "7.1 % slower, allowed 7.0 % (spread 2.0 %)"),
        (row(), row(median=20.0, limit=10.0), "passed", ""),
        (row(), row(median=10.0, limit=4.0), "failed", "25.0 % slower"),
        # A noisy case may lose more; the noise of today does not excuse it.
        (row(noise=0.25), row(median=12.9), "passed", ""),
        (row(noise=0.25), row(median=13.1), "failed", "spread 25.0 %"),
        (row(), row(median=12.9, noise=0.25), "failed", ""),
        (row(), row(median=8.0), "passed", "faster; record it anew"),
        (row(), row(contract="cold, graph"), "unsupported", "contract was 'hot, graph' in the record and is 'cold"),
        (row(), row(median=99.0) | {"limit": "a gather"}, "unsupported", "not comparable: limit was 'a read'"),
        (row(), None, "failed", "was not measured in this run"),
        (None, row(), "unsupported", "is not in the record"),
        (row(), wrong(), "failed", "wrong result"),
        (None, wrong(), "failed", "wrong result"),
        (wrong(), row(), "unsupported", "was wrong in the record"),
    ],
)
def test_one_case(recorded, measured, status, says):
    got = regression.judge("attend:rows=1", recorded, measured)
    assert got.status == status and says in got.reason, got
    assert got.slower == ("slower, allowed" in got.reason)


def rows(*found):
    return {one["case"]: one for one in found}


def test_only_what_is_slower_twice_fails():
    recorded = rows(*(row(case) for case in ("same", "once", "twice", "gone", "lost", "bad")))
    first = rows(row("same"), row("once", 12.0), row("twice", 12.0), row("lost", 12.0), wrong("bad"), row("new"))
    asked = []

    def again(names):
        asked.append(names)
        return rows(row("once", 10.1), row("twice", 11.5))

    found = {one.case: one for one in regression.compare(recorded, first, again)}
    assert list(found) == ["same", "once", "twice", "lost", "bad", "new", "gone"]
    # A wrong or missing case is not measured again.
    assert asked == [["once", "twice", "lost"]]
    statuses = {case: one.status for case, one in found.items()}
    assert statuses == {
        "same": "passed",
        "once": "passed",
        "twice": "failed",
        "lost": "failed",
        "bad": "failed",
        "new": "unsupported",
        "gone": "failed",
    }
    assert "slower at first only" in found["once"].reason
    assert "15.0 % slower" in found["twice"].reason and "at first: " in found["twice"].reason


def test_nothing_is_repeated_when_nothing_is_slower():
    def again(names):
        raise AssertionError(names)

    assert [one.status for one in regression.compare(rows(row()), rows(row(median=10.5)), again)] == ["passed"]


def test_clocks_are_noted():
    full, low = ({"sm_mhz": mhz, "max_sm_mhz": 1980, "throttled": []} for mhz in (1980, 1500))
    capped = {**low, "throttled": ["software power cap"]}
    assert regression.clock_notes(full, full) == []
    assert regression.clock_notes(None, {"sm_mhz": None, "max_sm_mhz": None, "throttled": []}) == []
    assert regression.clock_notes(full, low) == ["clocks differ: 1980 MHz in the record, 1500 MHz in this run"]
    assert regression.clock_notes(full, capped)[0] == (
        "clocks were throttled in this run: software power cap, 1500 MHz"
    )
    assert "throttled in the record" in regression.clock_notes(capped, full)[0]
