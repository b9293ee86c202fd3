"""Bad arguments of the engine: options of sampling and drafts, requests, slots, scheduler, scores, vocabularies, and of
the host's samplers that it calls."""

from functools import cache
from pathlib import Path

import numpy as np

from qsa.engine import Drafting, Engine, Sampling, Slot, generate, score
from qsa.engine.scheduler import Scheduler
from qsa.engine.tokenizer import Ids, vocabulary
from qsa.kernels.cpu import sampler
from qsa.reference import sampler as reference_sampler
from qsa.reference import speculative
from qsa.reference.exact import sampler as exact_sampler
from support.engine_models import engine_model, prompt
from support.exact_models import SMALL_CONFIG

from .bad_inputs import Base, refused

NAN, INF = float("nan"), float("inf")

SAMPLING = {
    "temperature nan": ({"temperature": NAN}, ValueError, ("temperature = nan", "finite number")),
    "temperature below 0": ({"temperature": -0.5}, ValueError, ("temperature = -0.5", "at least 0")),
    "temperature a string": ({"temperature": "1"}, ValueError, ("temperature = '1'", "finite number")),
    "top_k below 0": ({"top_k": -1}, ValueError, ("top_k = -1", "at least 0")),
    "top_k a float": ({"top_k": 2.0}, ValueError, ("top_k = 2.0", "integer")),
    "top_p above 1": ({"top_p": 1.5}, ValueError, ("top_p = 1.5", "from 0 to 1")),
    "min_p below 0": ({"min_p": -0.1}, ValueError, ("min_p = -0.1", "from 0 to 1")),
    "min_keep 0": ({"min_keep": 0}, ValueError, ("min_keep = 0", "at least 1")),
    "last_n below -1": ({"last_n": -2}, ValueError, ("last_n = -2", "at least -1")),
    "repeat 0": ({"repeat": 0.0}, ValueError, ("repeat = 0.0", "above 0")),
    "frequency infinite": ({"frequency": INF}, ValueError, ("frequency = inf", "finite number")),
    "presence true": ({"presence": True}, ValueError, ("presence = True", "finite number")),
    "max_candidates none": ({"max_candidates": None}, ValueError, ("max_candidates = None", "integer")),
}

DRAFTING = {
    "spec 0": ({"spec": 0}, ValueError, ("spec = 0", "from 1 to 8")),
    "spec 9": ({"spec": 9}, ValueError, ("spec = 9", "from 1 to 8")),
    "max_t a float": ({"max_t": 4.0}, ValueError, ("max_t = 4.0", "integer")),
    "window 0": ({"window": 0}, ValueError, ("window = 0", "at least 1")),
    "min_p 2": ({"min_p": 2}, ValueError, ("min_p = 2", "from 0 to 1")),
    "min_p nan": ({"min_p": NAN}, ValueError, ("min_p = nan", "from 0 to 1")),
}

ENGINE = {
    "model none": ({"model": 3}, ValueError, ("model: int", "TextModel")),
    "no slots": ({"slots": 0}, ValueError, ("slots = 0", "at least 1")),
    "groups that do not divide": ({"slots": 3, "groups": 2}, ValueError, ("groups = 2", "divide slots = 3")),
    "capacity 0": ({"capacity": 0}, ValueError, ("capacity = 0", "from 1 to 2147483647")),
    "capacity beyond": ({"capacity": 2**31}, ValueError, ("capacity = 2147483648", "from 1 to")),
    "page_size 0": ({"page_size": 0}, ValueError, ("page_size = 0", "from 1 to")),
    "chunk 0": ({"chunk": 0}, ValueError, ("chunk = 0", "at least 1")),
    "an unknown format": ({"kv_format": "fp8"}, ValueError, ("kv_format = 'fp8'", "int8")),
    "fp16 in the exact arithmetic": ({"kv_format": "fp16"}, ValueError, ("kv_format = 'fp16'", "exact")),
}

