"""The CPU's kernels as a backend with captured rounds: what happens between the calls of the model runs in the
simulator."""

import copy
from types import SimpleNamespace

import numpy as np

from qsa.kernels import cpu
from qsa.kernels.cpu.sampler import Lists, sample
from qsa.kernels.cuda import simulator

lanes, rounds, program = simulator.load("sampler"), simulator.load("rounds"), simulator.load("device.graphs")
OPERATIONS = "append_kv", "append_index", "block_scores", "select", "attend"
PROGRAMS = {name: getattr(program, name) for name in ("Program", "Staging", "pinned", "program_stream")}


def _each(states, bounds):
    """(rows, state) of every sequence that keeps any of :class:`RowBounds`."""
    for index, state in enumerate(states):
        first, end = bounds.bounds[2 * index : 2 * index + 2].tolist()
        if end > first:
            yield slice(first, end), state


def causal_conv(x, taps, past, dilation=1, spans=None):
    """The CPU's, and that of rows whose bounds lie on the device."""
    if not isinstance(spans, rounds.RowBounds):
        return cpu.layers.causal_conv(x, taps, past, dilation, spans)
    out = np.full(x.shape, np.nan, np.float32)
    for rows, state in _each(past, spans):
        out[rows] = cpu.layers.causal_conv(x[rows], taps, state, dilation)
    return out


def delta_rule(q, k, v, decay, beta, memory, spans=None):
    """As :func:`causal_conv`."""
    if not isinstance(spans, rounds.RowBounds):
        return cpu.layers.delta_rule(q, k, v, decay, beta, memory, spans)
    out = np.full(v.shape, np.nan, np.float32)
    for rows, state in _each(memory, spans):
        out[rows] = cpu.layers.delta_rule(*(x[rows] for x in (q, k, v, decay, beta)), state)
    return out


def make(**changes):
    """The backend as a namespace."""
    own = {"causal_conv": causal_conv, "delta_rule": delta_rule}
    layers = SimpleNamespace(**{name: getattr(cpu.layers, name) for name in cpu.layers.__all__} | own)
    moves = {"to_device": copy.deepcopy, "to_host": copy.deepcopy, "row_sampler": lanes, "rounds": rounds}
    operations = {name: getattr(cpu, name) for name in OPERATIONS}
    return SimpleNamespace(**operations | PROGRAMS | moves | {"layers": layers} | changes)


def draw_on_the_host(monkeypatch):
    """Let the CPU's kernel do the work of every launch of the sampler, on the arrays that its host's side has checked:
    a row in the simulator takes a second. Returns a list that gets the
    purpose and the logits of each launch, of rows that are in use."""
    seen = []

    def launch(_kernel, grid, _block, arguments):
        logits, options, history, slots, lengths, seeds, positions, _scratch, tokens, ids, masses, counts, sizes = (
            arguments
        )
        lists = Lists(ids, masses, counts)
        own = {"slots": slots, "purpose": sizes[-1], "tokens": tokens, "lists": lists}
        sample(logits, options, history, lengths, seeds, positions, **own)
        seen.append((sizes[-1], logits[positions >= 0].copy()))

    monkeypatch.setattr(lanes, "launch", launch)
    return seen
