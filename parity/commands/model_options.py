"""What the commands that run a model share: its options, its default, the text they are given, the progress bar."""

import re
import sys
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from qsa.golden.families.text import MODEL

from ..environment import facts


def add_model_options(parser):
    """Add the options that choose model, backend, arithmetic and K/V."""
    parser.add_argument("--model", metavar="DIR", help="checkpoint folder (default: the golden model)")
    parser.add_argument("--backend", metavar="NAME", help="cpu, cuda or reference (default: cuda where there is a GPU)")
    parser.add_argument("--arithmetic", metavar="exact|float", help="default: QSA_ARITHMETIC, else exact")
    parser.add_argument("--rule", default="blocks", metavar="blocks|cells", help="selection rule (default: blocks)")
    parser.add_argument("--kv-format", default="int8", metavar="NAME", help="int8, q4_0, k8v4; float: fp16 too")
    parser.add_argument("--page-size", type=int, default=4, metavar="N", help="cells of a K/V page (default: 4)")
    parser.add_argument("--capacity", type=int, metavar="N", help="cells of the K/V (default: as many as are needed)")
    parser.add_argument("--ids", action="store_true", help="text is token ids, with spaces or commas between them")


def load(arguments):
    """(model, vocabulary, backend's name) that the options choose. Raises ValueError or OSError on what is not
    there."""
    # Imported here: every other command would wait for the kernels.
    from qsa.engine.load import load_model
    from qsa.engine.tokenizer import vocabulary

    directory = arguments.model
    if directory is None:
        directory = MODEL
        if not (directory / "config.json").is_file():
            raise ValueError("--model: missing: the golden model is not part of this installation")
    backend = arguments.backend
    if backend is None:
        backend = "cpu" if facts()["gpu"].startswith("none") else "cuda"
    names = {"directory": "--model", "backend": "--backend", "rule": "--rule"}
    if arguments.arithmetic is not None:
        names["arithmetic"] = "--arithmetic"
    with options_named(names):
        model = load_model(directory, backend, arguments.arithmetic, arguments.rule)
    return model, vocabulary(model.config, directory, arguments.ids), backend


@contextmanager
def options_named(names):
    """Inside, an error that says ``name = value``, or ``name: `` and a count, of an argument says the command line's
    word for it instead; ``names``: argument -> that word. A system's own errors, of several parts, are left alone."""
    pattern = re.compile(rf"(?<![\w.-])({'|'.join(names)})(?= = |: \d)")
    try:
        yield
    except (ValueError, OSError) as error:
        text = pattern.sub(lambda found: names[found[1]], str(error))
        if len(error.args) != 1 or text == str(error):
            raise
        raise ValueError(text) from error


def sizes(arguments, derived):
    """Names for :func:`options_named` of the options of a slot's size; ``derived``: where the capacity comes from
    when no option gives it."""
    capacity = f"{derived}: capacity" if arguments.capacity is None else "--capacity"
    return {"capacity": capacity, "page_size": "--page-size", "kv_format": "--kv-format", "chunk": "--chunk"}


def source(name):
    """What errors call the text of the file ``name``."""
    return "standard input" if name == "-" else name


def read_bytes(name):
    """The content of the file ``name``, of standard input where it is ``-``. Raises OSError naming it."""
    return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()


def encode(vocabulary, data, model, what, least=1):
    """Ids int64 [n] of ``data``, bytes; ``what``: its name in errors. Raises ValueError unless there are ``least`` and
    all are in the model's vocabulary."""
    ids = vocabulary.encode(data, what)
    if len(ids) < least:
        raise ValueError(f"{what}: {len(ids)} tokens: at least {least} required")
    size = model.config.vocab_size
    if ids.max() >= size:
        raise ValueError(f"{what}: id {ids[ids >= size][0]}: the vocabulary is 0 to {size - 1}")
    return ids


@contextmanager
def progress(description, total):
    """A bar on standard error while it is a terminal; gives a function from the count that is done."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda done: bar.update(task, completed=done)
