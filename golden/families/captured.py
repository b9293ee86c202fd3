"""A window captured from the golden model while it reads: queries, keys and values of its last QSA layer, block scores.

The arrays lie in ``golden/model/captured.safetensors``, so that a case has them at once. Their hashes are those of the
golden, which the reference makes anew by reading the text: half a minute on one core. :func:`write` makes the file.
"""

from collections.abc import Callable, Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from qsa.reference import exact

from ..canonical import digest
from ..recipe import Recipe, check, name_of
from ..record import GoldenError, Produced
from ..store import Store
from . import text

FILE = text.MODEL / "captured.safetensors"

LENGTH = 2600
"""Tokens that are read: 650 blocks, so that a selection of 512 of them cuts."""

CELLS = 200
"""The first cells, whose K and V are kept as fp16; the queries are those of the last :data:`QUERIES` of them."""

QUERIES = 12
SCORED = 4
"""Rows whose block scores are kept: the last of the text."""

CHUNK = 200
ALLOWED = {"tokens": (LENGTH,)}

Arrays = dict[str, np.ndarray]
"""``q`` float32 [QUERIES, heads, dim], ``k`` and ``v`` float16 [CELLS, kv heads, dim] before they are coded, ``scores``
float32 [SCORED, LENGTH / 4]."""


def make_inputs(recipe: Recipe) -> dict[str, Any]:
    """``ids`` int64 [LENGTH] of the text. Raises CaseError on a recipe outside :data:`ALLOWED`."""
    check("captured", recipe, ALLOWED)
    return {"ids": text.prompts()["8k"][: recipe["tokens"]]}


def produce(recipe: Recipe, compute: Callable[[np.ndarray], Arrays] | None = None) -> Produced:
    """Inputs ``ids`` and ``weights``; outputs :data:`Arrays`.

    compute  ids -> the arrays; None: the reference
    """
    ids = make_inputs(recipe)["ids"]
    return Produced({"ids": ids, "weights": text.weights_hash()}, (compute or capture)(ids), {})


def capture(ids: np.ndarray) -> Arrays:
    """The arrays out of a reading of ``ids`` [LENGTH] by the reference."""
    from qsa.model.checkpoint import read_quantised
    from qsa.model.text_model import ExactModel

    seen: dict[str, list[np.ndarray]] = {"q": [], "k": [], "v": [], "scores": []}

    def append_kv(k: np.ndarray, v: np.ndarray, *rest: Any) -> Any:
        seen["k"].append(k.copy())
        seen["v"].append(v.copy())
        return exact.append_kv(k, v, *rest)

    def attend(q: np.ndarray, *rest: Any, **keywords: Any) -> Any:
        seen["q"].append(q.copy())
        return exact.attend(q, *rest, **keywords)

    def block_scores(q_idx: np.ndarray, index: Any, steps: np.ndarray, out: np.ndarray) -> Any:
        done = exact.block_scores(q_idx, index, steps, out)
        seen["scores"].append(out[-SCORED:].copy())
        return done

    hooks = {"append_kv": append_kv, "attend": attend, "block_scores": block_scores}
    operations = {name: getattr(exact, name) for name in dir(exact) if not name.startswith("_")}
    model = ExactModel(*read_quantised(text.MODEL), backend=SimpleNamespace(**operations | hooks))
    state = model.init_state(len(ids))
    for first in range(0, len(ids), CHUNK):
        model.run([ids[first : first + CHUNK]], [state])
    # Two QSA layers in turn: every second call is the last one's. The first chunk is CELLS long.
    q, k, v = (seen[name][1][:CELLS] for name in ("q", "k", "v"))
    scores = seen["scores"][-1][:, : LENGTH // 4]
    return {"q": q[-QUERIES:], "k": k.astype(np.float16), "v": v.astype(np.float16), "scores": scores}


@cache
def arrays() -> Arrays:
    """The stored arrays, read-only. Raises GoldenError when they are not those of the golden, and OSError."""
    name = name_of("captured", {"tokens": LENGTH})
    found, record = load_file(FILE), Store().load(name)
    hashes = {key: digest(array) for key, array in found.items()}
    if hashes != {key: output.hash for key, output in record.outputs.items()}:
        raise GoldenError(f"{FILE}: is not what the golden {name} has: fetch the file anew")
    for array in found.values():
        array.flags.writeable = False
    return found


def grid() -> Iterator[dict[str, Any]]:
    """The one recipe."""
    yield {"tokens": LENGTH}


def write() -> None:
    """Write :data:`FILE` anew, from the reference. Raises OSError."""
    captured = capture(make_inputs({"tokens": LENGTH})["ids"])
    save_file({key: np.ascontiguousarray(array) for key, array in captured.items()}, FILE)
