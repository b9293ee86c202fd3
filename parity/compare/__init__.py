"""Comparing a result with the truth: equality, error bounds, the place of a failure, inputs that were changed."""
