"""The table of ``docs/accuracy.md`` on formats of index keys: how often each selects other blocks than fp32 keys.

    python -m qsa.parity.index_format_table [--backend cpu] [--cells 16384]

The golden model reads its three held-out texts. Of every QSA layer the pooled keys and some rows' queries are kept as
they were, and the rows select again with keys and queries in each format. A margin is the distance of two blocks'
scores under fp32, relative to the score at the cut: of a row, that between the last block selected and the first left
out; of a format, the largest between two blocks that it exchanged.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from qsa.golden.families import text
from qsa.reference import exact
from qsa.reference.block_scores import block_scores as scores_in_float64
from qsa.reference.geometry import Geometry
from qsa.reference.index import Index
from qsa.reference.key_codes import decode, encode

from .progress import shown

TEXTS = ("text", "code", "math")
STEP = 17
"""A row in so many is looked at: an odd number, so that every tail occurs."""

CHUNK = 1024
FP8_LARGEST = 448.0
HEAD = (
    "| keys and queries | rows that differ | blocks | of a row | largest margin exchanged | largest error of a score |"
    "\n|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Captured:
    """Rows of one layer and text: queries [rows, heads, dim] float32, the index after the text, step records."""

    q: np.ndarray
    index: Index
    steps: np.ndarray
    geometry: Geometry


def _bf16(x: np.ndarray) -> np.ndarray:
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def _fp8(x: np.ndarray) -> np.ndarray:
    """e4m3 with a float32 scale per vector, as served indexers keep it."""
    scale = np.maximum(np.abs(x).max(axis=-1, keepdims=True) / np.float32(FP8_LARGEST), np.float32(1e-30))
    return (x / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale


def _int16(x: np.ndarray) -> np.ndarray:
    return decode(*encode(x)).astype(np.float32)


def _float32(c: Captured) -> np.ndarray:
    return exact.block_scores(c.q, c.index, c.steps)


def _rounded(round_to: Callable[[np.ndarray], np.ndarray], queries: bool) -> Callable[[Captured], np.ndarray]:
    """Scores in float32 of keys, and of queries too where ``queries``, that were rounded."""

    def scores(c: Captured) -> np.ndarray:
        index = Index(c.index.max_blocks, c.index.weight, c.geometry)
        index.pooled[:], index.dead[:] = round_to(c.index.pooled), round_to(c.index.dead)
        return exact.block_scores(round_to(c.q) if queries else c.q, index, c.steps)

    return scores


def _encoded(c: Captured) -> np.ndarray:
    index = Index(c.index.max_blocks, c.index.weight, c.geometry, format="int16")
    index.set_pooled(slice(None), c.index.pooled)
    index.set_dead(c.index.dead)
    return exact.block_scores(c.q, index, c.steps)


FORMATS: dict[str, Callable[[Captured], np.ndarray]] = {
    "float64 sums of fp32 keys": lambda c: scores_in_float64(c.q, c.index, c.steps).astype(np.float32),
    "int16, both": _encoded,
    "int16 keys alone": _rounded(_int16, False),
    "bf16, both": _rounded(_bf16, True),
    "bf16 keys alone": _rounded(_bf16, False),
    "fp8 e4m3, both": _rounded(_fp8, True),
    "fp8 e4m3 keys alone": _rounded(_fp8, False),
}
"""Name -> scores of the rows captured, as a kernel of that format gives them; sums are float32 but where it says
otherwise."""


def captured(backend: str, cells: int, on_cells: Callable[[int], object]) -> Iterator[Captured]:
    """The rows of every layer that leave a block out, text by text; a text has ``cells`` tokens at most."""
    import importlib

    from qsa.kernels.ops import BACKENDS
    from qsa.model import ExactModel

    operations = importlib.import_module(BACKENDS[backend])
    config, tensors = text.tensors()
    kept: list[tuple[int, np.ndarray, np.ndarray]] = []

    def block_scores(q_idx: Any, index: Any, steps: Any, out: Any = None) -> Any:
        # Rows that leave a block out: of the others a score changes nothing.
        some = np.flatnonzero((steps[:, 0] % STEP == 0) & (steps[:, 2] > config.geometry.top_blocks))
        kept.append((id(index), q_idx[some].copy(), steps[some].copy()))
        return operations.block_scores(q_idx, index, steps, out)

    names = {name: getattr(operations, name) for name in ("append_index", "append_kv", "attend", "layers", "select")}
    model = ExactModel(config, tensors, backend=SimpleNamespace(**names, block_scores=block_scores))
    for name in TEXTS:
        data = (text.MODEL / f"heldout-{name}.txt").read_bytes()[:cells]
        ids = np.frombuffer(data, np.uint8).astype(np.int64)
        kept.clear()
        state = model.init_state(len(ids))
        for first in range(0, len(ids), CHUNK):
            model.forward(ids[first : first + CHUNK], state)
            on_cells(min(CHUNK, len(ids) - first))
        for attention in state.attention:
            index = getattr(attention, "index", None)
            if index is not None:
                mine = [(q, steps) for owner, q, steps in kept if owner == id(index)]
                q, steps = (np.concatenate([pair[i] for pair in mine]) for i in range(2))
                yield Captured(q, index, steps, model.geometry)


def _blocks(c: Captured, scores: np.ndarray) -> list[np.ndarray]:
    """The complete blocks that each row selects, ascending."""
    ids = exact.select(scores, c.steps, geometry=c.geometry)
    found = []
    for row, (_, _, n_bid, width) in enumerate(c.steps.tolist()):
        blocks = np.unique(ids[row, :width] // c.geometry.ratio)
        found.append(blocks[blocks < n_bid])
    return found


class Difference(NamedTuple):
    """Of one format: rows, rows that differ, blocks selected, blocks that differ, the most of a row, the largest
    margin exchanged, the largest relative error of a selected block's score."""

    rows: int
    differ: int
    selected: int
    exchanged: int
    most: int
    margin: float
    error: float


