"""Settings of every test: property tests repeat themselves in CI, and no test depends on the clock."""

from hypothesis import settings

settings.register_profile("qsa", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("qsa")
