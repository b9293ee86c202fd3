"""Times the golden model on a CUDA device: prompt chunks, captured windows, drafts; on the CPU beside it.

    python -m qsa.parity.bench.cuda_model [--json PATH] [--context 3072] [--capacity 32768] [--turns 200]

The weights are those of ``golden/model``; the ids are random, which changes no launch. The rate of windows counts
everything that greedy decoding does for one: filling its inputs, keeping the state for a rollback, running it, drawing
its rows' tokens where the logits are and copying the tokens to the host. ``device`` is the time of a replay of the
window's program alone, without the draw, by events over 50 replays. Every window's logits and tokens are compared with
the CPU's before windows are timed; a difference ends the run with exit code 1.
"""

import sys
import time
from collections.abc import Sequence
from typing import Any

import cupy
import numpy as np

from qsa.engine import load_model
from qsa.engine.draws.device_sampling import DrawParameters
from qsa.engine.programs.graph_runner import GraphRunner, make_runner
from qsa.engine.slots.slot import Slot
from qsa.engine.window import run_window
from qsa.golden.families import text
from qsa.kernels.cpu.sampler import argmax
from qsa.kernels.cuda.device import Program
from qsa.kernels.cuda.toolchain.host import launches
from qsa.reference.sampler import GREEDY

from . import script

CHUNK, ROWS, SLOTS = 1024, (1, 2, 4, 8), 8


class ModelBench:
    """The golden model on one backend, with slots of its own."""

    def __init__(self, backend: str, slots: int, capacity: int) -> None:
        self.model = load_model(text.checked_folder(), backend)
        self.runner = make_runner(self.model)
        self.slots = [Slot(self.model, capacity) for _ in range(slots)]
        self.rng = np.random.default_rng(1)

    def ids(self, count: int) -> np.ndarray:
        """Random ids int64 [count]."""
        return self.rng.integers(1, self.model.config.vocab_size, count)

    def prompt(self, count: int, slots: int = 1) -> float:
        """Read ``count`` tokens into the first slots; returns the tokens per second of the last chunk."""
        for slot in self.slots[:slots]:
            for start in range(0, count, CHUNK):
                part, begin = min(CHUNK, count - start), time.perf_counter()
                output = self.runner.run([self.ids(part)], [slot])
                self.runner.logits(output.x)
                rate = part / (time.perf_counter() - begin)
        return rate

    def _run(self, rows: int, slots: int, drawn: bool) -> list[Any]:
        """Parts of a window of ``rows`` rows of each of the first slots, all of them kept; with greedy draws or not."""
        mine, ids = self.slots[:slots], [self.ids(rows) for _ in range(slots)]
        draws = [DrawParameters(GREEDY, own[1:].tolist(), 0, 0, slot.n) for own, slot in zip(ids, mine, strict=True)]
        parts = run_window(self.runner, ids, mine, draws if drawn else None)
        for part in parts:
            error = part if isinstance(part, Exception) else part.error
            if error is not None:
                raise error
        return parts

    def logits(self, rows: int) -> np.ndarray:
        """Logits [rows, vocab] of a window of the first slot, on the host."""
        return self._run(rows, 1, False)[0].logits

    def window(self, rows: int, slots: int = 1) -> np.ndarray:
        """Tokens [slots, rows] that a window draws, on the host: those of a device come from there."""
        parts = self._run(rows, slots, True)
        return np.array([argmax(part.logits) if part.tokens is None else part.tokens for part in parts])

    def rate(self, turns: int, *window: int) -> float:
        """Windows per second; ``window``: rows and slots."""
        begin = time.perf_counter()
        for _ in range(turns):
            self.window(*window)
        return turns / (time.perf_counter() - begin)

    def drafts(self, turns: int) -> float:
        """Steps per second of the draft layer on one slot."""
        config, slot = self.model.config, self.slots[0]
        streams = self.model.to_device(np.zeros((1, config.hc_count, config.hidden_size), np.float32))
        begin = time.perf_counter()
        for _ in range(turns):
            self.runner.logits(self.runner.draft(streams, self.ids(1), [slot.n - 1], [1], [slot]).x)
        return turns / (time.perf_counter() - begin)


def replay_ms(program: Program, replays: int = 50) -> float:
    """Milliseconds of a replay of a captured program, on the device."""
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    cupy.cuda.Device().synchronize()
    with program.stream:
        begin.record()
        for _ in range(replays):
            program.launch()
        end.record()
    end.synchronize()
    return cupy.cuda.get_elapsed_time(begin, end) / replays


def compare_windows(figures: script.Figures, device: ModelBench, host: ModelBench) -> None:
    """Logits and tokens of windows of every number of rows against the CPU's, and the launches of a window."""
    for rows in ROWS:
        before = sum(launches().values())
        for turn in range(3):
            if device.logits(rows).tobytes() != host.logits(rows).tobytes():
                figures.wrong.append(f"window of {rows} rows, turn {turn}: logits differ from the CPU's")
        # Two of the three were launched, the second into a graph.
        add(figures, f"CUDA: launches, {rows} rows", (sum(launches().values()) - before) // 2)
        # With the second of these the draw is a program as well.
        for turn in range(3):
            if not np.array_equal(device.window(rows), host.window(rows)):
                figures.wrong.append(f"window of {rows} rows, turn {turn}: tokens differ from the CPU's")
        if figures.wrong:
            return


def time_windows(figures: script.Figures, device: ModelBench, host: ModelBench, turns: int) -> None:
    """Rates of windows on the device and on the CPU, of drafts, and of windows of several slots."""
    assert isinstance(device.runner, GraphRunner)
    for rows in ROWS:
        add(figures, f"CUDA: windows/s, {rows} rows", device.rate(turns, rows))
        program = next(reversed(device.runner.graphs.values())).program
        add(figures, f"CUDA: device ms of a window, {rows} rows", replay_ms(program))
        add(figures, f"CPU: windows/s, {rows} rows", host.rate(max(10, turns // 20), rows))
    device.drafts(3)
    add(figures, "CUDA: draft steps/s", device.drafts(turns))
    device.prompt(300, SLOTS)
    device.rate(3, 1, SLOTS)
    add(figures, f"CUDA: windows/s, {SLOTS} slots of 1 row", device.rate(turns, 1, SLOTS))


def add(figures: script.Figures, name: str, value: float) -> None:
    """Keep and print a figure: a count, or a number with three decimals."""
    text = f"{value:>12,.3f}" if isinstance(value, float) else f"{value:>12}"
    figures.add(name, value, f"{name:<44} {text}")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line of the benchmark; returns 1, before anything but prompts is timed, when a result is wrong."""
    parser = script.parser("cuda_model", __doc__)
    parser.add_argument("--context", type=int, default=3072)
    parser.add_argument("--capacity", type=int, default=32768)
    parser.add_argument("--turns", type=int, default=200)
    arguments = parser.parse_args(argv)
    figures = script.Figures()
    device, host = ModelBench("cuda", SLOTS, arguments.capacity), ModelBench("cpu", 1, arguments.capacity)
    device.prompt(CHUNK)
    device.slots[0].reset()
    device.rng = np.random.default_rng(1)
    add(figures, "CUDA: prompt, tokens/s", device.prompt(arguments.context))
    add(figures, "CPU: prompt, tokens/s", host.prompt(arguments.context))
    compare_windows(figures, device, host)
    if figures.wrong:
        return figures.finish(None, figures.values)
    time_windows(figures, device, host, arguments.turns)
    return figures.finish(arguments.json, figures.values)


if __name__ == "__main__":
    sys.exit(main())
