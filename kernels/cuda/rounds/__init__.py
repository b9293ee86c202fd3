"""What a round of drafts needs on the device between the calls of the model, so that the host is asked once a round.

``moves.py``: copies by tables of addresses; a draft's token to all places that read it. ``ngrams.py``: the rows of
PLE's table for ids that the host has not seen. ``judge.py``: rejection sampling. Nothing here waits or allocates for
longer than a call, so every operation can be captured in a graph.
"""

from ..layers.sequences import RowBounds
from .judge import NOT_JUDGED, judge
from .moves import array_table, copies, gather_table, push_drafts, rows_table, scatter_table
from .ngrams import hash_table, ngram_rows

__all__ = [
    "NOT_JUDGED",
    "RowBounds",
    "array_table",
    "copies",
    "gather_table",
    "hash_table",
    "judge",
    "ngram_rows",
    "push_drafts",
    "rows_table",
    "scatter_table",
]
