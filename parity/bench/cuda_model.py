"""Times the golden model on a CUDA device: prompt chunks, captured windows, drafts; on the CPU beside it.

    python -m qsa.parity.bench.cuda_model [--json PATH] [--context 3072] [--capacity 32768] [--turns 200]

The weights are those of ``golden/model``; the ids are random, which changes no launch. A window's rate is that of all
that a greedy decode does for it: filling its inputs, keeping what takes its rows back, running it, drawing its rows'
tokens where the logits are and bringing the tokens to the host. ``device`` is the time of a replay of the window's
program alone, without the draw, by events over 50 of them. Every window's logits and tokens are compared with the CPU's
before anything is timed; a difference ends the run with exit code 1.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import cupy
import numpy as np

from qsa.engine import load_model
from qsa.engine.device_sampling import DrawParameters
from qsa.engine.graph_runner import make_runner
from qsa.engine.slot import Slot
from qsa.engine.window import run_window
from qsa.kernels.cpu.sampler import argmax
from qsa.kernels.cuda.device import Program
from qsa.kernels.cuda.toolchain.host import launches
from qsa.reference.sampler import GREEDY

MODEL = Path(__file__).parents[2] / "golden" / "model"
CHUNK, ROWS, SLOTS = 1024, (1, 2, 4, 8), 8


class Bench:
    """Slots of one model; figures gather in ``figures``."""

    def __init__(self, backend, slots, capacity):
        self.model = load_model(MODEL, backend)
        self.runner = make_runner(self.model)
        self.slots = [Slot(self.model, capacity) for _ in range(slots)]
        self.rng = np.random.default_rng(1)

    def ids(self, count):
        return self.rng.integers(1, self.model.config.vocab_size, count)

    def prompt(self, count, slots=1):
        """Read ``count`` tokens into the first slots; tokens a second of the last chunk."""
        for slot in self.slots[:slots]:
            for start in range(0, count, CHUNK):
                part, begin = min(CHUNK, count - start), time.perf_counter()
                output = self.runner.run([self.ids(part)], [slot])
                self.runner.logits(output.x)
                rate = part / (time.perf_counter() - begin)
        return rate

    def _run(self, rows, slots, drawn):
        """Parts of a window of ``rows`` rows of each of the first slots, all of them kept; with greedy draws or not."""
        mine, ids = self.slots[:slots], [self.ids(rows) for _ in range(slots)]
        draws = [DrawParameters(GREEDY, one[1:].tolist(), 0, 0, slot.n) for one, slot in zip(ids, mine, strict=True)]
        parts = run_window(self.runner, ids, mine, draws if drawn else None)
        for part in parts:
            error = part if isinstance(part, Exception) else part.error
            if error is not None:
                raise error
        return parts

    def logits(self, rows):
        """Logits [rows, vocab] of a window of the first slot, on the host."""
        return self._run(rows, 1, False)[0].logits

    def window(self, rows, slots=1):
        """Tokens [slots, rows] that a window draws, on the host: those of a device come from there."""
        parts = self._run(rows, slots, True)
        return np.array([argmax(part.logits) if part.tokens is None else part.tokens for part in parts])

    def rate(self, turns, *window):
        """Windows a second."""
        begin = time.perf_counter()
        for _ in range(turns):
            self.window(*window)
        return turns / (time.perf_counter() - begin)

    def drafts(self, turns):
        """Steps a second of the draft layer on one slot."""
        config, slot = self.model.config, self.slots[0]
        streams = self.model.to_device(np.zeros((1, config.hc_count, config.hidden_size), np.float32))
        begin = time.perf_counter()
        for _ in range(turns):
            self.runner.logits(self.runner.draft(streams, self.ids(1), [slot.n - 1], [1], [slot]).x)
        return turns / (time.perf_counter() - begin)


def replay_ms(program: Program, replays=50):
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--context", type=int, default=3072)
    parser.add_argument("--capacity", type=int, default=32768)
    parser.add_argument("--turns", type=int, default=200)
    options = parser.parse_args()
    figures = {}

    def note(name, value):
        figures[name] = value
        print(f"{name:<44} {value:>12,.3f}" if isinstance(value, float) else f"{name:<44} {value:>12}", flush=True)

    device, host = Bench("cuda", SLOTS, options.capacity), Bench("cpu", 1, options.capacity)
    device.prompt(CHUNK)
    device.slots[0].reset()
    device.rng = np.random.default_rng(1)
    note("CUDA: prompt, tokens/s", device.prompt(options.context))
    note("CPU: prompt, tokens/s", host.prompt(options.context))
    for rows in ROWS:
        before = sum(launches().values())
        for turn in range(3):
            if device.logits(rows).tobytes() != host.logits(rows).tobytes():
                sys.exit(f"window of {rows} rows, turn {turn}: logits differ from the CPU's")
        # Two of the three were launched, the second into a graph.
        note(f"CUDA: launches, {rows} rows", (sum(launches().values()) - before) // 2)
        # With the second of these the draw is a program as well.
        for turn in range(3):
            if not np.array_equal(device.window(rows), host.window(rows)):
                sys.exit(f"window of {rows} rows, turn {turn}: tokens differ from the CPU's")
    for rows in ROWS:
        note(f"CUDA: windows/s, {rows} rows", device.rate(options.turns, rows))
        program = next(reversed(device.runner.graphs.values())).program
        note(f"CUDA: device ms of a window, {rows} rows", replay_ms(program))
        note(f"CPU: windows/s, {rows} rows", host.rate(max(10, options.turns // 20), rows))
    device.drafts(3)
    note("CUDA: draft steps/s", device.drafts(options.turns))
    device.prompt(300, SLOTS)
    device.rate(3, 1, SLOTS)
    note(f"CUDA: windows/s, {SLOTS} slots of 1 row", device.rate(options.turns, 1, SLOTS))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
