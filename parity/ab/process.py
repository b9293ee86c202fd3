"""One fresh process of an arm: ``python -m qsa.parity.ab.process KIND SIZE --arm FILE --out FILE [--logits FILE]``.

``speed`` runs the screens and times them by its own clock; ``checks`` computes what the outputs are held by: the seven
computations, logits of the held-out texts, needles. The environment is the arm's already.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from qsa.golden.canonical import digest
from qsa.golden.families import text
from qsa.kernels.ops import WINDOW_ROWS
from qsa.kernels.switches import switches

from ..backend import Backend
from ..checks import golden_model, needle, seven
from ..environment import cores
from ..speed.measure import throttle_counts
from . import screens
from .structs import Arm, ArmRun, Checks, SevenText, TextRun

if TYPE_CHECKING:
    from qsa.engine import Engine, Request

KINDS = ("speed", "checks")


def backend_of(arm: Arm) -> Backend:
    """The arm's backend, in its arithmetic: as ``qsa parity`` chooses it. Raises ValueError."""
    backend = Backend(arm.backend, arm.arithmetic or None)
    if not arm.arithmetic and switches().arithmetic in backend.declaration.arithmetics:
        return backend.in_arithmetic(switches().arithmetic)
    return backend


def engine_of(arm: Arm, backend: Backend, capacity: int) -> "Engine":
    """The arm's engine of the golden model. Raises ValueError."""
    from qsa.engine import Engine

    model = golden_model.model(backend)
    return Engine(
        model, arm.slots, arm.capacity or capacity, arm.page_size, arm.kv_format, chunk=arm.chunk, groups=arm.groups
    )


class Clock:
    """Runs texts on an engine and times its steps."""

    def __init__(self, engine: "Engine", arm: Arm) -> None:
        self.engine, self.arm = engine, arm
        self.windows, self.decode, self.device = 0, 0.0, 0.0

    def run(self, texts: Sequence[screens.Text]) -> list[TextRun]:
        """Continue ``texts``, as many at a time as the engine has slots. Raises what any window raised."""
        from qsa.engine import Drafting

        drafting = Drafting(self.arm.spec, self.arm.spec_min_p) if self.arm.spec > 1 else None
        begin = time.perf_counter()
        requests = [
            self.engine.submit(each.ids, each.count, text.SAMPLED, each.seed, self.arm.acceptance, drafting)
            for each in texts
        ]
        first, decode, rounds = ([0.0] * len(requests) for _ in range(3))
        while not self.engine.idle:
            device = [one.statistics.device_seconds for one in requests]
            started = time.perf_counter()
            self.engine.step()
            ended = time.perf_counter()
            served = [number for number, one in enumerate(requests) if one.statistics.rounds > rounds[number]]
            for number in served:
                rounds[number] = requests[number].statistics.rounds
                decode[number] += ended - started
            if served:
                self.windows += 1
                self.decode += ended - started
                # Every text of a window counts the whole of it.
                self.device += requests[served[0]].statistics.device_seconds - device[served[0]]
            for number, one in enumerate(requests):
                if one.tokens and not first[number]:
                    first[number] = ended - begin
        return [
            self._text_run(each, one, *times) for each, one, *times in zip(texts, requests, first, decode, strict=True)
        ]

    @staticmethod
    def _text_run(given: screens.Text, request: "Request", first: float, decode: float) -> TextRun:
        golden_model.check_windows(request)
        if request.draft_error is not None:
            raise request.draft_error
        found = request.statistics
        tokens = [int(token) for token in request.tokens]
        hashed = digest(np.array(tokens, np.int32))
        counts = found.rounds, found.drafted, found.accepted
        return TextRun(given.name, len(given.ids), tokens, hashed, *counts, first, decode)


def speed(arm: Arm, size: screens.Size) -> ArmRun:
    """The screens, timed, after texts that are not. Raises what any window raised."""
    backend = backend_of(arm)
    engine = engine_of(arm, backend, size.capacity)
    # Windows of every kind are captured, or loaded from the cache of kernels, before anything is timed.
    warm = [screens.Text("warm", screens.filler(300, 1 + slot), size.warm, slot) for slot in range(arm.slots)]
    # A prompt of several chunks, if the slots hold one.
    warm.append(screens.Text("warm", screens.filler(min(arm.chunk + 40, engine.capacity - 8), 9), 1, 0))
    Clock(engine, arm).run(warm)
    throttles, busy = throttle_counts(), OtherWork()
    clock, begin = Clock(engine, arm), time.perf_counter()
    decode_texts = clock.run(screens.decode_screen(size))
    # One after the other: a prompt's time to its first token is of this prompt alone.
    prompt_texts = [run for each in screens.prompt_screen(size) for run in clock.run([each])]
    total = time.perf_counter() - begin
    others, throttled = busy.share(), _throttled(arm, throttles, lambda: Clock(engine, arm).run(warm))
    return ArmRun(
        backend.arithmetic,
        decode_texts,
        prompt_texts,
        clock.windows,
        clock.decode,
        clock.device,
        total,
        throttled,
        others,
    )


