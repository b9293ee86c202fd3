"""Bad arguments of sizes and containers, of model and checkpoint loading, of goldens, and of the commands' options."""

import contextlib
import functools
import io
import json
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from qsa.engine.load import load_model
from qsa.golden import GoldenError, Store
from qsa.golden.case import CaseError, parse
from qsa.golden.families import produce
from qsa.parity import cli
from qsa.reference import Config, load_checkpoint
from qsa.reference.formats import encode_int8, encode_q4_0, rotate, unpack_q4_0
from qsa.reference.geometry import REAL, Geometry, step_records
from qsa.reference.index import Index
from qsa.reference.kv import PagedKV, Pool
from qsa.reference.model.checkpoint import CheckpointError, read_safetensors
from qsa.reference.model.random_model import random_tensors
from support import command_models
from support.attention import SMALL
from support.checkpoint_folders import FIELDS, cast, entry, write, write_raw

from .bad_inputs import Base, refused

NOWHERE = Path("nowhere-at-all")


@functools.cache
def temporary():
    """A folder for the files of the tables, removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="qsa-bad-inputs-")


def place(name):
    """The path ``name`` in the temporary folder."""
    return Path(temporary().name) / name


GEOMETRY = {
    "no heads": ({"n_head": 0}, ValueError, ("n_head = 0", "positive integer")),
    "half a head": ({"n_head": 1.5}, ValueError, ("n_head = 1.5", "positive integer")),
    "heads that do not divide": ({"n_head_kv": 5}, ValueError, ("n_head = 24", "multiple of n_head_kv = 5")),
    "an odd rotation": ({"n_rot": 63}, ValueError, ("n_rot = 63", "even")),
    "a rotation beyond the dims": ({"n_rot": 130}, ValueError, ("n_rot = 130", "at most head_dim and idx_dim")),
    "a budget between blocks": ({"budget": 2050}, ValueError, ("budget = 2050", "multiple of ratio = 4")),
}

STEPS = {
    "a position below": ({"positions": [-2]}, ValueError, ("position = -2", "from -1")),
    "a position beyond": ({"positions": [2**31 - 1]}, ValueError, ("position = 2147483647", "2^31 - 2")),
    "an unknown rule": ({"rule": "best"}, ValueError, ("rule = 'best'", "blocks, cells")),
}

POOL = {
    "an unknown format": ({"format": "fp8"}, ValueError, ("format = 'fp8'", "int8, q4_0")),
    "no pages": ({"n_pages": 0}, ValueError, ("n_pages = 0", "at least 1")),
    "pages of no cell": ({"page_size": 0}, ValueError, ("page_size = 0", "at least 1")),
    "dims that make no group": (
        {"geometry": Geometry(n_head=2, n_head_kv=1, head_dim=32, n_rot=8)},
        ValueError,
        ("head_dim = 32", "groups 64"),
    ),
}

PAGED = {
    "an entry beyond": ({"table": [0, 4]}, ValueError, ("table[1] = 4", "0 to 3")),
    "an entry below": ({"table": [-2]}, ValueError, ("table[0] = -2", "or -1")),
    "a page twice": ({"table": [3, 1, 3]}, ValueError, ("table: ", "share a physical page", "[0] and [2] are 3")),
    "a table of two axes": ({"table": np.zeros((2, 2), np.int32)}, ValueError, ("table: int32, 2 axes", "one entry")),
    "a host of another format": ({"host": Pool("q4_0", 4, 4, SMALL)}, ValueError, ("host: ", "format")),
    "a host of too few pages": ({"host": Pool("int8", 1, 4, SMALL)}, ValueError, ("host: 1 pages", "table has 2")),
}

INDEX = {
    "no blocks": ({"max_blocks": 0}, ValueError, ("max_blocks = 0", "at least 1")),
    "a weight of other dims": ({"weight": np.ones(5)}, ValueError, ("weight: shape (5,)", "(32,)")),
}

ENCODE = {
    "dims that make no group": (
        {"x": np.zeros(33, np.float32)},
        ValueError,
        ("last axis = 33", "multiple of the group"),
    ),
    "not finite": ({"x": np.full(64, np.nan, np.float32)}, ValueError, ("must be finite",)),
}

ROTATE = {"dims of no rotation": ({"x": np.zeros(48, np.float32)}, ValueError, ("last axis = 48", "power of 4"))}
UNPACK = {"17 bytes": ({"blocks": np.zeros((1, 17), np.uint8)}, ValueError, ("last axis = 17", "18 bytes"))}

CONFIG = {
    "a list": ({"data": lambda given: []}, ValueError, ("config: file = 'list'", "object")),
    "another model": ({"data": FIELDS | {"model_type": "llama"}}, ValueError, ("model_type = 'llama'", "qwen4_exp")),
    "sections of text": (
        {"data": FIELDS | {"rope_parameters": {**FIELDS["rope_parameters"], "mrope_section": ["a"]}}},
        ValueError,
        ("rope_parameters.mrope_section = ['a']", "3 integers"),
    ),
    "no layers": ({"data": FIELDS | {"num_hidden_layers": 0}}, ValueError, ("num_hidden_layers = 0", "from 1 to 1024")),
    "a number without end": (
        {"data": FIELDS | {"hidden_size": 10**400}},
        ValueError,
        ("hidden_size = 1000", "integer"),
    ),
}


@functools.cache
def tensors():
    return cast(random_tensors(Config.from_dict(FIELDS), 1, draft=True))


@functools.cache
def folder(kind="good"):
    """A checkpoint folder, or one with a fault."""
    path = place(kind)
    path.mkdir()
    stored = dict(tensors())
    if kind == "missing":
        del stored["lm_head.weight"]
    elif kind == "extra":
        stored["model.norm.weight"] = np.zeros(3, np.float32)
    elif kind == "shape":
        stored["lm_head.weight"] = np.zeros((3, 3), np.float32)
    elif kind == "dtype":
        stored["lm_head.weight"] = stored["lm_head.weight"].astype(np.int32)
    write(path, stored)
    if kind == "no config":
        (path / "config.json").unlink()
    elif kind == "no weights":
        (path / "model.safetensors").unlink()
    elif kind == "pointer":
        (path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\nsize 1\n")
    elif kind == "index":
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../a.safetensors"}}))
    elif kind == "ends":
        (path / "generation_config.json").write_text('{"eos_token_id": 17}')
    return path


LOAD_CHECKPOINT = {
    "no folder": ({"folder": NOWHERE}, FileNotFoundError, ("config.json",)),
    "no config": ({"folder": lambda given: folder("no config")}, FileNotFoundError, ("config.json",)),
    "a tensor missing": (
        {"folder": lambda given: folder("missing")},
        CheckpointError,
        ("missing tensor: lm_head.weight",),
    ),
    "a tensor too many": (
        {"folder": lambda given: folder("extra")},
        CheckpointError,
        ("extra tensor: model.norm.weight",),
    ),
    "another shape": (
        {"folder": lambda given: folder("shape")},
        CheckpointError,
        ("lm_head.weight: shape (3, 3)", "(17, 8)"),
    ),
    "another dtype": (
        {"folder": lambda given: folder("dtype")},
        CheckpointError,
        ("lm_head.weight: dtype I32", "BF16"),
    ),
    "a git-lfs pointer": (
        {"folder": lambda given: folder("pointer")},
        CheckpointError,
        ("model.safetensors: a git-lfs",),
    ),
    "an index that leaves": (
        {"folder": lambda given: folder("index")},
        CheckpointError,
        ("'../a.safetensors'", "plain"),
    ),
    "an end of text beyond": ({"folder": lambda given: folder("ends")}, ValueError, ("eos_token_id = 17", "0 to 16")),
    "an unknown rule": ({"rule": "best"}, ValueError, ("rule = 'best'", "blocks, cells")),
    "an unknown norm": ({"draft_norm": "none"}, ValueError, ("draft_norm = 'none'", "whole, streams")),
}

LOAD_MODEL = {
    "no folder": ({"directory": NOWHERE}, FileNotFoundError, ("nowhere-at-all", "no such folder")),
    "no weights": (
        {"directory": lambda given: folder("no weights")},
        FileNotFoundError,
        ("neither model.safetensors",),
    ),
    "an unknown backend": ({"backend": "gpu"}, ValueError, ("backend = 'gpu'", "cpu, cuda, reference")),
    "an unknown arithmetic": ({"arithmetic": "bf16"}, ValueError, ("arithmetic = 'bf16'", "exact, float")),
    "an unknown rule": ({"rule": "best"}, ValueError, ("rule = 'best'", "blocks, cells")),
    "an unknown norm": ({"draft_norm": "none"}, ValueError, ("draft_norm = 'none'", "whole, streams")),
    "no window": ({"draft_window": 0}, ValueError, ("draft_window = 0", "at least 1")),
    "float in NumPy": ({"backend": "reference", "arithmetic": "float"}, ValueError, ("arithmetic = 'float'", "exact")),
    "sizes outside the arithmetic": (
        {"directory": lambda given: folder()},
        ValueError,
        ("head_dim = 8", "multiples of 64"),
    ),
}


def model_folder():
    return command_models.make(place("model"))


@functools.cache
def shard(kind="good"):
    path = place(f"{kind}.safetensors")
    headers = {
        "short": {"a": entry([8], 0, 32)},
        "overlap": {"a": entry([4], 0, 16), "b": entry([4], 8, 24)},
        "dtype": {"a": entry([6], 0, 24, "F31")},
    }
    if kind == "good":
        save_file({"a": np.zeros(6, np.float32)}, path)
    elif kind == "empty":
        path.write_bytes(b"")
    else:
        write_raw(path, headers[kind], bytes(24))
    return path


SHARD = {
    "nothing": ({"path": lambda given: shard("empty")}, CheckpointError, ("empty.safetensors: header of 0 bytes",)),
    "data missing": ({"path": lambda given: shard("short")}, CheckpointError, ("take 32 bytes", "has 24")),
    "an overlap": ({"path": lambda given: shard("overlap")}, CheckpointError, ("tensor b: begins at 8", "ends at 16")),
    "an unknown dtype": ({"path": lambda given: shard("dtype")}, CheckpointError, ("tensor a: dtype 'F31'",)),
}

CASE = {
    "nothing after the colon": ({"text": "attend:"}, CaseError, ("'attend:'", "nothing after the colon")),
    "no value": ({"text": "attend:op"}, CaseError, ("'op'", "key=value")),
    "a key twice": ({"text": "attend:a=1,a=2"}, CaseError, ("a is given twice",)),
    "capitals": ({"text": "Attend:a=1"}, CaseError, ("'Attend'", "lower-case")),
}

PRODUCE = {
    "an unknown family": ({"family": "attention"}, CaseError, ("family 'attention'", "append_kv, ")),
    "an unknown parameter": (
        {"recipe": lambda given: given["recipe"] | {"colour": 3}},
        CaseError,
        ("colour", "no parameter"),
    ),
    "an unknown value": (
        {"recipe": lambda given: given["recipe"] | {"rule": "best"}},
        CaseError,
        ("rule = 'best'", "blocks"),
    ),
}

STORE = {
    "no golden": ({"name": "nothing"}, GoldenError, ("nothing.json", "no golden 'nothing'")),
    "a name that leaves": ({"name": "../evidence"}, GoldenError, ("'../evidence'",)),
}


class CommandError(Exception):
    """What a command that ended with 2 printed last."""


def command(arguments):
    """Run a command in this process. Raises CommandError with the last line of standard error when it ends with 2."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(arguments)
        except SystemExit as stop:
            code = stop.code
    if code == 2:
        assert not out.getvalue()
        raise CommandError(err.getvalue().splitlines()[-1])


