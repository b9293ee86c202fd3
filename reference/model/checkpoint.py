"""Read a checkpoint folder: `config.json` and safetensors files, trusting nothing that the files say of themselves.

Source: the safetensors format; tensor names of the published checkpoint. Tensors are mapped, not read: what a model
does not touch costs no memory. A header is believed only after it has been held to the length of the file.
"""

import dataclasses
import json
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ..validation import shown
from .config import LIMIT, Config
from .files import pointer_fault, read_json
from .text_model import Model

FLOATS = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
DTYPES: dict[str, npt.DTypeLike] = FLOATS | {"I64": np.int64, "I8": np.int8}
# No weight has these, but other files of tensors do.
DTYPES |= {"BOOL": np.bool_, "U8": np.uint8, "I16": np.int16, "U16": np.uint16, "I32": np.int32, "U32": np.uint32}
DTYPES |= {"U64": np.uint64, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}
# Every dtype of the format, so that a file may hold tensors that are ignored; sizes in bits.
BITS = {"BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64}
BITS |= {"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "F16": 16, "BF16": 16, "F32": 32, "F64": 64}
MAX_HEADER = 100_000_000  # as the format says
INTEGERS = ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")
TABLE = ".ngram_embedding."


class CheckpointError(ValueError):
    """A checkpoint that cannot be read, or does not hold the model that its configuration describes."""


class Shards:
    """The rows of several arrays [rows, dim] of equal height as one, without joining them. Indexed by row numbers."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self.arrays, self.height = arrays, len(arrays[0])
        self.shape = (len(arrays) * self.height, *arrays[0].shape[1:])

    def __getitem__(self, rows: npt.ArrayLike) -> np.ndarray:
        """Rows [...] int → [..., dim] float64."""
        rows = np.asarray(rows)
        out = np.empty(rows.shape + self.shape[1:])
        for number in np.unique(rows // self.height):
            here = rows // self.height == number
            out[here] = self.arrays[number][rows[here] - number * self.height]
        return out


class Experts:
    """Experts stored one by one as one array [experts, out, in], joined when they are asked for.

    ``parts``: for every expert a tuple of arrays [rows, in], whose rows follow each other.
    """

    def __init__(self, parts: Sequence[Sequence[np.ndarray]]) -> None:
        self.parts = parts
        self.shape = (len(parts), sum(len(rows) for rows in parts[0]), parts[0][0].shape[1])

    def __getitem__(self, index: Any) -> np.ndarray:
        """One expert [out, in] by its number, or several [n, out, in] by an array of numbers; dtype as stored."""
        if np.ndim(index) == 0:
            return np.concatenate(self.parts[index])
        return np.stack([np.concatenate(self.parts[expert]) for expert in index])


def load_checkpoint(folder: Path | str, rule: str = "blocks", draft_norm: str = "whole") -> Model:
    """The :class:`~qsa.reference.model.Model` of a folder with `config.json` and `model.safetensors`, or with an index
    `model.safetensors.index.json` and its shards. ``rule`` and ``draft_norm`` go to the model. Of a
    `generation_config.json` the ends of text are read.

    Names may carry the language-model prefix of a multimodal checkpoint; vision tensors are ignored. Experts may be
    stacked or one by one, the n-gram table whole or in shards; the draft layer may be absent. Weights are float64,
    float32, float16 or bfloat16. Tensors that a file holds and the index does not name are skipped, with a warning that
    counts them.
    Raises CheckpointError (a ValueError) naming file or tensor when something is missing, extra, misshapen, of another
    dtype or malformed; ValueError on a configuration that is not supported; FileNotFoundError when a file is absent.
    """
    config, tensors = read_tensors(folder)
    try:
        return Model(config, tensors, rule, draft_norm)
    except ValueError as error:
        raise CheckpointError(str(error)) from error


def read_tensors(folder: Path | str, codes: bool = False) -> tuple[Config, dict[str, Any]]:
    """(:class:`Config`, name -> array) of a folder as :func:`load_checkpoint` takes it; names, but not shapes, are
    those of ``model.shapes``.

    Arrays are mapped; :class:`Shards` and :class:`Experts` join what is stored in parts. ``codes`` allows int8 codes
    too. Errors as :func:`load_checkpoint`, but for missing, extra and misshapen tensors.
    """
    folder = Path(folder)
    config = read_config(folder)
    weights = (*FLOATS, "I8") if codes else tuple(FLOATS)
    tensors = {}
    for name, (dtype, data) in _read_folder(folder).items():
        short = _short_name(name)
        if short is None:
            continue
        if short in tensors:
            raise CheckpointError(f"tensor {short}: there are two of this name, one with a prefix")
        allowed = ("I64",) if short.endswith(INTEGERS) else weights
        if dtype not in allowed:
            raise CheckpointError(f"tensor {short}: dtype {dtype}: allowed are {', '.join(allowed)}")
        tensors[short] = data
    return config, _join_table(_join_experts(tensors))


def read_config(folder: Path | str) -> Config:
    """The :class:`Config` of a folder's `config.json`, and what `generation_config.json` adds to its ends of text.

    An id that stands only there ends a text and cuts no n-grams, as further ids of `config.json` do. Raises ValueError
    that names file and field.
    """
    config = Config.from_file(Path(folder) / "config.json")
    more = generation_ends(folder, config)
    if not more:
        return config
    if config.eos_token_id is None:
        # A model without an end of text has no n-grams to cut.
        config, more = dataclasses.replace(config, eos_token_id=more[0]), more[1:]
    return dataclasses.replace(config, more_eos_token_ids=(*config.more_eos_token_ids, *more))


def generation_ends(folder: Path | str, config: Config) -> list[int]:
    """The ends of text that `generation_config.json` of a folder holds beside those of ``config``; empty where there is
    no such file. Raises ValueError on what is no id of the vocabulary."""
    path = Path(folder) / "generation_config.json"
    if not path.is_file():
        return []
    data = read_json(path)
    found = data.get("eos_token_id") if isinstance(data, dict) else None
    ids = found if isinstance(found, list) else [] if found is None else [found]
    for token in ids:
        if type(token) is not int or not 0 <= token < config.vocab_size:
            allowed = f"0 to {config.vocab_size - 1}, or a list of such, is allowed"
            raise ValueError(f"{path.name}: eos_token_id = {shown(token)}: {allowed}")
    return [token for token in dict.fromkeys(ids) if token not in config.eos_token_ids]


def _short_name(name: str) -> str | None:
    """The name as in a text-only checkpoint; None for a tensor that is not of the text model."""
    name = name.replace("model.language_model.", "model.", 1) if name.startswith("model.language_model.") else name
    if name.startswith("language_model."):
        name = name.removeprefix("language_model.")
        name = name if name.startswith(("model.", "lm_head.")) else "model." + name
    if name.startswith(("model.visual.", "visual.")):
        return None
    return name.removeprefix("model.") if name.startswith("model.mtp.") else name


def _read_folder(folder: Path) -> dict[str, tuple[str, np.ndarray | None]]:
    """name → (dtype name, array or None) of all files of the checkpoint."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return read_safetensors(folder / "model.safetensors")
    try:
        data = read_json(index)
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    where = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(where, dict) or not where:
        raise CheckpointError(f"{index.name}: weight_map: an object with at least one tensor is required")
    for name, file in where.items():
        # A plain name cannot leave the folder. (A link inside the folder may: its owner put it there.)
        if not isinstance(file, str) or not file.endswith(".safetensors") or set(file) & set("/\\:\0"):
            raise CheckpointError(
                f"{index.name}: {name}: {file!r}: a plain file name ending in .safetensors is required"
            )
    tensors: dict[str, tuple[str, np.ndarray | None]] = {}
    skipped: list[str] = []
    for file in sorted(set(where.values())):
        listed = {name for name, holder in where.items() if holder == file}
        found = read_safetensors(folder / file)
        missing = listed - set(found)
        if missing:
            raise CheckpointError(f"{file}: tensor {min(missing)}: missing")
        skipped += (f"{name} in {file}" for name in sorted(set(found) - listed))
        tensors |= {name: found[name] for name in listed}
    if skipped:
        text = f"{folder}: {len(skipped)} tensors of its files are not in {index.name} and were skipped: {skipped[0]}"
        warnings.warn(text + (", ..." if len(skipped) > 1 else ""), stacklevel=2)
    return tensors


def read_safetensors(path: Path | str) -> dict[str, tuple[str, np.ndarray | None]]:
    """name → (dtype name, array) of one file; the array is mapped, read-only, None for a dtype that NumPy has not.

    Raises CheckpointError unless the header is well-formed, the tensors fill the data without gap or overlap, and
    every tensor's bytes are those of its shape and dtype.
    """
    path = Path(path)
    size = path.stat().st_size
    fault = pointer_fault(path)
    if fault:
        raise CheckpointError(fault)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 2 <= length <= min(size - 8, MAX_HEADER):
            raise CheckpointError(f"{path.name}: header of {length} bytes in a file of {size}")
        text = file.read(length)
    try:
        header = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.name}: header: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path.name}: header: an object is required")
    header.pop("__metadata__", None)
    spans = {name: _span(f"{path.name}: tensor {name}", entry) for name, entry in header.items()}
    reached = 0
    for name, (_, _, begin, end) in sorted(spans.items(), key=lambda item: item[1][2:]):
        if begin != reached:
            raise CheckpointError(f"{path.name}: tensor {name}: begins at {begin}, the one before it ends at {reached}")
        reached = end
    if reached != size - 8 - length:
        raise CheckpointError(f"{path.name}: the tensors take {reached} bytes, the file has {size - 8 - length}")
    data = np.memmap(path, np.uint8, "r")[8 + length :]
    return {
        name: (dtype, data[begin:end].view(DTYPES[dtype]).reshape(shape) if dtype in DTYPES else None)
        for name, (dtype, shape, begin, end) in spans.items()
    }


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a name appears twice")
    return dict(pairs)