SUBMIT = {
    "no ids": ({"ids": lambda given: []}, ValueError, ("ids: shape (0,)", "non-empty")),
    "ids of text": ({"ids": "text"}, ValueError, ("ids: shape ()", "one-dimensional")),
    "ids of floats": ({"ids": [1.5]}, ValueError, ("ids", "integers")),
    "an id beyond": ({"ids": [3, 97]}, ValueError, ("97", "0 to 96")),
    "an id below": ({"ids": [-1]}, ValueError, ("-1", "0 to 96")),
    "no tokens": ({"max_tokens": 0}, ValueError, ("max_tokens = 0", "at least 1")),
    "too many tokens": ({"max_tokens": 99}, ValueError, ("max_tokens = 99", "capacity = 40")),
    "sampling a dict": ({"sampling": {"top_k": 3}}, ValueError, ("sampling = {'top_k': 3}", "Sampling")),
    "a penalty beyond float32": ({"sampling": Sampling(presence=1e39)}, ValueError, ("presence = 1e+39", "from -3.4")),
    "seed below": ({"seed": -1}, ValueError, ("seed = -1", "from 0 to 18446744073709551615")),
    "seed beyond": ({"seed": 2**64}, ValueError, ("seed = 18446744073709551616", "from 0 to")),
    "an unknown acceptance": (
        {"acceptance": "all"},
        ValueError,
        ("acceptance = 'all'", "greedy, exact_match, rejection"),
    ),
    "greedy while drawing": (
        {"acceptance": "greedy", "sampling": Sampling()},
        ValueError,
        ("acceptance = 'greedy'", "temperature = 1.0"),
    ),
    "drafting a number": ({"drafting": 4}, ValueError, ("drafting = 4", "Drafting")),
    "stop a number": ({"stop": 3}, ValueError, ("stop = 3", "collection")),
    "a stop beyond": ({"stop": [97]}, ValueError, ("stop = 97", "from 0 to 96")),
}

SCHEDULER = {
    "no groups": ({"groups": 0}, ValueError, ("groups = 0", "slots = 4")),
    "three groups": ({"groups": 3}, ValueError, ("groups = 3", "divide slots = 4")),
}

SCORE = {
    "model a folder": ({"model": "golden/model"}, ValueError, ("model: str", "TextModel")),
    "one id": ({"ids": [3]}, ValueError, ("ids: 1 token", "at least 2")),
    "an id beyond": ({"ids": [3, 400]}, ValueError, ("400", "0 to 96")),
    "window 0": ({"window": 0}, ValueError, ("window = 0", "from 1 to 8")),
    "window 9": ({"window": 9}, ValueError, ("window = 9", "from 1 to 8")),
    "chunk 0": ({"chunk": 0}, ValueError, ("chunk = 0", "at least 1")),
    "capacity 2": ({"capacity": 2}, ValueError, ("ids: 9 tokens need 8 cells", "capacity = 2")),
    "an unknown format": ({"kv_format": "q8"}, ValueError, ("kv_format = 'q8'", "int8")),
}

GENERATE = {
    "model none": ({"model": None}, ValueError, ("model: NoneType", "TextModel")),
    "no tokens": ({"max_tokens": 0}, ValueError, ("max_tokens = 0", "from 1 to")),
    "capacity 3": ({"capacity": 3}, ValueError, ("ids: ", "capacity = 3")),
    "page_size 0": ({"page_size": 0}, ValueError, ("page_size = 0", "from 1 to")),
    "an id below": ({"ids": [-4]}, ValueError, ("-4", "0 to 96")),
}


@cache
def slot():
    return Slot(engine_model(), 40)


@cache
def saved():
    return slot().save()


def flipped(given):
    data = bytearray(given["saved"])
    data[-1] ^= 1
    return bytes(data)


RESTORE = {
    "nothing": ({"saved": b""}, ValueError, ("saved: ", "state")),
    "text": ({"saved": b"no state of a slot"}, ValueError, ("saved: ", "state")),
    "a string": ({"saved": "state"}, ValueError, ("saved: ", "bytes-like object", "'str'")),
    "cut": ({"saved": lambda given: given["saved"][:-5]}, ValueError, ("saved: ",)),
    "a bit changed": ({"saved": flipped}, ValueError, ("saved: ", "identity")),
}


def draws():
    return {
        "logits": np.zeros((2, 40), np.float32),
        "options": Sampling(),
        "history": np.zeros((2, 4), np.int32),
        "lengths": 0,
        "seeds": 0,
        "positions": 0,
    }


