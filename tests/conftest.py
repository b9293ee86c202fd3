"""Settings of every test: property tests repeat themselves in CI, and tests of time run only when asked for."""

import pytest
from hypothesis import settings

settings.register_profile("qsa", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("qsa")


def pytest_collection_modifyitems(config, items):
    """Tests marked ``timing`` run only when they are asked for: other tests beside them would decide what they find."""
    if "timing" in (config.option.markexpr or ""):
        return
    skip = pytest.mark.skip(reason="measures time, so it runs alone: make timing")
    for item in items:
        if item.get_closest_marker("timing"):
            item.add_marker(skip)
