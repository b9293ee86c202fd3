"""The published configuration (`config.json`) of a `qwen4_exp` text model, read and checked.

Source: the published configuration and configuration class, whose field names and defaults these are. Fields that
change no result (training, initialisation, bookkeeping) are ignored. A field that the reference does not implement is
refused when it holds anything but the one value that is implemented: nothing is silently computed differently.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from msgspec import Meta

from ..geometry import Geometry
from ..validation import LARGEST, InvalidError, convert
from .config_fields import MOST as LIMIT
from .config_fields import check_fields, check_outer, rope_objects
from .config_fields import field_error as _error
from .files import read_json

LAYER_TYPES = ("linear_attention", "indexed_attention")
MODEL_TYPES = ("qwen4_exp", "qwen4_exp_text")

# How the int8 codes of a quantised checkpoint are stored (model/checkpoint.py), and no other way.
QUANTISATION = {"quant_method": "int8", "group_size": 64, "scale_dtype": "float16", "scale_suffix": "_scale"}

# A file names sizes before any tensor proves them, and work is done per layer and per n-gram head.
LIMITS = {"num_hidden_layers": 1024, "hc_count": 64, "ngram_size": 16, "heads_per_ngram": 256}


def _up_to(top: int) -> Meta:
    return Meta(ge=1, le=top, description=f"an integer from 1 to {top}")


Size = Annotated[int, _up_to(LIMIT)]
Layers = Annotated[int, _up_to(LIMITS["num_hidden_layers"])]
Streams = Annotated[int, _up_to(LIMITS["hc_count"])]
NgramSize = Annotated[int, _up_to(LIMITS["ngram_size"])]
NgramHeads = Annotated[int, _up_to(LIMITS["heads_per_ngram"])]
Interval = Annotated[int, Meta(ge=1, description="a positive integer")]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1, description="an integer from 0 to 2^63 - 1")]
Positive = Annotated[float, Meta(gt=0, le=LARGEST, description="a positive number")]


def _check(name: str, value: object, kind: Any) -> Any:
    """``value``, or ValueError that names the field, its value and what is allowed, unless it is of the type."""
    try:
        return convert(value, kind, name)
    except InvalidError as error:
        raise _error(error.path, error.value, f"{error.allowed} is required") from None


def _sole(name: str, places: Iterable[Mapping]) -> Any:
    """The value of ``name`` in several mappings; None when absent. Raises ValueError when they disagree."""
    values = [place[name] for place in places if place.get(name) is not None]
    if any(value != values[0] for value in values[1:]):
        raise _error(name, values, "the same value is required wherever the file repeats it")
    return values[0] if values else None


@dataclass(frozen=True)
class Config:
    """Sizes and constants of one text model, under the published field names. See :meth:`from_dict`.

    ``layer_types`` holds ``linear_attention`` (Gated DeltaNet) or ``indexed_attention`` (QSA) per layer.
    ``ple_layer_ids`` counts from 1. ``eos_token_id`` is the one id that cuts n-grams; a file's list of several is this
    one and ``more_eos_token_ids``, which end a text and cut nothing.
    Raises ValueError naming field, value and what is allowed.
    """

    vocab_size: Size
    hidden_size: Size
    num_hidden_layers: Layers
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: Size
    linear_num_key_heads: Size
    linear_num_value_heads: Size
    linear_key_head_dim: Size
    linear_value_head_dim: Size
    moe_intermediate_size: Size
    shared_expert_intermediate_size: Size
    num_experts: Size
    num_experts_per_tok: Size
    indexer_n_heads: Size
    indexer_head_dim: Size
    indexer_budget: Size
    indexer_compress_ratio: Size
    rope_theta: Positive
    layer_types: tuple
    ple_layer_ids: tuple = ()
    eos_token_id: int | None = None
    ple_embed_dim: Size | None = None
    partial_rotary_factor: Positive = 1.0
    rms_norm_eps: Positive = 1e-6
    linear_conv_kernel_dim: Size = 4
    output_gate_type: Literal["sigmoid", "silu"] = "silu"
    hc_count: Streams = 4
    hc_lowrank: Size = 320
    ple_conv_kernel_size: Size = 4
    ngram_size: NgramSize = 3
    heads_per_ngram: NgramHeads = 8
    ngram_vocab_size_base: Size = 20_000_000
    make_ngram_vocab_size_divisible_by: Size = 128
    seed: Seed = 1234
    # Not part of what is computed, and so not of the representation, by which saved states know their model.
    more_eos_token_ids: tuple = dataclasses.field(default=(), repr=False)

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        if self.ple_embed_dim is None:
            set_(self, "ple_embed_dim", self.hidden_size)
        set_(self, "layer_types", tuple(self.layer_types))
        for layer in self.ple_layer_ids:
            if type(layer) is not int:
                raise _error("ple_layer_ids", layer, "integers are required")
        set_(self, "ple_layer_ids", tuple(sorted(set(self.ple_layer_ids))))
        set_(self, "more_eos_token_ids", tuple(self.more_eos_token_ids))
        for name, kind in get_type_hints(type(self), include_extras=True).items():
            _check(name, getattr(self, name), kind)
        self._check_layers()
        self._check_ple()
        self._check_eos()
        if self.hc_count < 2:
            raise _error("hc_count", self.hc_count, "at least 2 is required")
        if self.linear_num_value_heads % self.linear_num_key_heads:
            allowed = f"must be a multiple of linear_num_key_heads = {self.linear_num_key_heads}"
            raise _error("linear_num_value_heads", self.linear_num_value_heads, allowed)
        if self.num_experts_per_tok > self.num_experts:
            allowed = f"at most num_experts = {self.num_experts} is allowed"
            raise _error("num_experts_per_tok", self.num_experts_per_tok, allowed)
        if self.partial_rotary_factor > 1:
            raise _error("partial_rotary_factor", self.partial_rotary_factor, "at most 1 is allowed")
        if self.num_attention_heads % self.num_key_value_heads:
            allowed = f"must be a multiple of num_key_value_heads = {self.num_key_value_heads}"
            raise _error("num_attention_heads", self.num_attention_heads, allowed)
        if self.indexer_budget % self.indexer_compress_ratio:
            allowed = f"must be a multiple of indexer_compress_ratio = {self.indexer_compress_ratio}"
            raise _error("indexer_budget", self.indexer_budget, allowed)
        if self.n_rot < 2 or self.n_rot % 2 or self.n_rot > self.indexer_head_dim:
            allowed = f"head_dim · factor = {self.n_rot} must be even, at least 2 and at most indexer_head_dim"
            raise _error("partial_rotary_factor", self.partial_rotary_factor, allowed)

    def _check_layers(self) -> None:
        if len(self.layer_types) != self.num_hidden_layers:
            allowed = f"num_hidden_layers = {self.num_hidden_layers} entries are required"
            raise _error("layer_types", list(self.layer_types), allowed)
        for layer_type in self.layer_types:
            if layer_type not in LAYER_TYPES:
                raise _error("layer_types", layer_type, f"allowed are {', '.join(LAYER_TYPES)}, full_attention")

    def _check_ple(self) -> None:
        for layer in self.ple_layer_ids:
            if not 1 <= layer <= self.num_hidden_layers:
                raise _error("ple_layer_ids", layer, f"1 to num_hidden_layers = {self.num_hidden_layers} are allowed")
            if self.layer_types[layer - 1] != "linear_attention":
                raise _error("ple_layer_ids", layer, "only linear_attention layers may have PLE")
        if not self.ple_layer_ids:
            return
        if self.ngram_size < 2:
            raise _error("ngram_size", self.ngram_size, "at least 2 is required with PLE")
        if _check("ple_embed_dim", self.ple_embed_dim, Size) % self.ngram_heads:
            allowed = f"must be a multiple of the {self.ngram_heads} n-gram heads"
            raise _error("ple_embed_dim", self.ple_embed_dim, allowed)
        if type(self.eos_token_id) is not int or not 0 <= self.eos_token_id < self.vocab_size:
            raise _error("eos_token_id", self.eos_token_id, f"0 to {self.vocab_size - 1} are allowed with PLE")

    def _check_eos(self) -> None:
        for token in self.eos_token_ids:
            if type(token) is not int or not 0 <= token < self.vocab_size:
                raise _error("eos_token_id", token, f"0 to {self.vocab_size - 1} are allowed")

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every id that ends a text, as a tuple; empty where the model has none."""
        return (() if self.eos_token_id is None else (self.eos_token_id,)) + self.more_eos_token_ids

    @property
    def n_rot(self) -> int:
        """Dims of a head that are rotated."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def ngram_heads(self) -> int:
        """Hashed heads of one PLE layer, over all n-gram sizes from 2 on."""
        return (self.ngram_size - 1) * self.heads_per_ngram

    @property
    def geometry(self) -> Geometry:
        """Sizes of the QSA layers as :class:`~qsa.reference.geometry.Geometry`."""
        return Geometry(
            n_head=self.num_attention_heads,
            n_head_kv=self.num_key_value_heads,
            head_dim=self.head_dim,
            n_rot=self.n_rot,
            rope_base=float(self.rope_theta),
            idx_heads=self.indexer_n_heads,
            idx_dim=self.indexer_head_dim,
            ratio=self.indexer_compress_ratio,
            budget=self.indexer_budget,
            eps=float(self.rms_norm_eps),
        )

    @classmethod
    def from_dict(cls, data: Any) -> "Config":
        """From the content of a ``config.json``: a text model's, or a multimodal one's with a nested ``text_config``.

        Of a multimodal file the nested object is read. What stands around it must not differ from it
        (:mod:`~qsa.reference.model.config_fields`).

        Raises ValueError naming field, value and what is allowed, when a field is missing, unsupported or
        inconsistent.
        """
        if not isinstance(data, dict):
            raise _error("file", type(data).__name__, "an object is required")
        outer, data = data, data.get("text_config", data)
        if not isinstance(data, dict):
            raise _error("text_config", data, "an object is required")
        places = {"": data} if data is outer else {"": outer, "text_config.": data}
        for prefix, place in places.items():
            _check_quantisation(place)
            check_fields(place, prefix)
        data = {name: value for name, value in data.items() if value is not None}
        if data.get("model_type") not in MODEL_TYPES:
            raise _error("model_type", data.get("model_type"), f"allowed are {', '.join(MODEL_TYPES)}")
        ropes = rope_objects(data)
        known = {field.name for field in dataclasses.fields(cls)}
        values = {name: value for name, value in data.items() if name in known and name != "more_eos_token_ids"}
        for name in ("rope_theta", "partial_rotary_factor"):
            value = _sole(name, (data, *ropes))
            if value is not None:
                values[name] = value
        if "text_config." in places:
            # The top of a file has end-of-text ids of its own, which the text model does not read.
            names = known - {"eos_token_id", "more_eos_token_ids"} | {"full_attention_interval"}
            check_outer(outer, {**data, **values}, names)
            for rope in rope_objects(outer):
                check_outer(rope, values, ("rope_theta", "partial_rotary_factor"))
        for name in ("layer_types", "ple_layer_ids"):
            _check(name, values.get(name, []), list)
        if "layer_types" not in values:
            values["layer_types"] = _interval_types(data)
        # The published checkpoint calls its QSA layers full_attention; the published code reads them as indexed.
        values["layer_types"] = tuple(
            "indexed_attention" if layer == "full_attention" else layer for layer in values["layer_types"]
        )
        eos = values.get("eos_token_id")
        if isinstance(eos, list):
            if not eos:
                raise _error("eos_token_id", eos, "at least one id is required")
            values["eos_token_id"], values["more_eos_token_ids"] = eos[0], eos[1:]
        required = {field.name for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING}
        for name in sorted(required - set(values)):
            raise ValueError(f"config: {name}: missing")
        return cls(**values)

    @classmethod
    def from_file(cls, path: str | Path) -> "Config":
        """From a ``config.json`` file. Raises ValueError as :meth:`from_dict`, also when the file is no JSON."""
        try:
            data = read_json(Path(path))
        except ValueError as error:
            raise ValueError(f"config: {error}") from error
        return cls.from_dict(data)

    def to_dict(self) -> dict[str, Any]:
        """The content of a ``config.json`` of a text model, of which :meth:`from_dict` makes this configuration."""
        data = dataclasses.asdict(self)
        # The published checkpoint's own name for its QSA layers.
        data["layer_types"] = ["full_attention" if layer == LAYER_TYPES[1] else layer for layer in self.layer_types]
        data["ple_layer_ids"] = list(self.ple_layer_ids)
        more = data.pop("more_eos_token_ids")
        if more:
            data["eos_token_id"] = [self.eos_token_id, *more]
        rope = {name: data.pop(name) for name in ("rope_theta", "partial_rotary_factor")}
        return {"model_type": MODEL_TYPES[1], **data, "rope_parameters": {"rope_type": "default", **rope}}


def _check_quantisation(data: Mapping) -> None:
    """Raises ValueError on a ``quantization_config`` of ``data`` that says anything but :data:`QUANTISATION`."""
    found = data.get("quantization_config")
    if found is None:
        return
    if not isinstance(found, dict):
        raise _error("quantization_config", found, "an object is required")
    for name, only in QUANTISATION.items():
        if found.get(name) != only:
            raise _error(f"quantization_config.{name}", found.get(name), f"only {only!r} is supported")
    for name in sorted(found.keys() - QUANTISATION.keys()):
        raise _error(f"quantization_config.{name}", found[name], "is not supported")


def _interval_types(data: Mapping) -> list[str]:
    """``layer_types`` where the file leaves them out: every ``full_attention_interval``-th layer (4) is indexed."""
    interval = _check("full_attention_interval", data.get("full_attention_interval", 4), Interval)
    layers = _check("num_hidden_layers", data.get("num_hidden_layers"), Layers)
    return [LAYER_TYPES[(layer + 1) % interval == 0] for layer in range(layers)]