DRAWS = {
    "logits of one axis": ({"logits": np.zeros(40, np.float32)}, ValueError, ("logits: shape (40,)", "[rows, vocab]")),
    "no vocabulary": ({"logits": np.zeros((2, 0), np.float32)}, ValueError, ("logits: shape (2, 0)", "[rows, vocab]")),
    "options of three rows": ({"options": lambda given: [Sampling()] * 3}, ValueError, ("options: 3 given", "2 rows")),
    "options of float": ({"options": np.zeros((2, 9))}, ValueError, ("options: float64", "int32")),
    "history of 64 bits": ({"history": np.zeros((2, 4), np.int64)}, ValueError, ("history: int64", "int32")),
    "length beyond": ({"lengths": 5}, ValueError, ("lengths: 5", "from 0 to 4")),
    "lengths of floats": ({"lengths": 1.0}, ValueError, ("lengths: float64", "integer")),
    "seed below": ({"seeds": -1}, ValueError, ("seeds: -1", "from 0 to")),
    "slot beyond": ({"slots": 2}, ValueError, ("slots: 2", "from 0 to 1")),
    "tokens of 64 bits": ({"tokens": np.zeros(2, np.int64)}, ValueError, ("tokens: int64", "int32")),
    "tokens of one row": ({"tokens": np.zeros(1, np.int32)}, ValueError, ("tokens: int32 (1,)", "2 rows")),
}


def row():
    options = {"options": Sampling(), "seed": 0, "position": 0}
    return {"logits": np.arange(9.0, dtype=np.float32), "history": [1, 2], **options}


ROW = {
    "logits of two axes": ({"logits": np.zeros((2, 9))}, ValueError, ("logits: shape (2, 9)", "one row [vocab]")),
    "a logit that is nan": ({"logits": np.array([0, NAN])}, ValueError, ("logits[1] = nan", "finite or -inf")),
    "a logit that is inf": ({"logits": np.array([INF, 0])}, ValueError, ("logits[0] = inf", "finite or -inf")),
    "nothing possible": ({"logits": np.array([-INF, -INF])}, ValueError, ("logits: all -inf", "possible")),
    "a token beyond": ({"history": [9]}, ValueError, ("history: token 9", "9 tokens")),
    "seed below": ({"seed": -1}, ValueError, ("-1", "from 0 to 2^64 - 1")),
    "position below": ({"position": -1}, ValueError, ("-1", "from 0")),
}

WINDOW = {
    "no rows": ({"logits": np.zeros((0, 9))}, ValueError, ("logits: shape (0, 9)", "at least one row")),
    "a draft too many": ({"drafts": [1, 2]}, ValueError, ("drafts: 2 tokens", "2 rows has 1")),
    "a draft beyond": ({"drafts": [9]}, ValueError, ("drafts: token 9", "9 tokens")),
    "drawing": ({"options": Sampling()}, ValueError, ("temperature = 1.0", "must be 0")),
}

IDS = {
    "a word": ({"data": b"1 two"}, ValueError, ("ids.txt: 'two'", "whole numbers")),
    "a fraction": ({"data": b"1.5"}, ValueError, ("ids.txt: '1.5'", "whole numbers")),
    "too large": ({"data": b"9" * 19}, ValueError, ("ids.txt: ", "whole numbers")),
}

VOCABULARY = {
    "no tokenizer": ({"ids": False}, ValueError, ("nowhere", "tokenizer.json", "--ids")),
}


def _rows():
    def submit(**arguments):
        return Engine(engine_model(), 1, 40).submit(**arguments)

    found = {}
    for name, function, make, rows in (
        ("Sampling", Sampling, dict, SAMPLING),
        ("Drafting", Drafting, dict, DRAFTING),
        ("Engine", Engine, lambda: {"model": engine_model(), "capacity": 40}, ENGINE),
        ("Engine.submit", submit, lambda: {"ids": prompt(9), "max_tokens": 3}, SUBMIT),
        ("Scheduler", Scheduler, lambda: {"slots": 4, "groups": 2}, SCHEDULER),
        ("score", score, lambda: {"model": engine_model(), "ids": prompt(9)}, SCORE),
        ("generate", generate, lambda: {"model": engine_model(), "ids": prompt(9), "max_tokens": 2}, GENERATE),
        ("Slot.restore", lambda slot, saved: slot.restore(saved), lambda: {"slot": slot(), "saved": saved()}, RESTORE),
        ("cpu sample", sampler.sample, draws, DRAWS),
        ("reference sample", reference_sampler.sample, row, ROW),
        ("exact sample", exact_sampler.sample, row, ROW),
        ("greedy", speculative.greedy, lambda: {"logits": np.zeros((2, 9)), "drafts": [1]}, WINDOW),
        ("Ids.encode", Ids().encode, lambda: {"data": b"1 2", "name": "ids.txt"}, IDS),
        (
            "vocabulary",
            vocabulary,
            lambda: {"config": SMALL_CONFIG, "directory": Path("nowhere"), "ids": True},
            VOCABULARY,
        ),
    ):
        found |= {f"{name}: {row}": bad for row, bad in refused(Base(function, make), rows).items()}
    return found


ROWS = _rows()
