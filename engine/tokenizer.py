"""Text to ids and back: bytes, a checkpoint's own tokenizer, or the ids themselves.

A vocabulary of 256 is bytes. Any other needs the folder's tokenizer.json and the package ``tokenizers``; without them
text is written as ids.
"""

import codecs
import re
from pathlib import Path

import numpy as np

BYTES = 256
"""Size of the vocabulary whose ids are bytes."""


class Bytes:
    """A vocabulary of bytes: UTF-8 text, or any other content of a file."""

    def encode(self, data, what="text"):
        """Ids int64 [n] of ``data``, bytes; ``what``: its name in errors."""
        return np.frombuffer(data, np.uint8).astype(np.int64)

    def decoder(self):
        """Function from the next ids to the text that is complete with them; None for the ids flushes what is not. What
        is no UTF-8 becomes U+FFFD."""
        decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        return lambda ids: decode(b"", final=True) if ids is None else decode(bytes(ids))

    def size(self, ids):
        """Bytes of text that ``ids`` stand for."""
        return len(ids)


class Ids:
    """The ids themselves, as numbers with spaces or commas between them."""

    def encode(self, data, what="text"):
        """As :meth:`Bytes.encode`. Raises ValueError on what is no number, or too large for any vocabulary."""
        words = [word for word in re.split(rb"[\s,]+", data) if word]
        for word in words:
            if not word.isdigit() or len(word) > 18:
                raise ValueError(f"{what}: {word[:20].decode(errors='replace')!r}: ids are whole numbers from 0 on")
        return np.array([int(word) for word in words], np.int64)

    def decoder(self):
        """As :meth:`Bytes.decoder`: the ids with a space after each."""
        return lambda ids: "" if ids is None else "".join(f"{token} " for token in ids)

    def size(self, ids):
        """None: nobody knows the text."""
        return None


class Tokenizer:
    """The tokenizer of a checkpoint folder. Raises ValueError when its file cannot be read."""

    def __init__(self, path):
        import tokenizers

        try:
            self.tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises its bare Exception
            raise ValueError(f"{path}: no tokenizer: {error}") from error
        self.stream = tokenizers.decoders.DecodeStream

    def encode(self, data, what="text"):
        """As :meth:`Bytes.encode`, of UTF-8. Raises ValueError on other bytes."""
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{what}: no UTF-8: {error}") from error
        return np.array(self.tokenizer.encode(text, add_special_tokens=False).ids, np.int64)

    def decoder(self):
        """As :meth:`Bytes.decoder`; a character that is not complete at the end is dropped."""
        stream = self.stream(skip_special_tokens=False)
        return lambda ids: "".join(stream.step(self.tokenizer, int(token)) or "" for token in ids or ())

    def size(self, ids):
        """Bytes of the text that ``ids`` stand for, as a whole."""
        return len(self.tokenizer.decode(list(map(int, ids)), skip_special_tokens=False).encode("utf-8"))


def vocabulary(config, directory, ids=False):
    """:class:`Ids` where ``ids`` is true, else :class:`Bytes` or :class:`Tokenizer`, as the model has it.

    Raises ValueError, saying what is missing, when the text of the model's ids is not known.
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