class OtherWork:
    """The processor time that others took since this was made, on the processors that this process may use.

    Another process that runs during one arm and not during the next makes a difference that no order of arms cancels.
    """

    def __init__(self) -> None:
        self.begin = self._now()

    def share(self) -> float | None:
        """The share of the processors' time, 0 to 1; None where the system does not tell."""
        now = self._now()
        if self.begin is None or now is None:
            return None
        busy, own, seconds = (after - before for after, before in zip(now, self.begin, strict=True))
        return min(1.0, max(0.0, (busy - own) / (seconds * cores())))

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        """Seconds that the processors were busy, those of them that this process had, and the clock."""
        try:
            lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
            mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
            fields = [line.split() for line in lines if line.partition(" ")[0] in mine]
            # user nice system idle iowait irq softirq steal
            ticks = sum(int(one[column]) for one in fields for column in (1, 2, 3, 6, 7, 8))
        except (OSError, AttributeError, ValueError, IndexError):
            return None
        return ticks / os.sysconf("SC_CLK_TCK"), time.process_time(), time.perf_counter()


def _throttled(arm: Arm, before: int, work: Callable[[], object]) -> list[str]:
    """Why a clock was lowered: of a CPU since the count ``before``; of a GPU at the end, while it does ``work``, since
    one that waits lowers its clock anyway."""
    if arm.backend != "cuda":
        return ["thermal slowdown of the CPU"] if throttle_counts() > before else []
    from ..bench.device import clocks

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(clocks)
        while not asked.done():
            work()
    return list(asked.result()["throttled"])


def checks(arm: Arm, size: screens.Size, logits: Path | None = None) -> Checks:
    """The outputs that do not depend on time; logits float32 [positions, vocab] of each held-out text go to the file
    ``logits`` (npz). Raises what any window raised."""
    from qsa.engine import teacher_forced

    backend = backend_of(arm)
    found = _seven(arm, backend, size)
    if logits is not None:
        model = golden_model.model(backend)
        scored = {}
        for name, positions in size.nll.items():
            ids = text.held_out(name)[: positions + 1]
            windows = teacher_forced(model, ids, WINDOW_ROWS, page_size=arm.page_size, kv_format=arm.kv_format)
            scored[name] = np.concatenate([rows for _, rows in windows])
        np.savez(logits, allow_pickle=False, **scored)
    needles = {}
    for context, depth in size.needles:
        held, _ = needle.find(backend, context, depth, arm.page_size, arm.kv_format)
        needles[held.name.removeprefix("needle at ")] = held.passed
    return Checks(backend.arithmetic, found, needles)


def _seven(arm: Arm, backend: Backend, size: screens.Size) -> list[SevenText]:
    """The seven computations with the arm's slots, drafts and K/V, as far as the size makes them."""
    from qsa.engine import Drafting

    held = backend.arithmetic == "exact" and arm.kv_format == "int8"
    # Slots that hold the longest of them, whatever the arm's capacity is.
    engine = engine_of(msgspec.structs.replace(arm, capacity=0), backend, golden_model.CAPACITY)
    found = []
    for start in range(0, len(size.computations), arm.slots):
        group = size.computations[start : start + arm.slots]
        requests = []
        for name in group:
            given = text.make_inputs({"computation": name})
            # Drafting after a long prompt would let the draft layer, which attends densely, read it.
            drafted = name in seven.ANSWERS and arm.spec > 1
            drafting = Drafting(arm.spec, arm.spec_min_p) if drafted else None
            count = min(size.part or given["count"], given["count"])
            requests.append(engine.submit(given["ids"], count, given["options"], given["seed"], drafting=drafting))
        engine.run()
        for name, request in zip(group, requests, strict=True):
            made = golden_model.text_of(engine, request)
            golden = None
            if held:
                part = size.part if name in seven.ANSWERS else seven.WHOLE
                compared = seven.held_to_golden(name, made, part)
                golden = "" if compared.passed else "; ".join(compared.notes)
            tokens = [int(token) for token in made.tokens]
            found.append(SevenText(name, tokens, digest(made.tokens), digest(made.logits), golden))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run one process; returns 0."""
    parser = argparse.ArgumentParser(prog="qsa.parity.ab.process", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("size", choices=sorted(screens.SIZES))
    parser.add_argument("--arm", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--logits", type=Path)
    arguments = parser.parse_args(argv)
    # A kernel under development lies in the folder where the command is typed.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    arm, size = msgspec.json.decode(arguments.arm.read_bytes(), type=Arm), screens.SIZES[arguments.size]
    found = speed(arm, size) if arguments.kind == "speed" else checks(arm, size, arguments.logits)
    arguments.out.write_bytes(msgspec.json.encode(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