COMMANDS = {
    "no verb": ([], ("COMMAND",)),
    "an unknown verb": (["check"], ("'check'", "parity")),
    "parity: an unknown module": (["parity", "speed"], ("'speed'", "accuracy")),
    "parity: an unknown arithmetic": (["parity", "--arithmetic", "bf16"], ("--arithmetic = 'bf16'", "exact, float")),
    "parity: an unknown backend": (["parity", "--backend", "nowhere"], ("backend = 'nowhere'", "module")),
    "parity: a case that is none": (["parity", "--case", "select"], ("select",)),
    "parity: a case of no module": (["parity", "--case", "speed:op=select"], ("'speed'",)),
    "gate: an unknown check": (["gate", "--only", "speedy"], ("'speedy'", "goldens")),
    "golden: no verb": (["golden"], ("VERB",)),
    "golden: an unknown name": (["golden", "check", "nothing"], ("'nothing'", "qsa golden list")),
    "golden: nothing pending": (["golden", "accept", "text-math-greedy", "--because", "x"], ("nothing is pending",)),
    "golden: no reason": (["golden", "accept", "text-math-greedy"], ("--because",)),
    "evidence: no such file": (["evidence", "show", "nowhere.json"], ("nowhere.json",)),
    "score: no such file": (["score", "nowhere.txt"], ("nowhere.txt: No such file",)),
    "score: a folder": (["score", "."], (".: is a folder", "a file")),
    "score: rows and chunks": (["score", "x", "--window", "4", "--chunk", "4"], ("--chunk", "--window")),
    "generate: no prompt": (["generate"], ("--prompt",)),
    "generate: a spec beyond": (["generate", "--prompt", "a", "--spec", "9"], ("--spec = 9", "from 1 to 8")),
    "generate: a temperature below 0": (["generate", "--prompt", "a", "--temperature", "-1"], ("= -1.0", "at least 0")),
}


