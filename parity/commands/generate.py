"""``qsa generate``: continue a prompt, stream the text, say how fast it was and how many drafts stood."""

import argparse
import sys
from contextlib import suppress

from . import model_options

SPEC = 4
"""Rows of a window where the model has a draft layer and nothing else is asked for."""

EPILOG = """The text goes to standard output, everything else to standard error. Ctrl-C ends the text where it is.

exit status: 0 when the text ended by itself; 1 when it failed; 2 on bad arguments; 130 on Ctrl-C."""

SAMPLING = {
    "temperature": (float, 0.0, "divides the logits; 0 takes the largest and draws nothing (default)"),
    "top-k": (int, 0, "keep the K largest"),
    "top-p": (float, 1.0, "keep the shortest list whose probability reaches P"),
    "min-p": (float, 0.0, "keep tokens with at least P times the best one's probability"),
    "last-n": (int, 64, "tokens that the penalties count; -1 all (default: 64)"),
    "repeat": (float, 1.0, "penalty that divides a counted token's logit"),
    "frequency": (float, 0.0, "penalty for each occurrence"),
    "presence": (float, 0.0, "penalty for occurring at all"),
}
"""Options of the sampler's chain, in its order but for the temperature, which comes last there."""

CHAIN = {name.replace("-", "_"): f"--{name}" for name in SAMPLING}
"""Field of a Sampling -> the option that gives it."""

DRAFTING = {"spec": "--spec", "min_p": "--spec-min-p", "max_t": "--mtp-max-t", "window": "--mtp-window"}
"""Field of a Drafting -> the option that gives it."""

ASKED = {"max_tokens": "--max-tokens", "capacity": "--capacity", "seed": "--seed", "acceptance": "--acceptance"}
"""Further arguments of a request -> the option that gives them."""


def add_parser(subparsers):
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
    for name, (kind, default, text) in SAMPLING.items():
        chain.add_argument(f"--{name}", type=kind, default=default, metavar=kind.__name__[0].upper(), help=text)
    chain.add_argument("--seed", type=int, default=0, metavar="N", help="of what is drawn (default: 0)")
    parser.set_defaults(run=run)
    return parser


def run(arguments):
    """Run the command; returns its exit code. Raises ValueError or OSError on bad arguments."""
    from qsa.engine import Drafting, Engine, Sampling
    from qsa.engine.graph_runner import make_runner
    from qsa.engine.memory import MAX_CELLS
    from qsa.engine.request import integer

    with model_options.options_named(CHAIN):
        sampling = Sampling(**{field: getattr(arguments, field) for field in CHAIN})
    spec = SPEC if arguments.spec is None else arguments.spec
    with model_options.options_named(DRAFTING):
        drafting = Drafting(spec, arguments.spec_min_p, arguments.mtp_max_t, arguments.mtp_window)
    if arguments.prompt is not None:
        data, what = arguments.prompt.encode("utf-8", "surrogateescape"), "--prompt"
    else:
        data, what = model_options.read_bytes(arguments.prompt_file), model_options.source(arguments.prompt_file)
    model, vocabulary, backend = model_options.load(arguments)
    ids = model_options.encode(vocabulary, data, model, what)
    if model.draft is None:
        if arguments.spec is not None and spec > 1:
            raise ValueError(f"--spec = {spec}: the model has no draft layer: only 1 is possible")
        drafting = None
    integer("--max-tokens", arguments.max_tokens, 1, MAX_CELLS + 1 - len(ids))
    capacity = len(ids) + arguments.max_tokens - 1 if arguments.capacity is None else arguments.capacity
    sizes = capacity, arguments.page_size, arguments.kv_format, arguments.chunk
    with model_options.options_named(model_options.sizes(arguments, f"--max-tokens = {arguments.max_tokens}")):
        engine = Engine(model, 1, *sizes, runner=make_runner(model))
    with model_options.options_named(CHAIN | ASKED | {"ids": what}):
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
        _figures(request, f"{backend}, {model.arithmetic} arithmetic", outcome)
    if interrupted:
        return 130
    if request.error is not None:
        print(f"qsa generate: error: {request.error}", file=sys.stderr)
    return 0 if request.status == "finished" else 1


def _stream(engine, request, decode):
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


def _write(text):
    if sys.stdout.isatty():
        # A byte model may write any byte; a terminal would obey some of them.
        text = "".join(one if one in "\n\t" or one.isprintable() else "\ufffd" for one in text)
    sys.stdout.write(text)
    sys.stdout.flush()


def _figures(request, where, outcome):
    one = request.statistics
    speed = one.prompt_tokens / one.prompt_seconds if one.prompt_seconds else 0.0
    lines = [
        ("prompt", f"{one.prompt_tokens} tokens in {one.prompt_seconds:.2f} s, {speed:.1f} tokens/s; {where}"),
        ("text", f"{one.tokens} tokens in {one.decode_seconds:.2f} s, {one.tokens_per_second:.1f} tokens/s"),
        ("rounds", f"{one.rounds} of {one.ms_per_round:.1f} ms, {one.tokens_per_round:.2f} tokens a round"),
    ]
    if one.drafted:
        share = f"{100 * one.acceptance:.1f} % accepted, {one.rollbacks} rounds rolled back"
        lines.append(("drafts", f"{one.drafted}, {share}"))
    if one.draft_failures:
        lines.append(("drafts", f"failed {one.draft_failures} times: {request.draft_error}"))
    if one.reruns:
        lines.append(("windows", f"failed {one.reruns} times and ran again: {request.window_error}"))
    lines.append(("end", outcome))
    with suppress(BrokenPipeError):
        print("\n".join(f"{name:8}{text}" for name, text in lines), file=sys.stderr)