def _span(where: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    """(dtype name, shape, begin, end) of one header entry, in bytes from the start of the data."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{where}: dtype, shape and data_offsets are required")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise CheckpointError(f"{where}: dtype {dtype!r}: not of this format")
    if not isinstance(shape, list) or len(shape) > 8 or any(type(side) is not int or side < 0 for side in shape):
        raise CheckpointError(f"{where}: shape {shape!r}: a list of at most 8 sizes is required")
    if 0 in shape and any(side > LIMIT for side in shape):
        raise CheckpointError(f"{where}: shape {shape!r}: sizes above {LIMIT} beside a 0")
    if not isinstance(offsets, list) or len(offsets) != 2 or any(type(offset) is not int for offset in offsets):
        raise CheckpointError(f"{where}: data_offsets {offsets!r}: two integers are required")
    begin, end = offsets
    if not 0 <= begin <= end or (end - begin) * 8 != math.prod(shape) * BITS[dtype]:
        raise CheckpointError(f"{where}: {dtype} {shape} does not fill bytes {begin} to {end}")
    return dtype, tuple(shape), begin, end


def _numbered(tensors: dict[str, Any], stem: str, ending: str) -> list[Any]:
    """The arrays named ``stem`` + number + ``ending``, from 0 to the first that is absent, taken out of ``tensors``."""
    found: list[Any] = []
    while f"{stem}{len(found)}{ending}" in tensors:
        found.append(tensors.pop(f"{stem}{len(found)}{ending}"))
    return found


def _join_table(tensors: dict[str, Any]) -> dict[str, Any]:
    """n-gram tables stored in shards (``ngram_embedding.shard_0.weight``, …) under the name of the whole table."""
    for stem in sorted({name.split(TABLE)[0] + TABLE for name in tensors if TABLE + "shard_" in name}):
        shards = _numbered(tensors, stem + "shard_", ".weight")
        if not shards or any(shard.ndim != 2 or shard.shape != shards[0].shape for shard in shards):
            raise CheckpointError(
                f"tensor {stem}shard_0.weight: shards from 0 on of one shape [rows, dim] are required"
            )
        tensors[stem + "weight"] = Shards(shards)
    return tensors


def _join_experts(tensors: dict[str, Any]) -> dict[str, Any]:
    """Experts stored one by one (``experts.0.gate_proj.weight``, …) under the names of the stacked ones."""
    for stem in sorted({name.split(".experts.")[0] + ".experts." for name in tensors if ".experts.0." in name}):
        gate, up, down = (_numbered(tensors, stem, f".{kind}_proj.weight") for kind in ("gate", "up", "down"))
        shapes = {weight.shape for weight in gate + up}, {weight.shape for weight in down}
        if not len(gate) == len(up) == len(down) > 0 or any(len(kind) > 1 or len(min(kind)) != 2 for kind in shapes):
            raise CheckpointError(f"tensor {stem}0: every expert needs gate, up and down projections of one shape")
        tensors[stem + "gate_up_proj"] = Experts(list(zip(gate, up, strict=True)))
        tensors[stem + "down_proj"] = Experts([(weight,) for weight in down])
    return tensors
