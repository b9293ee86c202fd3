"""Settings of every test: property tests repeat themselves in CI, tests of time run only when asked for, and of several
GPUs each worker has one."""

import os
from collections import Counter

import pytest
from hypothesis import settings

from support.workers import visible_device

settings.register_profile("qsa", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("qsa")

# Before anything of CUDA is imported.
if (device := visible_device(os.environ)) is not None:
    os.environ["CUDA_VISIBLE_DEVICES"] = device


def pytest_terminal_summary(terminalreporter):
    """Each reason of what was skipped, with its number: without a GPU hundreds of tests have one reason."""
    reports = terminalreporter.stats.get("skipped", ())
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in reports)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"skipped {count}: {reason or 'no reason given'}")


def pytest_collection_modifyitems(config, items):
    """Tests marked ``timing`` run only when they are asked for: other tests beside them would decide what they find."""
    if "timing" in (config.option.markexpr or ""):
        return
    skip = pytest.mark.skip(reason="measures time, so it runs alone: make timing")
    for item in items:
        if item.get_closest_marker("timing"):
            item.add_marker(skip)
