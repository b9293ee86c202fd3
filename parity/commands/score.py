"""``qsa score``: the NLL of a text under a model, through the verify windows that decoding uses."""

import argparse
import json
import math
import sys
import time
from typing import Any

import numpy as np

from qsa.golden import files

from .. import report
from . import model_options


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Add the command ``score``; its ``run`` default takes the parsed arguments and returns the exit code."""
    parser = subparsers.add_parser("score", help="teacher-forced NLL of a text under a model")
    parser.add_argument("file", metavar="FILE", help="the text; - is standard input")
    model_options.add_model_options(parser)
    cut = parser.add_mutually_exclusive_group()
    cut.add_argument("--window", type=int, default=8, metavar="T", help="rows of a verify window (default: 8)")
    cut.add_argument("--chunk", type=int, metavar="N", help="read as a prompt, N tokens at a time, without windows")
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON; - is standard output")
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns its exit code. Raises ValueError or OSError on bad arguments."""
    from qsa.engine import score
    from qsa.engine.programs.graph_runner import make_runner

    report.check_target("--json", arguments.json)
    data = model_options.read_bytes(arguments.file)
    model, vocabulary, backend = model_options.load(arguments)
    what = model_options.source(arguments.file)
    ids = model_options.encode(vocabulary, data, model, what, least=2)
    capacity = _checked_capacity(arguments, model, len(ids), what)
    options = {"page_size": arguments.page_size, "kv_format": arguments.kv_format}
    options["index_format"] = arguments.index_format
    begin = time.perf_counter()
    try:
        with model_options.progress("score", len(ids) - 1) as show:
            scores = score(
                model,
                ids,
                arguments.window,
                arguments.chunk,
                capacity,
                lambda start, rows: show(start + len(rows)),
                runner=make_runner(model),
                **options,
            )
    except KeyboardInterrupt:
        print("qsa score: interrupted: nothing was written", file=sys.stderr)
        return 130
    figures = _figures(scores, ids, vocabulary, time.perf_counter() - begin)
    cut = {"window": arguments.window} if arguments.chunk is None else {"chunk": arguments.chunk}
    settings = {"backend": backend, "arithmetic": model.arithmetic, **cut, **options}
    if arguments.json == files.STDOUT:
        print(json.dumps(figures | settings, indent=2))
        return 0
    if arguments.json:
        report.write_json(arguments.json, figures | settings)
    _print_figures(figures)
    return 0


def _checked_capacity(arguments: argparse.Namespace, model: Any, count: int, what: str) -> int:
    """Cells of the slot for a text of ``count`` tokens. Raises ValueError, naming the option, on rows or sizes that are
    not allowed or do not fit."""
    from qsa.engine.request import MAX_ROWS, integer

    if arguments.chunk is None:
        integer("--window", arguments.window, 1, MAX_ROWS)
    else:
        integer("--chunk", arguments.chunk, 1)
    capacity = model_options.check_capacity(arguments, f"{what}: {count} tokens", count - 1)
    model_options.check_slot(arguments, model, capacity, what)
    return capacity


def _figures(scores: Any, ids: np.ndarray, vocabulary: Any, seconds: float) -> dict[str, Any]:
    """The figures of a text: counts, mean NLL in nats with its standard error, bits per byte, perplexity, share of
    tokens that were the most probable one. ``bits_per_byte`` is None where the bytes are not known."""
    count, size = len(scores.nll), vocabulary.size(ids[1:])
    mean = scores.mean
    return {
        "tokens": count,
        "bytes": size,
        "nll": mean,
        "nll_standard_error": float(scores.nll.std(ddof=1) / math.sqrt(count)) if count > 1 else None,
        "bits_per_byte": mean * count / math.log(2) / size if size else None,
        "perplexity": math.exp(mean),
        "top_1": float((scores.top == ids[1:]).mean()),
        "seconds": seconds,
    }


def _print_figures(figures: dict[str, Any]) -> None:
    error = figures["nll_standard_error"]
    print(f"tokens         {figures['tokens']}")
    print(f"mean NLL       {figures['nll']:.4f} nats" + ("" if error is None else f" +- {error:.4f}"))
    if figures["bits_per_byte"] is not None:
        print(f"bits per byte  {figures['bits_per_byte']:.4f}")
    print(f"perplexity     {figures['perplexity']:.4f}")
    print(f"top-1          {100 * figures['top_1']:.1f} %")
    print(f"time           {figures['seconds']:.2f} s, {figures['tokens'] / figures['seconds']:.1f} tokens/s")