def difference(c: Captured, right: np.ndarray, got: np.ndarray) -> Difference:
    """How the selection by ``got`` [rows, blocks] differs from that by ``right``, fp32's scores."""
    differ = selected = exchanged = most = 0
    margin = error = 0.0
    for row, (a, b) in enumerate(zip(_blocks(c, right), _blocks(c, got), strict=True)):
        cut = float(right[row, a].min())
        lost, won = np.setdiff1d(a, b), np.setdiff1d(b, a)
        selected += len(a)
        error = max(error, float((np.abs(got[row, a] - right[row, a]) / np.maximum(right[row, a], 1e-30)).max()))
        if len(lost):
            differ, exchanged, most = differ + 1, exchanged + len(lost), max(most, len(lost))
            margin = max(margin, float(right[row, lost].max() - right[row, won].min()) / cut)
    return Difference(len(right), differ, selected, exchanged, most, margin, error)


def gaps(c: Captured, right: np.ndarray) -> np.ndarray:
    """float64 [rows]: the margin at the cut of every row."""
    found = []
    for row, blocks in enumerate(_blocks(c, right)):
        others = np.setdiff1d(np.arange(c.steps[row, 2]), blocks)
        cut = float(right[row, blocks].min())
        found.append((cut - float(right[row, others].max())) / cut)
    return np.array(found)


def rows(backend: str, cells: int, on_cells: Callable[[int], object] = lambda count: None) -> Iterator[str]:
    """The lines of the table, in Markdown, and one on the margins at the cut."""
    found: dict[str, list[Difference]] = {name: [] for name in FORMATS}
    margins: list[np.ndarray] = []
    for c in captured(backend, cells, on_cells):
        right = _float32(c)
        margins.append(gaps(c, right))
        for name, scores in FORMATS.items():
            found[name].append(difference(c, right, scores(c)))
    yield HEAD
    for name, parts in found.items():
        rows, differ, selected, exchanged = (sum(part[i] for part in parts) for i in range(4))
        most, margin, error = (max(part[i] for part in parts) for i in range(4, 7))
        share = f"{differ} of {rows} ({100 * differ / rows:.1f} %)"
        yield f"| {name} | {share} | {100 * exchanged / selected:.4f} % | {most} | {margin:.1e} | {error:.1e} |"
    tenth, half = np.quantile(np.concatenate(margins), (0.1, 0.5))
    yield f"\nMargin at the cut under fp32: median {half:.1e}, one row in ten below {tenth:.1e}."


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="qsa.parity.index_format_table", description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="cpu", choices=["cpu", "exact"])
    parser.add_argument("--cells", type=int, default=16384, metavar="N", help="tokens of each text at most (16384)")
    arguments = parser.parse_args(argv)
    total = sum(min(arguments.cells, (text.MODEL / f"heldout-{name}.txt").stat().st_size) for name in TEXTS)
    with shown("index formats") as work:
        work.total = total
        lines = list(rows(arguments.backend, arguments.cells, work.advance))
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
