"""``qsa generate``: continue a prompt, stream the text, print its speed and how many drafts were accepted."""

import argparse
import math
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qsa.reference.model.checkpoint import generation_ends
from qsa.reference.model.config import Config
from qsa.reference.sampler import Sampling

from . import model_options

SPEC = 4
"""Rows of a window by default, where the model has a draft layer."""

EPILOG = """The text goes to standard output, everything else to standard error. Ctrl-C ends the text where it is.

exit status: 0 when the text ended by itself; 1 when it failed; 2 on bad arguments; 130 on Ctrl-C."""


class SamplingOption(NamedTuple):
    """An option of the sampler: its type, default, bounds (None: no bound) and help."""

    kind: type
    default: float
    low: float | None
    high: float | None
    help: str


FLOAT32 = float(np.finfo(np.float32).max)
LIST = Sampling().max_candidates
"""Tokens to draw from where no option says how many."""

LEAST_FLOAT32 = float(np.finfo(np.float32).tiny)

SAMPLING = {
    "temperature": SamplingOption(
        float, 0.0, 0, None, "divides the logits; 0 takes the largest and draws nothing (default)"
    ),
    "top-k": SamplingOption(int, LIST, 0, None, f"keep the K largest; 0 keeps the whole vocabulary (default: {LIST})"),
    "top-p": SamplingOption(float, 1.0, 0, 1, "keep the shortest list whose probability reaches P"),
    "min-p": SamplingOption(float, 0.0, 0, 1, "keep tokens with at least P times the best one's probability"),
    "last-n": SamplingOption(int, 64, -1, None, "tokens that the penalties count; -1 all (default: 64)"),
    "repeat": SamplingOption(float, 1.0, LEAST_FLOAT32, FLOAT32, "penalty that divides a counted token's logit"),
    "frequency": SamplingOption(float, 0.0, -FLOAT32, FLOAT32, "penalty for each occurrence"),
    "presence": SamplingOption(float, 0.0, -FLOAT32, FLOAT32, "penalty for occurring at all"),
}
"""Options of the sampler's chain, in its order but for the temperature, which comes last there. The penalties are
float32 numbers, and the first of them divides."""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> argparse.ArgumentParser:
    """Add the command ``generate``; its ``run`` default takes the parsed arguments and returns the exit code."""
    parser = subparsers.add_parser(
        "generate",
        help="continue a prompt with a model",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", help="the prompt")
    prompt.add_argument("--prompt-file", metavar="FILE", help="a file with the prompt; - is standard input")
    model_options.add_model_options(parser)
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N", help="tokens at most (default: 256)")
    parser.add_argument("--chunk", type=int, default=1024, metavar="N", help="prompt tokens at a time (default: 1024)")
    parser.add_argument("--ignore-eos", action="store_true", help="go on after an end of text")
    parser.add_argument("--quiet", action="store_true", help="no figures at the end")
    drafts = parser.add_argument_group("drafts")
    drafts.add_argument("--spec", type=int, metavar="T", help="rows of a verify window: T - 1 drafts (default: 4)")
    drafts.add_argument("--spec-min-p", type=float, default=0.0, metavar="P", help="draft on while the last one's is P")
    drafts.add_argument("--mtp-max-t", type=int, default=8, metavar="T", help="rows the draft layer may fill")
    drafts.add_argument("--mtp-window", type=int, default=32768, metavar="N", help="cells that a draft attends to")
    drafts.add_argument(
        "--acceptance", metavar="NAME", help="greedy, exact_match or rejection (default: greedy, drawing exact_match)"
    )
    chain = parser.add_argument_group("sampling")
    for name, option in SAMPLING.items():
        letter = option.kind.__name__[0].upper()
        chain.add_argument(f"--{name}", type=option.kind, default=option.default, metavar=letter, help=option.help)
    chain.add_argument("--seed", type=int, default=0, metavar="N", help="of what is drawn (default: 0)")
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns its exit code. Raises ValueError or OSError on bad arguments."""
    from qsa.engine import Engine
    from qsa.engine.programs.graph_runner import make_runner

    sampling, drafting = _checked_sampling(arguments), _checked_drafting(arguments)
    if arguments.prompt is not None:
        data, what = arguments.prompt.encode("utf-8", "surrogateescape"), "--prompt"
    else:
        data, what = model_options.read_bytes(arguments.prompt_file), model_options.source(arguments.prompt_file)
    model, vocabulary, backend = model_options.load(arguments)
    ids = model_options.encode(vocabulary, data, model, what)
    if model.draft is None:
        if arguments.spec is not None and arguments.spec > 1:
            raise ValueError(f"--spec = {arguments.spec}: the model has no draft layer: only 1 is possible")
        drafting = None
    capacity = _checked_capacity(arguments, model, ids, what)
    if not (arguments.quiet or arguments.ignore_eos):
        _print_ends(model_options.directory(arguments))
    sizes = capacity, arguments.page_size, arguments.kv_format, arguments.chunk
    engine = Engine(model, 1, *sizes, runner=make_runner(model), index_format=arguments.index_format)
    request = engine.submit(
        ids,
        arguments.max_tokens,
        sampling,
        arguments.seed,
        arguments.acceptance,
        drafting,
        () if arguments.ignore_eos else model.config.eos_token_ids,
    )
    interrupted = False
    try:
        _stream(engine, request, vocabulary.decoder())
    except KeyboardInterrupt:
        # Inside a step it has failed the request; elsewhere the request still goes on.
        interrupted = engine.cancel(request) or isinstance(request.error, KeyboardInterrupt)
    outcome = "cancelled" if interrupted else request.reason or request.status
    if not arguments.quiet:
        _print_figures(request, f"{backend}, {model.arithmetic} arithmetic", outcome)
    if interrupted:
        return 130
    if request.error is not None:
        print(f"qsa generate: error: {request.error}", file=sys.stderr)
    return 0 if request.status == "finished" else 1


def _print_ends(directory: Path) -> None:
    """Print to standard error which ends of text stand only in the folder's generation_config.json."""
    config = Config.from_file(directory / "config.json")
    more = generation_ends(directory, config)
    if more:
        print(f"qsa generate: ids {', '.join(map(str, more))} of generation_config.json end the text", file=sys.stderr)


def _checked_sampling(arguments: argparse.Namespace) -> Sampling:
    """The Sampling of the options. Raises ValueError, naming the option, on a value outside its bounds, a seed outside
    64 bits or an acceptance that does not go with the temperature."""
    from qsa.engine.draws.sampling import ACCEPTANCES
    from qsa.engine.request import integer

    values = {name: getattr(arguments, name.replace("-", "_")) for name in SAMPLING}
    for name, value in values.items():
        low, high = SAMPLING[name].low, SAMPLING[name].high
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"--{name} = {value!r}: must be a finite number")
        if name == "repeat" and value <= 0:
            raise ValueError(f"--{name} = {value!r}: must be above 0")
        if (low is not None and value < low) or (high is not None and value > high):
            allowed = f"at least {low}" if high is None else f"from {low} to {high}"
            raise ValueError(f"--{name} = {value!r}: must be {allowed}")
    integer("--seed", arguments.seed, 0, 2**64 - 1)
    if arguments.acceptance is not None:
        model_options.check_choice("--acceptance", arguments.acceptance, ACCEPTANCES)
    if arguments.acceptance == "greedy" and arguments.temperature > 0:
        raise ValueError(f"--acceptance = 'greedy': --temperature = {arguments.temperature!r}: must be 0")
    # The cap on the list, which a GPU's sampler has, would cut what was asked for; the host draws from longer lists.
    return Sampling(**{name.replace("-", "_"): value for name, value in values.items()}, max_candidates=0)


