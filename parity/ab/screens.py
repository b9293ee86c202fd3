"""The two screens: texts that are continued, and prompts that are read, each another text.

They are those with which the change proposals were measured, on the golden model. ``full`` has their numbers of tokens;
``small`` has fewer, so that two cores run four arms in about a minute; ``medium`` has long contexts, for a GPU of which
time is short. ``tiny`` tries the command: its times say nothing.
"""

import random
from dataclasses import dataclass
from functools import cache

import numpy as np

from qsa.golden.families import text
from qsa.golden.families.needle import DEPTHS

from ..checks.needle import LENGTHS

SHORT = (
    b"23 + 45 = ",
    b"Anna has 60 books and gets 83 more. How many books does Anna have? ",
    b"def largest(values):\n",
    b"7 * 8 = ",
    b'"""Read a file',
)
"""The five short questions."""


@dataclass(frozen=True)
class Text:
    """A text to be continued by ``count`` tokens with the server's sampling; ``ids`` int64 [n], the prompt."""

    name: str
    ids: np.ndarray
    count: int
    seed: int


@dataclass(frozen=True)
class Size:
    """How large the screens are.

    answer         tokens of the long answers to a mathematical prompt and to one of code
    short          tokens of each short answer
    long_prompt    tokens of the long prompt; long_answer: of its answer
    prompts        prompt tokens -> how many prompts of so many are read, each another text
    capacity       cells of a slot
    warm           tokens that are emitted before anything is timed
    computations   those of the seven that are made
    part           tokens of an answer of the seven computations; 0: all
    nll            held-out text -> positions that are scored
    needles        (context, depth) of each
    limit          seconds that one process may take
    """

    answer: int
    short: int
    long_prompt: int
    long_answer: int
    prompts: dict[int, int]
    capacity: int
    warm: int
    computations: tuple[str, ...]
    part: int
    nll: dict[str, int]
    needles: tuple[tuple[int, int], ...]
    limit: float


SIZES = {
    "tiny": Size(
        answer=24,
        short=4,
        long_prompt=300,
        long_answer=8,
        prompts={32: 2, 64: 1, 96: 1, 128: 1},
        capacity=1024,
        warm=8,
        computations=("math-greedy", "code-sampled"),
        part=24,
        nll={"math": 64},
        needles=(),
        limit=300.0,
    ),
    "small": Size(
        answer=256,
        short=32,
        long_prompt=2048,
        long_answer=96,
        prompts={256: 2, 512: 2, 1024: 1, 2048: 1},
        capacity=4096,
        warm=96,
        computations=tuple(text.COMPUTATIONS),
        part=text.PART,
        nll={"math": 1024, "text": 1024},
        needles=((LENGTHS[0], DEPTHS[1]),),
        limit=900.0,
    ),
    "medium": Size(
        answer=1024,
        short=64,
        long_prompt=32 << 10,
        long_answer=256,
        prompts={1 << 10: 2, 4 << 10: 2, 16 << 10: 1, 32 << 10: 1},
        capacity=40 << 10,
        warm=256,
        computations=tuple(text.COMPUTATIONS),
        part=text.PART,
        nll={"math": 1024, "text": 1024},
        needles=tuple((LENGTHS[0], depth) for depth in DEPTHS),
        limit=1800.0,
    ),
    "full": Size(
        answer=4096,
        short=128,
        long_prompt=32 << 10,
        long_answer=768,
        prompts={1 << 10: 3, 4 << 10: 3, 32 << 10: 2, 120 << 10: 2},
        capacity=131072,
        warm=256,
        computations=tuple(text.COMPUTATIONS),
        part=0,
        nll={"math": 8192, "text": 8192},
        needles=tuple((context, depth) for context in LENGTHS for depth in DEPTHS),
        limit=7200.0,
    ),
}


@cache
def _lines() -> list[bytes]:
    """Lines of the held-out texts."""
    return [
        line
        for name in ("text", "math", "code")
        for line in text.held_out(name).astype(np.uint8).tobytes().splitlines(keepends=True)
    ]


def filler(size: int, seed: int) -> np.ndarray:
    """Ids int64 [size]: lines of the held-out texts, shuffled anew as often as needed; another text for every seed."""
    rng, found, length = random.Random(seed), list[bytes](), 0
    while length < size:
        lines = rng.sample(_lines(), len(_lines()))
        found += lines
        length += sum(map(len, lines))
    return np.frombuffer(b"".join(found)[:size], np.uint8).astype(np.int64)


def _ids(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8).astype(np.int64)


def decode_screen(size: Size) -> list[Text]:
    """The texts whose decoding is timed."""
    prompts = text.prompts()
    texts = [Text(name, prompts[name], size.answer, text.SEED) for name in ("math", "code")]
    for number, question in enumerate(SHORT, 1):
        texts.append(Text(f"short {number}", _ids(question), size.short, text.SEED + number))
    long = np.concatenate([filler(size.long_prompt - len(prompts["code"]), 0), prompts["code"]])
    return [*texts, Text("long prompt", long, size.long_answer, text.SEED)]


def prompt_screen(size: Size) -> list[Text]:
    """The prompts whose reading is timed: to the first token and no further."""
    return [
        Text(f"{tokens} tokens, {number}", filler(tokens, 1000 * number + tokens), 1, text.SEED)
        for tokens, count in size.prompts.items()
        for number in range(1, count + 1)
    ]
