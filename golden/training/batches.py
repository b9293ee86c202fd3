"""Batches of the training: texts and exercises in rows of one length, made by worker processes, each from its seed."""

import random
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import exercises

SHARES = {"python-doc": 38, "python": 26, "django": 8, "git-doc": 6, "debian": 3, "jargon": 9, "kjv": 10}
"""Share of every source among the rows of text."""


class Stage(NamedTuple):
    """A part of the training: ``share`` of its time, ``lengths`` taken in turn, whether attention selects, and the
    shares of the kinds of rows (text, arithmetic, needles)."""

    name: str
    share: float
    lengths: tuple
    select: bool
    kinds: tuple


class Corpus:
    """The sources of a folder: bytes, and lines for filler."""

    def __init__(self, folder: str | Path) -> None:
        self.data = {name: (Path(folder) / f"{name}.bin").read_bytes() for name in SHARES}
        self.lines = {name: data.replace(b"\0", b"").splitlines(keepends=True) for name, data in self.data.items()}

    def pick(self, rng: random.Random) -> str:
        """A source by its share."""
        return rng.choices(list(SHARES), list(SHARES.values()))[0]

    def window(self, rng: random.Random, size: int) -> bytes:
        """``size`` bytes from anywhere in a source."""
        data = self.data[self.pick(rng)]
        start = rng.randrange(len(data) - size)
        return data[start : start + size]


def plain(data: bytes) -> exercises.Text:
    """A text without answers."""
    return exercises.Text(data, bytes([exercises.PLAIN]) * len(data))


def row(rng: random.Random, corpus: Corpus, size: int, kinds: Sequence[float]) -> tuple[bytes, bytes]:
    """One row of ``size`` bytes: a stretch of text, documents of arithmetic and copying, or a document of needles."""
    kind = rng.choices(("text", "arithmetic", "needles"), kinds)[0]
    texts, length = [], 0
    while length < size:
        left, stop = size - length, plain(b"\0")
        if kind == "arithmetic" and rng.random() < 0.85:
            text = exercises.arithmetic(rng, rng.randrange(200, 1500))
        elif kind == "arithmetic":
            text = exercises.joined(exercises.copying(rng) for _ in range(rng.randrange(1, 12)))
        elif kind == "needles" and left > 700:
            filler = exercises.lines_of(corpus.lines[corpus.pick(rng)], rng)
            # Mostly as long as the row: what is asked at its end lies far back.
            text = exercises.needle_document(rng, left if rng.random() < 0.7 else rng.randrange(600, left), filler)
        else:
            text, stop = plain(corpus.window(rng, left)), plain(b"")
        texts += [text, stop]
        length += len(text.data) + len(stop.data)
    whole = exercises.joined(texts)
    return whole.data[:size], whole.weight[:size]


CORPUS = None


def _start(folder):
    global CORPUS
    CORPUS = Corpus(folder)


def _batch(seed, length, sequences, kinds):
    rng = random.Random(seed)
    rows = [row(rng, CORPUS, length + 1, kinds) for _ in range(sequences)]
    data, weight = (np.frombuffer(b"".join(parts), np.uint8) for parts in zip(*rows, strict=True))
    return data.reshape(sequences, -1), weight.reshape(sequences, -1)


class Batches:
    """Batches of ``tokens`` in all, made ahead by ``workers`` processes. Start it before CUDA: it forks."""

    def __init__(self, folder: str | Path, seed: int, tokens: int, workers: int = 8, ahead: int = 24) -> None:
        self.seed, self.tokens, self.ahead = seed, tokens, ahead
        self.pool = ProcessPoolExecutor(workers, initializer=_start, initargs=(folder,))
        self.waiting: deque[tuple[Future[tuple[np.ndarray, np.ndarray]], bool]] = deque()
        self.submitted = 0

    def make(
        self, name: str | int, length: int, kinds: Sequence[float], sequences: int | None = None
    ) -> Future[tuple[np.ndarray, np.ndarray]]:
        """A future of (bytes, weights) uint8 [sequences, length + 1] that depend on seed and ``name`` alone."""
        sequences = sequences or max(1, self.tokens // length)
        return self.pool.submit(_batch, f"{self.seed}/{name}", length, sequences, kinds)

    def next(self, stage: Stage) -> tuple[np.ndarray, np.ndarray, bool]:
        """The next batch, and whether its attention selects; made for the stage in which it was asked for."""
        while len(self.waiting) <= self.ahead:
            length = stage.lengths[self.submitted % len(stage.lengths)]
            self.waiting.append((self.make(self.submitted, length, stage.kinds), stage.select))
            self.submitted += 1
        future, select = self.waiting.popleft()
        return *future.result(), select

    def close(self) -> None:
        """End the workers."""
        self.pool.shutdown(cancel_futures=True)
