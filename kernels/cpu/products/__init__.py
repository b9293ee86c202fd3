"""Exact sums of products of small integers in packed instructions: rows times codes, and weights times codes.

``form.py`` chooses the instructions and has the bounds; ``records.py`` and ``tile.py`` serve linear layers, experts and
the scores of attention, ``values.py`` its values, ``keys.py`` the scores of encoded index keys.
"""

from .form import Form, form_of

__all__ = ["Form", "form_of"]
