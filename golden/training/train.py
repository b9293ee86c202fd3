"""Train the golden model: ``python -m qsa.golden.training.train DATA OUT --seconds 540``.

DATA is a folder made by ``corpus``; OUT receives ``weights-N.safetensors`` (float32, the reference's names) and
``log.jsonl``. The training ends when its time is up, whatever the device: stages and learning rate follow the clock.
"""

import argparse
import json
import math
import time
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from .batches import Batches, Stage
from .config import CONFIG
from .exercises import ANSWER
from .network import UNUSED, Losses, Network, initial
from .optimiser import Optimiser

STAGES = (
    Stage("dense 1K", 0.30, (1024,), False, (0.60, 0.20, 0.20)),
    Stage("dense 2K", 0.20, (2048,), False, (0.55, 0.20, 0.25)),
    Stage("dense 4K", 0.12, (4096,), False, (0.50, 0.20, 0.30)),
    Stage("dense 16K", 0.13, (16384, 4096), False, (0.45, 0.10, 0.45)),
    Stage("selected", 0.25, (2048, 4096, 16384), True, (0.50, 0.20, 0.30)),
)

TOKENS = 1 << 16
"""Tokens of a batch."""

DRAFT_WEIGHTS = 0.2, 0.1
"""Weights of the draft layer's losses, by draft step."""

WARMUP = 100
"""Steps until the learning rate is full; then it falls as a cosine of the time, to 2 % of its peak."""

INDEX_STRIDE = 32
"""Every so many positions the indexers are taught."""

SHARDS = 4
"""Files of weights, each below 16 MiB."""

