"""Figures of the golden model: ``python -m qsa.golden.training.study MODEL [--operations qsa.kernels.cpu]``.

Bits per byte of the held-out texts, arithmetic and needles, each with the trained selection, a random one, and every
cell selected; so it shows what the indexer is worth. The exact arithmetic; ``--operations`` names the module that
computes it (any one with the five operations and ``layers``), by default the NumPy one. Prints JSON.
"""

import argparse
import copy
import dataclasses
import importlib
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from qsa.model.checkpoint import read_quantised
from qsa.model.text_model import ExactModel

from .exercises import haystack, lines_of

HELD_OUT = "text", "code", "math"
POSITIONS = 8192
"""Positions of a held-out text that are scored."""

SELECTIONS = "trained", "random", "full"

LENGTHS, DEPTHS, SETS = (4096, 16384), (10, 50, 90), 2
"""Needles: bytes of a haystack, depths in percent, haystacks of each length."""

CHUNK = 1024


def model(folder: Path, operations: str, selection: str = "trained") -> ExactModel:
    """The model with a ``selection``: ``trained``, ``random`` (block scores are drawn) or ``full`` (no cell is left
    out)."""
    config, tensors = read_quantised(folder)
    backend: Any = importlib.import_module(operations)
    if selection == "full":
        config = dataclasses.replace(config, indexer_budget=LENGTHS[-1] + 256)
    if selection == "random":
        generator = np.random.Generator(np.random.PCG64(1))

        def block_scores(q_idx: Any, index: Any, steps: Any, out: Any = None) -> np.ndarray:
            return generator.random((len(q_idx), index.max_blocks), np.float32)

        names = {name: getattr(backend, name) for name in ("append_index", "append_kv", "attend", "layers", "select")}
        backend = SimpleNamespace(**names, block_scores=block_scores)
    return ExactModel(config, tensors, backend=backend)


def read(of: ExactModel, ids: np.ndarray, state: Any) -> np.ndarray:
    """Logits float32 [n, vocab] of ``ids`` [n], which ``state`` takes in."""
    return np.concatenate([of.forward(ids[first : first + CHUNK], state)[0] for first in range(0, len(ids), CHUNK)])


def bytes_of(data: bytes) -> np.ndarray:
    """Token ids of bytes."""
    return np.frombuffer(data, np.uint8).astype(np.int64)


def scored(of: ExactModel, data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """(NLL in nats float64 [n - 1], likeliest token [n - 1]) of the bytes ``data`` [n]."""
    ids = bytes_of(data)
    logits = read(of, ids[:-1], of.init_state(len(ids))).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return -logits[np.arange(len(logits)), ids[1:]], logits.argmax(axis=1)


def arithmetic(data: bytes, guesses: np.ndarray) -> tuple[int, int]:
    """(right, all) results of the exercises in ``data``: right when every byte of the last number of the line, and the
    line's end, is the likeliest one. That is what a greedy reader of the line so far would say."""
    right = total = 0
    for line in re.finditer(rb"[^\n]*?(?:= |Answer: )(\d+\n)", data):
        if line.start(1) > len(guesses):
            continue
        total += 1
        answer = slice(line.start(1), line.end(1))
        right += bytes(guesses[answer.start - 1 : answer.stop - 1].astype(np.uint8)) == data[answer]
    return right, total


def find(of: ExactModel, size: int, seed: int, rows: Sequence[bytes]) -> dict[int, bool]:
    """Depth -> whether the answer to its needle's question is right, greedily decoded."""
    hay, wanted = haystack(random.Random(f"study/{size}/{seed}"), size, DEPTHS, lines_of(rows, random.Random(seed)))
    whole = of.init_state(size + 256)
    read(of, bytes_of(hay), whole)
    found = {}
    for depth, needle in wanted.items():
        state, answer = copy.deepcopy(whole), b""
        logits = read(of, bytes_of(needle.question.encode()), state)
        while len(answer) < 32 and not answer.endswith(b"\n"):
            answer += bytes([int(logits[-1].argmax())])
            logits = read(of, bytes_of(answer[-1:]), state)
        found[depth] = answer == needle.word.encode() + b"\n"
    return found


def main() -> None:
    """Print the figures as JSON."""
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("model", type=Path)
    p.add_argument("--operations", default="qsa.reference.exact")
    p.add_argument("--selections", nargs="*", default=SELECTIONS, choices=SELECTIONS)
    options = p.parse_args()
    texts = {name: (options.model / f"heldout-{name}.txt").read_bytes() for name in HELD_OUT}
    rows = (texts["text"] + texts["code"]).splitlines(keepends=True)
    for selection in options.selections:
        of, figures = model(options.model, options.operations, selection), {"selection": selection}
        for name, data in texts.items():
            data = data[: POSITIONS + 1]
            nll, guesses = scored(of, data)
            figures[f"bits per byte, {name}"] = round(float(nll.mean() / np.log(2)), 4)
            figures[f"top-1, {name}"] = round(float((guesses == bytes_of(data)[1:]).mean()), 4)
            if name == "math":
                figures["arithmetic"] = arithmetic(data, guesses)
        for size in LENGTHS:
            results = [find(of, size, seed, rows) for seed in range(SETS)]
            figures[f"needles found, {size}"] = {d: sum(one[d] for one in results) for d in DEPTHS}
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
