"""The texts of the golden model, out of packages under free licences: ``python -m qsa.golden.training.corpus OUT DIR``.

DIR holds the unpacked packages (``dpkg -x PACKAGE.deb DIR/PACKAGE``) and ``kjv/kjv.txt``, what the command ``bible -f``
prints for ``gen1:1-rev22:21``. OUT gets one file per source, documents ended by a NUL, ``sources.json`` with the size
and SHA-256 of every source, and the two held-out excerpts, which are part of no source.
"""

import gzip
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCES = {
    "python-doc": ("python3.11-doc 3.11.2-6", "PSF-2.0", "python3.11-doc/usr/share/doc", "*.rst.txt"),
    "python": ("libpython3.11-stdlib, libpython3.11-minimal 3.11.2-6", "PSF-2.0", "libpython3.11-*/usr/lib", "*.py"),
    "django": ("python3-django 3.2.25", "BSD-3-Clause", "python3-django/usr/lib", "*.py"),
    "git-doc": ("git-doc 2.39.5", "GPL-2.0", "git-doc/usr/share/doc", "*.txt"),
    "debian": ("debian-policy 4.6.2.0, developers-reference 12.18", "GPL-2.0-or-later", "de*/usr/share", "*.rst.txt"),
    "jargon": ("jargon-text 4.4.7", "public domain", "jargon-text/usr/share/doc/jargon-text", "jargon.txt.gz"),
    "kjv": ("bible-kjv-text 4.38", "public domain", "kjv", "kjv.txt"),
}
"""Source -> (packages and versions, licence, folder, files)."""

SKIPPED = re.compile(
    r"/(encodings|migrations|locale|lib2to3/tests|pydoc_data|test|tests|idlelib/idle_test)/|/_sysconfigdata"
)
"""Tables and tests: nothing to read."""

ASCII = str.maketrans("\u2550\u2500\u2502\u253c\u251c\u2524\u201c\u201d\u2018\u2019\u2014\xa0", "=-|+||\"\"''- ")
"""Rules and quotation marks that one byte can say."""

HELD_OUT = {"text": "library/heapq.rst.txt", "code": "python3.11/textwrap.py"}
HELD_OUT_SIZE = {"text": 10_000, "code": 10_000}


def clean(data: bytes) -> bytes | None:
    """UTF-8 bytes with LF line ends, without NUL and trailing blanks; None when a reader could not use it."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n").replace("\0", "").translate(ASCII).expandtabs()
    text = "\n".join(line.rstrip() for line in text.split("\n"))
    odd = sum(ord(character) > 126 for character in text)
    return None if len(text) < 200 or odd > 0.02 * len(text) else text.encode()


def verses(data: bytes) -> list[bytes]:
    """The lines of the command ``bible`` as books: its banner and prompts taken off, a chapter a document."""
    lines = [re.sub(r"^bible\(KJV\) \[.*?\]> ", "", line) for line in data.decode().split("\n")]
    found = [re.match(r"(\d?[A-Za-z]+)(\d+):(\d+) (.*)", line) for line in lines]
    chapters: dict[tuple[str, ...], dict[int, str]] = {}
    for match in filter(None, found):
        chapters.setdefault(match.group(1, 2), {})[int(match[3])] = match[4].strip()
    return [
        "\n".join([f"{book} {chapter}", "", *(f"{number} {text}" for number, text in sorted(one.items())), ""]).encode()
        for (book, chapter), one in chapters.items()
    ]


def documents(folder: Path, place: str, pattern: str) -> Iterator[tuple[str, bytes]]:
    """(path, bytes) of every file of a source, sorted by path, each text once."""
    seen = set()
    for path in sorted({p for root in sorted(folder.glob(place)) for p in root.rglob(pattern)}):
        if SKIPPED.search(str(path)) or not path.is_file() or path.is_symlink():
            continue
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if path.suffix == ".gz" else raw
        for data in verses(raw) if path.name == "kjv.txt" else [clean(raw)]:
            if data and data not in seen:
                seen.add(data)
                yield str(path), data


def main(out: str | Path, folder: str | Path) -> None:
    """Write the corpus of ``folder`` (unpacked packages) to ``out``."""
    out, folder, card = Path(out), Path(folder), {}
    out.mkdir(parents=True, exist_ok=True)
    for name, (packages, licence, place, pattern) in SOURCES.items():
        kept = []
        for path, data in documents(folder, place, pattern):
            held = [kind for kind, ending in HELD_OUT.items() if path.endswith(ending)]
            for kind in held:
                cut = data.rfind(b"\n", 0, HELD_OUT_SIZE[kind]) + 1
                (out / f"heldout-{kind}.txt").write_bytes(data[:cut])
            if not held:
                kept.append(data)
        whole = b"\0".join(kept) + b"\0"
        (out / f"{name}.bin").write_bytes(whole)
        digest = hashlib.sha256(whole).hexdigest()
        card[name] = dict(packages=packages, licence=licence, documents=len(kept), bytes=len(whole), sha256=digest)
        print(name, len(kept), "documents", len(whole), "bytes", licence)
    (out / "sources.json").write_text(json.dumps(card, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