SAVING = 12
"""Seconds kept at the end for saving and the last check."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("data")
    p.add_argument("out", type=Path)
    p.add_argument("--seconds", type=float, default=540, help="time for everything, compilation included")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--resume", type=Path, help="folder with weights to go on from")
    p.add_argument("--stages", default="01234", help="digits of the stages to run, their shares scaled to 1")
    p.add_argument("--rate", type=float, default=1.0, help="factor of all learning rates")
    p.add_argument("--tokens", type=int, default=TOKENS)
    p.add_argument("--device", default="cuda")
    p.add_argument("--eager", action="store_true", help="do not compile")
    return p


def save(tensors: dict[str, torch.Tensor], out: Path) -> None:
    """The tensors in SHARDS files of about equal size, written beside the old ones first."""
    shards: list[dict[str, torch.Tensor]] = [{} for _ in range(SHARDS)]
    sizes = [0] * SHARDS
    for name in sorted(tensors, key=lambda name: (-tensors[name].numel(), name)):
        place = sizes.index(min(sizes))
        shards[place][name] = tensors[name].detach().cpu().contiguous()
        sizes[place] += tensors[name].numel()
    for place, shard in enumerate(shards):
        save_file(shard, out / f"new-{place}")
    for place in range(SHARDS):
        (out / f"new-{place}").replace(out / f"weights-{place}.safetensors")


def load(folder: Path, device: str = "cpu") -> dict[str, torch.Tensor]:
    """name -> tensor of the files that :func:`save` wrote."""
    return {
        name: t for path in sorted(folder.glob("weights-*.safetensors")) for name, t in load_file(path, device).items()
    }


class Trainer:
    """Network, optimiser, batches and log of one run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.begin, self.options = time.monotonic(), options
        self.good: list[torch.Tensor] | None = None
        options.out.mkdir(parents=True, exist_ok=True)
        self.file = (options.out / "log.jsonl").open("w")
        self.batches = Batches(options.data, options.seed, options.tokens)
        # The workers fork now, before CUDA starts in this process.
        self.batches.make("start", 1024, (1, 1, 1), 1).result()
        torch.set_float32_matmul_precision("high")
        torch._dynamo.config.cache_size_limit = 64
        generator = torch.Generator().manual_seed(options.seed)
        tensors = load(options.resume) if options.resume else initial(CONFIG, generator)
        self.tensors = {name: t.to(options.device) for name, t in sorted(tensors.items())}
        self.learned = {n: t.requires_grad_() for n, t in self.tensors.items() if UNUSED not in n}
        self.low = torch.bfloat16 if options.device == "cuda" else torch.float32
        self.network = Network(CONFIG, self.tensors, self.low, not options.eager)
        self.optimiser = Optimiser(self.learned, 0.02 * options.rate, 2e-3 * options.rate)
        chosen = [STAGES[int(digit)] for digit in options.stages]
        whole = sum(stage.share for stage in chosen)
        self.stages = [stage._replace(share=stage.share / whole) for stage in chosen]

    def log(self, **values: Any) -> None:
        """One line of the log, also printed."""
        line = json.dumps({"seconds": round(time.monotonic() - self.begin, 1)} | values)
        print(line, flush=True)
        self.file.write(line + "\n")
        self.file.flush()

    def losses(
        self, data: np.ndarray, weight: np.ndarray, select: bool, offset: int = 0
    ) -> tuple[Losses, torch.Tensor]:
        """Losses of a batch of bytes and weights (NumPy), and the one number to minimise."""
        tokens = torch.from_numpy(data).to(self.options.device, non_blocking=True).long()
        weights = torch.from_numpy(weight).to(self.options.device, non_blocking=True).float() / 4
        length = tokens.shape[1] - 1
        rows = torch.arange(offset % INDEX_STRIDE, length, INDEX_STRIDE, device=self.options.device)
        rows = rows.clamp_min(2 * CONFIG.indexer_compress_ratio)
        losses = self.network.losses(tokens, weights, select, len(DRAFT_WEIGHTS), rows)
        drafts = sum(w * d for w, d in zip(DRAFT_WEIGHTS, losses.drafts, strict=True))
        return losses, losses.text + drafts + losses.index + 0.01 * losses.balance

    def warm_up(self) -> None:
        """Forward and backward at every length and kind of attention, without a step: compiles, and fails early."""
        for length, select in sorted({(n, s.select) for s in self.stages for n in s.lengths}):
            data, weight = self.batches.make("warm", length, (1, 1, 1)).result()
            for _ in range(2):
                start = time.monotonic()
                self.losses(data, weight, select)[1].backward()
                loss = float(next(iter(self.learned.values())).grad.norm())
                took = time.monotonic() - start
            self.log(warm=length, select=select, ms=round(took * 1000), gradient=loss)
            for tensor in self.learned.values():
                tensor.grad = None

    def needles(self, length: int, select: bool) -> float:
        """Share of the bytes of answers in documents of needles that the network gets right, given those before."""
        data, weight = self.batches.make("check", length, (0, 0, 1)).result()
        # With gradients, though none is wanted: without them everything would be compiled a second time.
        with torch.enable_grad():
            tokens = torch.from_numpy(data).to(self.options.device).long()
            table = self.network.table(length, len(tokens))
            streams = self.network.trunk(tokens[:, :-1], table, select)[0]
            answer = torch.from_numpy(weight[:, 1:] == ANSWER).to(self.options.device).flatten()
            head = {"mixer": self.network.mixer, "head": self.tensors["lm_head.weight"]}
            guess = self.network.guess(streams, **head)
            return round(float((guess == tokens[:, 1:].flatten())[answer].float().mean()), 4)

    def check(self, *numbers: float) -> bool:
        """Keep a copy of the state when ``numbers`` are finite, else go back to the last copy, momenta included.

        Returns whether they were. Raises FloatingPointError when there is no copy yet.
        """
        state = [*self.learned.values(), *self.optimiser.state()]
        if all(math.isfinite(number) for number in numbers):
            self.good = [t.detach().clone() for t in state]
            return True
        if self.good is None:
            raise FloatingPointError(f"losses and norms {numbers}: not finite at the first check")
        with torch.no_grad():
            for tensor, value in zip(state, self.good, strict=True):
                tensor.copy_(value)
        return False

    def step(self, step: int, stage: Stage, progress: float) -> tuple[Losses, torch.Tensor, torch.Tensor, float, int]:
        """One step. Returns (losses, the one minimised, AdamW's gradient norm, factor of the rates, length)."""
        data, weight, select = self.batches.next(stage)
        losses, total = self.losses(data, weight, select, offset=step * 13)
        total.backward()
        rate = min(1.0, (step + 1) / WARMUP) * (0.02 + 0.98 * (1 + math.cos(math.pi * progress)) / 2)
        return losses, total, self.optimiser.step(rate), rate, data.shape[1] - 1

    def run(self) -> None:
        """Train until the time is up."""
        self.warm_up()
        start, end = time.monotonic(), self.begin + self.options.seconds - SAVING
        bounds = list(accumulate(stage.share for stage in self.stages[:-1]))
        place, step, first, logged, bad = 0, 0, 0, 0, 0
        marked = saved = time.monotonic()
        while (progress := (time.monotonic() - start) / (end - start)) < 1:
            now = sum(progress >= bound for bound in bounds)
            if now != place:
                found = self.needles(4096, self.stages[now].select)
                self.log(stage_end=self.stages[place].name, step=step, needles_4k=found)
                place, first = now, step
            stage = self.stages[place]
            losses, total, norm, rate, length = self.step(step, stage, progress)
            step += 1
            if step % 50 == 0 or step - first in (2, 6):
                bad += not self.check(float(total.detach()), float(norm))
                speed = round((step - logged) * self.options.tokens / (time.monotonic() - marked))
                logged, marked = step, time.monotonic()
                self.log(
                    **{"step": step, "rate": round(rate, 4), "stage": stage.name, "length": length, "tokens/s": speed},
                    **{"text": losses.text.item(), "drafts": [round(loss.item(), 4) for loss in losses.drafts]},
                    **{"index": losses.index.item(), "balance": losses.balance.item(), "norm": float(norm), "bad": bad},
                )
            if time.monotonic() - saved > 100:
                save(self.tensors, self.options.out)
                saved = time.monotonic()
        save(self.tensors, self.options.out)
        self.log(done=step, needles_4k=self.needles(4096, True), needles_16k=self.needles(16384, True), bad=bad)
        self.batches.close()


if __name__ == "__main__":
    Trainer(parser().parse_args()).run()
