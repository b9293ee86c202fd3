"""Goldens of text: the seven fixed computations of the change proposals, on the model of ``golden/model``.

Two answers to a mathematical prompt and two to one of code, greedy and sampled, 1,024 tokens each; three long prompts,
64 tokens each. The reference makes them token by token in NumPy: about five minutes for all seven on one core.

The model is imported where it is used: it brings the CPU kernels and numba, which take a second to import, and a reader
of goldens or prompts needs neither.
"""

import random
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from qsa.reference.sampler import GREEDY, Sampling

from ..canonical import digest
from ..recipe import Recipe, check, name_of
from ..record import GoldenError, Produced
from ..store import Store
from ..training import exercises

if TYPE_CHECKING:
    from qsa.model.text_model import ExactModel
    from qsa.reference.model.config import Config

MODEL = Path(__file__).parents[1] / "model"
"""The trained model: configuration, int8 weights, prompts, held-out texts."""

FILES = ("config.json", "model.safetensors")
"""The files that make the model: their hash is kept with every golden of a text."""

SEED = 11
SAMPLED = Sampling(temperature=1.0, top_p=0.95, top_k=20, min_p=0.05)
"""The defaults of the server with which the proposals measured."""

COMPUTATIONS = {
    "math-greedy": ("math", GREEDY, 1024),
    "math-sampled": ("math", SAMPLED, 1024),
    "code-greedy": ("code", GREEDY, 1024),
    "code-sampled": ("code", SAMPLED, 1024),
    "prompt-2k": ("2k", GREEDY, 64),
    "prompt-8k": ("8k", GREEDY, 64),
    "prompt-16k": ("16k", GREEDY, 64),
}
"""Name -> prompt, options of the sampler, tokens."""

PART = 128
"""Tokens of a text behind which the logits are stored too: a check that must not take long goes so far."""

HELD_OUT = ("math", "text")
"""Texts that the model was not trained on; ``code`` is the third."""

NEEDLES = 7
"""Seed of the haystacks."""

ALLOWED = {"computation": tuple(COMPUTATIONS)}


def checked_folder() -> Path:
    """:data:`MODEL`, for every use of the golden model as one. Raises GoldenError when its files are not those that the
    goldens were made with, and OSError."""
    golden = name_of("text", {"computation": next(iter(COMPUTATIONS))})
    stored, found = Store().load(golden).inputs["weights"], digest(weights_hash())
    if found != stored:
        raise GoldenError(
            f"{MODEL}: {' and '.join(FILES)} have the hash {found}, the goldens were made with {stored}: "
            "fetch the files anew"
        )
    return MODEL


@cache
def tensors() -> "tuple[Config, dict[str, Any]]":
    """(Config, name -> tensor) of the golden model. Raises as :func:`checked_folder` and ``read_quantised`` do."""
    from qsa.model.checkpoint import read_quantised

    return read_quantised(checked_folder())


@cache
def weights_hash() -> np.ndarray:
    """xxh3_128 over the golden model's files of configuration and weights, uint8 [16]."""
    hasher = xxhash.xxh3_128()
    for name in FILES:
        hasher.update((MODEL / name).read_bytes())
    return np.frombuffer(hasher.digest(), np.uint8)


@cache
def reference() -> "ExactModel":
    """The golden model in the NumPy arithmetic, whatever its files hold: goldens are made anew with it, and their
    comparison tells that the weights differ."""
    from qsa.model.checkpoint import read_quantised
    from qsa.model.text_model import ExactModel

    return ExactModel(*read_quantised(MODEL))


def _bytes(name: str) -> bytes:
    return (MODEL / f"{name}.txt").read_bytes()


def ids_of(data: bytes) -> np.ndarray:
    """The ids int64 [n] of a text: its bytes."""
    return np.frombuffer(data, np.uint8).astype(np.int64)


def held_out(name: str) -> np.ndarray:
    """Ids int64 [n] of the held-out text ``name``."""
    return ids_of(_bytes(f"heldout-{name}"))


@cache
def prompts() -> dict[str, np.ndarray]:
    """Name -> ids int64 [n] of the prompts: ``math`` and ``code`` as they are; 2,048, 8,192 and 16,384 bytes of the
    held-out text and, behind an end of text, code."""
    long = _bytes("heldout-text") + b"\0" + _bytes("heldout-code")
    found = {name: ids_of(_bytes(f"prompt-{name}")) for name in ("math", "code")}
    return found | {f"{k}k": ids_of(long[: k << 10]) for k in (2, 8, 16)}


@cache
def haystack(size: int, depths: tuple[int, ...]) -> tuple[bytes, dict[int, exercises.Needle]]:
    """(bytes, depth -> ``exercises.Needle``): needles at ``depths`` (percent) of ``size`` bytes of filler, which is the
    held-out text, again and again where it is too short."""
    rng = random.Random(NEEDLES)
    lines = _bytes("heldout-text").splitlines(keepends=True)
    return exercises.haystack(rng, size, depths, exercises.lines_of(lines, rng))


def make_inputs(recipe: Recipe) -> dict[str, Any]:
    """The arguments of ``qsa.model.generate.generate`` behind the model: dict of ``ids`` [n] int64, ``count``,
    ``options`` and ``seed``. Raises CaseError on a recipe outside :data:`ALLOWED`."""
    check("text", recipe, ALLOWED)
    prompt, options, count = COMPUTATIONS[recipe["computation"]]
    return {"ids": prompts()[prompt], "count": count, "options": options, "seed": SEED}


def produce(recipe: Recipe, compute: Callable[..., Any] | None = None) -> Produced:
    """Inputs ``ids`` and ``weights``; outputs ``tokens`` int32 [count], ``logits`` float32 [vocab] of the row behind
    them, and of a longer text ``part``, those of the row behind its first :data:`PART` tokens.

    compute  function(ids, count, options, seed) -> qsa.model.generate.Text; None: the reference
    """
    given = make_inputs(recipe)
    if compute is None:
        from qsa.model.generate import generate

        compute = partial(generate, reference())
    outputs = compute(**given)._asdict()
    if given["count"] > PART:
        outputs["part"] = compute(**{**given, "count": PART}).logits
    return Produced({"ids": given["ids"], "weights": weights_hash()}, outputs, {})


def grid() -> Iterator[dict[str, Any]]:
    """A recipe for each of the seven computations."""
    for name in COMPUTATIONS:
        yield {"computation": name}