def _checked_drafting(arguments: argparse.Namespace) -> Any:
    """The Drafting of the options. Raises ValueError naming the option that is outside what is allowed."""
    from qsa.engine import Drafting
    from qsa.engine.request import MAX_ROWS, integer

    spec = integer("--spec", SPEC if arguments.spec is None else arguments.spec, 1, MAX_ROWS)
    if not 0 <= arguments.spec_min_p <= 1:
        raise ValueError(f"--spec-min-p = {arguments.spec_min_p!r}: must be a number from 0 to 1")
    rows = integer("--mtp-max-t", arguments.mtp_max_t, 1, MAX_ROWS)
    return Drafting(spec, arguments.spec_min_p, rows, integer("--mtp-window", arguments.mtp_window, 1))


def _checked_capacity(arguments: argparse.Namespace, model: Any, ids: np.ndarray, what: str) -> int:
    """Cells of the slot. Raises ValueError, naming the option, on sizes that are not allowed or do not fit.

    ids   [n] int64, the prompt
    what  its name in errors
    """
    from qsa.engine.request import integer
    from qsa.engine.slots.memory import MAX_CELLS

    integer("--chunk", arguments.chunk, 1)
    # The last token is emitted and never run, so it takes no cell.
    tokens = integer("--max-tokens", arguments.max_tokens, 1, MAX_CELLS + 1 - len(ids))
    text = f"{what}: {len(ids)} prompt tokens and --max-tokens = {tokens}"
    capacity = model_options.check_capacity(arguments, text, len(ids) + tokens - 1)
    model_options.check_slot(arguments, model, capacity, f"--max-tokens = {tokens}")
    return capacity


