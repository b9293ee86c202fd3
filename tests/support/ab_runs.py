"""Made-up runs of the arms of ``qsa ab``, and processes that hand them over."""

import numpy as np

from qsa.golden.canonical import digest
from qsa.parity.ab.arms import parse
from qsa.parity.ab.run import Processes
from qsa.parity.ab.structs import ArmRun, Checks, Parity, SevenText, TextRun

SEVEN = ("math-greedy", "prompt-2k")


def hashed(tokens):
    return digest(np.array(tokens, np.int32))


def text_run(name, prompt, tokens, seconds, rounds=0, drafted=0, accepted=0, decode=0.0):
    return TextRun(name, prompt, tokens, hashed(tokens), rounds, drafted, accepted, seconds, decode)


def arm_run(factor=1.0, changed=None, arithmetic="exact", throttled=(), others=0.0):
    """A run whose times are ``factor`` times those of another. ``changed``: position -> token of the code answer."""
    code = [*range(21)]
    for position, token in (changed or {}).items():
        code[position] = token
    texts = [
        text_run("math", 10, [*range(41)], 0.1, 10, 40, 30, 0.4 * factor),
        text_run("code", 10, code, 0.1, 10, 40, 10, 0.4 * factor),
        text_run("short 1", 4, [1, 2, 3, 4, 5], 0.1, 2, 8, 2, 0.1 * factor),
        text_run("long prompt", 99, [1, 2, 3, 4, 5, 6, 7], 0.1, 3, 12, 3, 0.1 * factor),
    ]
    prompts = [text_run(f"{size} tokens, 1", size, [7], size / 1000 * factor) for size in (100, 200, 400, 800)]
    return ArmRun(arithmetic, texts, prompts, 25, 1.0 * factor, 0.5 * factor, 3.0 * factor, list(throttled), others)


def checks(tokens=(1, 2, 3), golden="", found=True, arithmetic="exact"):
    """The checks of a side whose second of two computations has ``tokens``."""
    seven = [
        SevenText(SEVEN[0], [5, 6], hashed([5, 6]), "a" * 32, "" if golden is not None else None),
        SevenText(SEVEN[1], list(tokens), hashed(list(tokens)), "b" * 32, golden),
    ]
    return Checks(arithmetic, seven, {"50 % of 4096": found})


def scores(shift=0.0, rows=64):
    """Logits float32 [rows, 256] of a held-out text, with ``shift`` added to the first id's."""
    logits = np.random.default_rng(3).standard_normal((rows, 256)).astype(np.float32)
    logits[:, 0] += np.float32(shift)
    return {"math": logits}


RIGHT = Parity(19, 0, 1, [])


class MadeUp(Processes):
    """Processes that start nothing: each gives what it is told by side, or raises it. ``started``: in which order."""

    def __init__(self, parity=None, checks=None, scores=None, speed=None):
        super().__init__("tiny", "tiny", 60.0)
        self.given = parity or {}, checks or {}, scores or {}, speed or {}
        self.started = []

    def parity(self, arm):
        self.started.append(f"parity {arm.side}")
        return self.given[0].get(arm.side, RIGHT)

    def check(self, arm):
        self.started.append(f"checks {arm.side}")
        return self.given[1].get(arm.side, checks()), self.given[2].get(arm.side, scores())

    def speed(self, arm, number):
        self.started.append(f"arm {number} {arm.side}")
        found = self.given[3].get(number, self.given[3].get(arm.side, arm_run()))
        if isinstance(found, BaseException):
            raise found
        return found


def sides(a="", b="STRATA_QSA_SPLIT_ATTN=1", backend="cpu"):
    return [parse("A", a, backend), parse("B", b, backend)]
