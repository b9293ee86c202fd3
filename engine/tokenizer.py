"""Vocabularies: they encode text to token ids and decode ids to text.

The ids of a vocabulary of 256 are bytes. Any other vocabulary needs the folder's tokenizer.json and the package
``tokenizers``; without them text is written as ids.
"""

import codecs
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from qsa.reference.model.config import Config
from qsa.reference.model.files import pointer_fault

Decoder = Callable[[Sequence[int] | None], str]
"""Function from the next ids to the text that they complete; None returns the text that is still incomplete."""

BYTES = 256
"""Size of the vocabulary whose ids are bytes."""


class Bytes:
    """The vocabulary whose ids are bytes: UTF-8 text, or any other content of a file."""

    def encode(self, data: bytes, name: str = "text") -> np.ndarray:
        """Ids int64 [n] of ``data``; ``name`` names it in errors."""
        return np.frombuffer(data, np.uint8).astype(np.int64)

    def decoder(self) -> Decoder:
        """A new :data:`Decoder`. Bytes that are not UTF-8 become U+FFFD."""
        decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        return lambda ids: decode(b"", final=True) if ids is None else decode(bytes(ids))

    def size(self, ids: Sequence[int]) -> int | None:
        """Number of bytes of the text of ``ids``."""
        return len(ids)


class Ids:
    """Text of token ids: numbers separated by spaces or commas."""

    def encode(self, data: bytes, name: str = "text") -> np.ndarray:
        """As :meth:`Bytes.encode`. Raises ValueError on a word that is no number, or too large for any vocabulary."""
        words = [word for word in re.split(rb"[\s,]+", data) if word]
        for word in words:
            if not word.isdigit() or len(word) > 18:
                raise ValueError(f"{name}: {word[:20].decode(errors='replace')!r}: ids are whole numbers from 0 on")
        return np.array([int(word) for word in words], np.int64)

    def decoder(self) -> Decoder:
        """As :meth:`Bytes.decoder`; writes a space after each id."""
        return lambda ids: "" if ids is None else "".join(f"{token} " for token in ids)

    def size(self, ids: Sequence[int]) -> int | None:
        """None, since the text of the ids is not known."""
        return None


class Tokenizer:
    """The tokenizer file of a checkpoint folder. Raises ValueError when it cannot be read."""

    def __init__(self, path: Path) -> None:
        import tokenizers

        fault = pointer_fault(path)
        if fault:
            raise ValueError(fault)
        try:
            self.tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises its bare Exception
            raise ValueError(f"{path}: no tokenizer: {error}") from error
        found = (self.tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(BYTES))
        self.byte_tokens = frozenset(token for token in found if token is not None)
        """Tokens of single bytes. A decoder with byte fallback reads a run of them together: one byte that is no UTF-8
        changes the text of the whole run."""

    def encode(self, data: bytes, name: str = "text") -> np.ndarray:
        """As :meth:`Bytes.encode`. Raises ValueError when ``data`` is not UTF-8."""
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{name}: no UTF-8: {error}") from error
        return np.array(self.tokenizer.encode(text, add_special_tokens=False).ids, np.int64)

    def decoder(self) -> Decoder:
        """As :meth:`Bytes.decoder`."""
        return TextStream(self)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids`` decoded together."""
        return self.tokenizer.decode(list(map(int, ids)), skip_special_tokens=False)

    def size(self, ids: Sequence[int]) -> int | None:
        """Number of bytes of the text of ``ids`` decoded together."""
        return len(self.decode(ids).encode("utf-8"))


class TextStream:
    """A :data:`Decoder` of a :class:`Tokenizer`: its pieces, joined, are the text of all ids decoded together.

    Text is given as soon as no later id can change it: not before a run of byte tokens has ended, and not while it ends
    in U+FFFD, which stands for a character that is incomplete. Ids are decoded with those of the piece before them,
    since a decoder may treat the first token of a text in another way than the others.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.written = tokenizer, ""
        self.ids: list[int] = []
        # ids[context:given] are the ids of the last piece, those after them have given no text yet.
        self.context = self.given = 0

    def __call__(self, ids: Sequence[int] | None) -> str:
        """The next piece of text. ``ids`` None ends the text; a text that is another than its pieces, because the
        tokenizer's decoder changed what it had given, is then given once more, on a line of its own."""
        if ids is None:
            whole = self.tokenizer.decode(self.ids)
            piece = whole.removeprefix(self.written) if whole.startswith(self.written) else "\n" + whole
        else:
            piece = "".join(self._next(int(token)) for token in ids)
        self.written += piece
        return piece

    def _next(self, token: int) -> str:
        self.ids.append(token)
        if token in self.tokenizer.byte_tokens:
            return ""
        before = self.tokenizer.decode(self.ids[self.context : self.given])
        text = self.tokenizer.decode(self.ids[self.context :])
        if text.endswith("\ufffd") or not text.startswith(before):
            return ""
        self.context, self.given = self.given, len(self.ids)
        return text.removeprefix(before)


def vocabulary(config: Config, directory: str | Path, ids: bool = False) -> Bytes | Ids | Tokenizer:
    """The vocabulary of a model: :class:`Ids` when ``ids`` is true, else :class:`Bytes` or :class:`Tokenizer`.

    Raises ValueError that names what is missing when the model's ids cannot be decoded.
    """
    if ids:
        return Ids()
    if config.vocab_size == BYTES:
        return Bytes()
    path, way_out = Path(directory) / "tokenizer.json", "give the text as ids (--ids)"
    if not path.is_file():
        raise ValueError(f"{directory}: a vocabulary of {config.vocab_size} and no tokenizer.json: {way_out}")
    try:
        return Tokenizer(path)
    except ImportError as error:
        raise ValueError(f"{path}: the package tokenizers is needed ({error}): extra text, or {way_out}") from error