def _stream(engine: Any, request: Any, decode: Callable[[Any], str]) -> None:
    """Run ``request`` to its end; every token's text is written as soon as it is complete."""
    written = 0
    try:
        with model_options.progress("prompt", len(request.ids)) as show:
            while not request.ended and not request.tokens:
                engine.step()
                show(request.statistics.prompt_tokens)
        while True:
            count = len(request.tokens) - (request.reason == "stop")
            _write(decode(request.tokens[written:count]))
            written = count
            if request.ended:
                break
            engine.step()
    finally:
        _write(decode(None) + "\n")


def _write(text: str) -> None:
    """Write ``text`` to standard output at once."""
    if sys.stdout.isatty():
        # A byte model may write any byte; a terminal would obey some of them.
        text = "".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in text)
    sys.stdout.write(text)
    sys.stdout.flush()


def _print_figures(request: Any, where: str, outcome: str) -> None:
    """Print the request's statistics to standard error."""
    counted = request.statistics
    rate = counted.prompt_tokens / counted.prompt_seconds if counted.prompt_seconds else 0.0
    speed = counted.tokens_per_second
    lines = [
        ("prompt", f"{counted.prompt_tokens} tokens in {counted.prompt_seconds:.2f} s, {rate:.1f} tokens/s; {where}"),
        ("text", f"{counted.tokens} tokens in {counted.decode_seconds:.2f} s, {speed:.1f} tokens/s"),
        (
            "rounds",
            f"{counted.rounds} of {counted.ms_per_round:.2f} ms (host {counted.host_ms_per_round:.2f}, "
            f"device {counted.device_ms_per_round:.2f}), {counted.rounds_per_second:.1f} a second, "
            f"{counted.tokens_per_round:.2f} tokens a round",
        ),
    ]
    if counted.drafted:
        share = f"{100 * counted.acceptance:.1f} % accepted, {counted.rollbacks} rounds rolled back"
        lines.append(("drafts", f"{counted.drafted}, {share}"))
    if counted.draft_failures:
        lines.append(("drafts", f"failed {counted.draft_failures} times: {request.draft_error}"))
    if counted.reruns:
        lines.append(("windows", f"failed {counted.reruns} times and ran again: {request.window_error}"))
    lines.append(("end", outcome))
    with suppress(BrokenPipeError):
        print("\n".join(f"{name:8}{text}" for name, text in lines), file=sys.stderr)
