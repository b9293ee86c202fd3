"""Fields of a published configuration that are not read: each is refused unless it says what the reference does.

A file can hold a field in several objects: the text model's own object, the top of a multimodal file around it, and
for the rotary embedding an object under an old or a new name, which may hold one object per layer type. All are looked
at, so that nothing is silently computed differently.
"""

from collections.abc import Iterable, Mapping

from ..validation import shown

MOST = 2**31 - 1
"""The largest size in a file."""

ONLY = {
    "hidden_act": "silu",
    "attention_bias": False,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
    "indexer_kv_heads": 1,
    # Fields of other models of the family. The published text model does not have them.
    "qkv_bias": False,
    "attn_output_gate": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "use_sliding_window": False,
    "mtp_use_dedicated_embeddings": False,
    "rope_type": "default",
}
"""Field with exactly one implemented value -> that value."""

UNSUPPORTED = ("dual_chunk_attention_config", "compression_config")
"""Fields of which no value is implemented."""

ROPE_OBJECTS = ("rope_parameters", "rope_scaling")
"""The objects about the rotary embedding, the present name before the old one."""

SCALING = ("factor", "attention_factor", "mscale", "mscale_all_dim", "short_factor", "long_factor")
"""Fields of an object about the rotary embedding that scale it, unless they are 1."""


def field_error(name: str, value: object, allowed: str) -> ValueError:
    """The error that names a field, its value and what is allowed."""
    return ValueError(f"config: {name} = {shown(value)}: {allowed}")


def check_fields(data: Mapping, prefix: str = "") -> None:
    """Raises ValueError on a field of ``data`` that says anything but what the reference does.

    prefix  put before the fields' names, such as ``text_config.``
    """
    for name, only in ONLY.items():
        value = data.get(name)
        if value is not None and value != only:
            raise field_error(prefix + name, value, f"only {only!r} is supported")
    for name in UNSUPPORTED:
        if data.get(name) is not None:
            raise field_error(prefix + name, data[name], "only null is supported")
    # The family's files carry a window's width beside the field that turns it off.
    if data.get("sliding_window") is not None and data.get("use_sliding_window") is None:
        raise field_error(
            f"{prefix}sliding_window", data["sliding_window"], "only null, or use_sliding_window = False, is supported"
        )
    rope_objects(data, prefix)


def rope_objects(data: Mapping, prefix: str = "") -> list[Mapping]:
    """Every object of ``data`` about the rotary embedding, those per layer type after the one that holds them.

    prefix  put before the fields' names

    Raises ValueError when one of them is no object, scales the embedding, or has sections that no code can read.
    """
    found: list[Mapping] = []
    for name in ROPE_OBJECTS:
        pending = [(prefix + name, data[name])] if data.get(name) is not None else []
        while pending:
            path, rope = pending.pop(0)
            if not isinstance(rope, dict):
                raise field_error(path, rope, "an object is required")
            _check_unscaled(path, rope)
            _check_sections(path, rope)
            found.append(rope)
            pending += [(f"{path}.{key}", value) for key, value in rope.items() if isinstance(value, dict)]
    return found


def check_outer(outer: Mapping, text: Mapping, names: Iterable[str]) -> None:
    """Raises ValueError when ``outer``, which is around ``text``, says another value for one of ``names``.

    The text model reads its own object alone, so a value that stands only around it would be dropped.
    """
    for name in sorted(names):
        value = outer.get(name)
        if value is not None and value != text.get(name):
            held = shown(text.get(name))
            raise field_error(name, value, f"the same value is required in text_config, which holds {held}")


def _check_unscaled(path: str, rope: Mapping) -> None:
    for name in ("rope_type", "type"):
        if rope.get(name) not in (None, "default"):
            raise field_error(f"{path}.{name}", rope[name], "only 'default' is supported")
    for name in SCALING:
        if rope.get(name) not in (None, 1):
            raise field_error(f"{path}.{name}", rope[name], "only null or 1 is supported")


def _check_sections(path: str, rope: Mapping) -> None:
    """Raises ValueError on an ``mrope_section`` that the published code cannot read.

    The sections say which rotated dims follow the time, the height and the width in an image. The three positions of a
    text token are equal, so no sections change a text, and their sum need not be that of the rotated dims.
    """
    sections = rope.get("mrope_section")
    if sections is None:
        return
    sizes = isinstance(sections, list) and all(type(size) is int and 0 <= size <= MOST for size in sections)
    if not sizes or len(sections) < 3:
        raise field_error(f"{path}.mrope_section", sections, f"a list of 3 integers from 0 to {MOST} is required")
