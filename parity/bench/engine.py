"""Speed of the engine on the golden model, plain and with drafts: ``python -m qsa.parity.bench.engine``.

    [--backends cpu cuda] [--texts code-greedy ...] [--slots 1 8] [--drafts 0 2 4 7] [--tokens 192] [--warm 2]
    [--json FILE]

Every line is one engine that continues the same prompt in all its slots, each with a seed of its own. Prompts are not
timed: the time begins when all slots decode and ends with the last token. ``times`` is the rate over that of the same
text and slots without drafts, in the same run. ``host`` and ``device`` are as in ``engine/statistics.py``: the engine's
own work between waits, and the model's computation; on a device they overlap.

Texts that do not depend on drafts are compared with those without drafts, and plain ones of a device with the CPU's
where both run; a difference ends the run with exit code 1.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from qsa.engine import Drafting, Engine, load_model
from qsa.engine.runner import Runner
from qsa.golden.families import text
from qsa.kernels.ops import WINDOW_ROWS

from . import script

TEXTS = {
    "code-greedy": ("code-greedy", "greedy"),
    "math-greedy": ("math-greedy", "greedy"),
    "math-exact-match": ("math-sampled", "exact_match"),
    "math-rejection": ("math-sampled", "rejection"),
}
"""Name -> (computation of the goldens whose prompt and options it has, acceptance)."""

CAPACITY = 4096
COLUMNS = "tokens/s", "times", "rounds/s", "ms", "host ms", "device ms", "tokens/round", "accepted"


class Figure(NamedTuple):
    """What one engine gave: seconds from the first round of all slots to the last token, and counts of that time."""

    seconds: float
    rounds: int
    tokens: int
    host: float
    device: float
    drafted: int
    accepted: int
    texts: list[list[int]]

    def row(self, plain: float | None) -> dict[str, float]:
        """The figures of a line; ``plain``: tokens a second without drafts."""
        rate, ms = self.tokens / self.seconds, 1000 / self.rounds
        return {
            "tokens/s": rate,
            "times": rate / plain if plain else 1.0,
            "rounds/s": self.rounds / self.seconds,
            "ms": ms * self.seconds,
            "host ms": ms * self.host,
            "device ms": ms * self.device,
            "tokens/round": self.tokens / self.rounds,
            "accepted": self.accepted / self.drafted if self.drafted else 0.0,
        }


def timed(engine: Engine, name: str, drafts: int, tokens: int) -> Figure:
    """Continue the text ``name`` in all slots of ``engine`` by ``tokens`` tokens each; raises what a request raised."""
    computation, acceptance = TEXTS[name]
    given = text.make_inputs({"computation": computation})
    drafting = Drafting(drafts + 1) if drafts else None
    requests = [
        engine.submit(given["ids"], tokens, given["options"], given["seed"] + slot, acceptance, drafting)
        for slot in range(len(engine.slots))
    ]
    while any(request.status in ("waiting", "prompt") for request in requests):
        engine.step()
    before = [replace(request.statistics) for request in requests]
    clock, rounds, begin = replace(engine.runner.clock), 0, time.perf_counter()
    while not engine.idle:
        engine.step()
        rounds += 1
    seconds, now = time.perf_counter() - begin, engine.runner.clock

    def gained(count: str) -> int:
        return sum(
            getattr(request.statistics, count) - getattr(old, count)
            for request, old in zip(requests, before, strict=True)
        )

    for request in requests:
        if request.error or request.window_error or request.draft_error:
            raise RuntimeError(f"{name}: {request.error or request.window_error or request.draft_error}")
    waited, device = now.waited - clock.waited, now.device - clock.device
    counts = gained("tokens"), seconds - waited, device, gained("drafted"), gained("accepted")
    return Figure(seconds, max(1, rounds), *counts, [request.tokens for request in requests])


def measure(figures: script.Figures, backend: str, arguments: Any, known: dict[tuple[str, int], Any]) -> None:
    """Every text, number of slots and number of drafts on one backend. ``known``: (text, slots) -> plain texts of the
    backend before, or of this one."""
    model = load_model(text.checked_folder(), backend)
    for slots in arguments.slots:
        engine = Engine(model, slots, CAPACITY)
        for name in arguments.texts:
            plain = None
            for drafts in arguments.drafts:
                for _ in range(arguments.warm if type(engine.runner) is not Runner else 0):
                    timed(engine, name, drafts, arguments.tokens)
                found = timed(engine, name, drafts, arguments.tokens)
                row = found.row(plain)
                plain = row["tokens/s"] if drafts == 0 else plain
                case = f"{backend}, {name}, {slots} slots, {drafts} drafts"
                compared = drafts == 0 or TEXTS[name][1] != "rejection"
                if compared and known.setdefault((name, slots), found.texts) != found.texts:
                    figures.wrong.append(f"{case}: another text")
                numbers = " ".join(f"{row[column]:>12,.3f}" for column in COLUMNS)
                figures.add(case, row, f"{backend:<5} {name:<17} {slots:>5} {drafts:>6} {numbers}")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of the benchmark; returns 1 when a text differs."""
    parser = script.parser("engine", __doc__)
    parser.add_argument("--backends", nargs="+", choices=("cpu", "cuda"), help="default: cpu, and cuda with a device")
    parser.add_argument("--texts", nargs="+", choices=TEXTS, default=list(TEXTS), help="texts (default: all)")
    parser.add_argument("--slots", nargs="+", type=int, default=[1, 8], help="slots of an engine (default: 1 8)")
    parser.add_argument("--drafts", nargs="+", type=int, choices=range(WINDOW_ROWS), default=[0, 2, 4, 7])
    parser.add_argument("--tokens", type=int, default=192, help="tokens of every text (default: 192)")
    parser.add_argument("--warm", type=int, default=2, help="turns before the timed one, of programs (default: 2)")
    arguments = parser.parse_args(argv)
    figures, known = script.Figures(), dict[tuple[str, int], Any]()
    print(f"{'':<5} {'text':<17} {'slots':>5} {'drafts':>6} " + " ".join(f"{column:>12}" for column in COLUMNS))
    for backend in arguments.backends or ["cpu", *["cuda"] * has_device()]:
        measure(figures, backend, arguments, known)
    return figures.finish(arguments.json, figures.values)


def has_device() -> bool:
    """Whether the CUDA backend is installed and has a device."""
    try:
        from qsa.kernels.cuda.toolchain.compiler import current_device

        current_device()
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
