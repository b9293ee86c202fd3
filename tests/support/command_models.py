"""Checkpoints of small models for tests of the commands, and the commands run in this process."""

from dataclasses import replace

from qsa.model.checkpoint import write_quantised
from qsa.parity import cli
from qsa.reference.model.random_model import random_tensors
from support.exact_models import SMALL_CONFIG

CONFIG = replace(SMALL_CONFIG, vocab_size=256, eos_token_id=0)
PROMPT = "Tōkyō: 3 + 4 = "


def make(folder, config=CONFIG, change=None):
    tensors = random_tensors(config, 5, draft=True)
    if change:
        change(tensors)
    write_quantised(folder, config, tensors)
    return folder


def make_undrafted(folder):
    """A model without a draft layer."""
    return make(folder, change=lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith("mtp.")])


def run(capsys, *arguments):
    """(exit code, stdout, stderr) of a command in this process, on the CPU."""
    try:
        code = cli.main(list(map(str, arguments)))
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err
