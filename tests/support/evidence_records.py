"""Evidence of a device that nobody has, for tests."""

import msgspec

from qsa.golden import device_records as evidence
from qsa.golden import sources
from qsa.golden.record import sealed

DEVICE = {
    "name": "NVIDIA H200",
    "compute_capability": "9.0",
    "multiprocessors": 132,
    "memory": 150 << 30,
    "l2": 60 << 20,
}
FACTS = {"device": DEVICE, "driver": "580.1", "versions": {"python": "3.12.3", "toolkit": "13.0"}}
ROW = {
    "case": "attend:rows=1",
    "contract": "hot, graph of 10 launches, median of 50",
    "correct": True,
    "median_us": 14.0,
    "p10_us": 13.8,
    "p90_us": 14.3,
    "limit": "a gather of the same bytes",
    "limit_us": 2.1,
    "share": 0.15,
}


FINGERPRINT = sources.fingerprint()


def step(name="timings", status="passed", reason="", results=None):
    return evidence.Step(
        name=name,
        date="2026-11-30",
        driver="580.1",
        status=status,
        reason=reason,
        seconds=1.5,
        command="python -m x",
        results=results if results is not None else {},
    )


def record(name="h200-2026-11-30", sections=None, **changes):
    benchmark = {"benchmark": evidence.section([step(results={"rows": [ROW]})])}
    device = evidence.Device(**DEVICE)
    made = evidence.make(name, "exact-1", device, FACTS["versions"], FINGERPRINT, sections or benchmark)
    return sealed(msgspec.convert({**msgspec.to_builtins(made), **changes}, evidence.Evidence))


def plain(record):
    """``record`` as the JSON of its file holds it, to be damaged."""
    return msgspec.to_builtins(record)