def _rows():
    found = {}
    for name, function, make, rows in (
        ("Geometry", Geometry, dict, GEOMETRY),
        ("step_records", step_records, lambda: {"positions": [0, 5]}, STEPS),
        ("Pool", Pool, lambda: {"format": "int8", "n_pages": 2, "geometry": REAL}, POOL),
        ("PagedKV", PagedKV, lambda: {"pool": Pool("int8", 4, 4, SMALL), "table": [0, 1]}, PAGED),
        ("Index", Index, lambda: {"max_blocks": 2, "weight": np.ones(32), "geometry": SMALL}, INDEX),
        ("encode_int8", encode_int8, lambda: {"x": np.ones(64, np.float32)}, ENCODE),
        ("encode_q4_0", encode_q4_0, lambda: {"x": np.ones(64, np.float32)}, ENCODE),
        ("rotate", rotate, lambda: {"x": np.ones(64, np.float32)}, ROTATE),
        ("unpack_q4_0", unpack_q4_0, lambda: {"blocks": np.zeros((1, 18), np.uint8)}, UNPACK),
        ("Config.from_dict", Config.from_dict, lambda: {"data": dict(FIELDS)}, CONFIG),
        ("load_checkpoint", load_checkpoint, lambda: {"folder": folder()}, LOAD_CHECKPOINT),
        ("load_model", load_model, lambda: {"directory": model_folder()}, LOAD_MODEL),
        ("read_safetensors", read_safetensors, lambda: {"path": shard()}, SHARD),
        ("parse", parse, lambda: {"text": "attend:a=1"}, CASE),
        ("produce", produce, lambda: {"family": "select", "recipe": dict(SELECT_RECIPE)}, PRODUCE),
        ("Store.load", Store().load, lambda: {"name": "text-math-greedy"}, STORE),
    ):
        found |= {f"{name}: {row}": bad for row, bad in refused(Base(function, make), rows).items()}
    base = Base(command, lambda: {"arguments": ["gate", "--list"]})
    rows = {name: ({"arguments": arguments}, CommandError, words) for name, (arguments, words) in COMMANDS.items()}
    return found | {f"qsa {name}": bad for name, bad in refused(base, rows).items()}


SELECT_RECIPE = parse(Store().load("select-16k-blocks-equal-1rows-tail1").case)[1]
ROWS = _rows()
