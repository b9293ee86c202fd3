"""Comparing a result with the truth: equality, errors within bounds, where a failure began, inputs that were changed."""
