"""Attention that reads other cells, pages, heads, rows or slots than it should."""

from typing import Any

import numpy as np

from qsa.kernels.ops import OPERATIONS
from qsa.reference.geometry import REAL

from ..mutant import Right, mutant
from .changes import ROWS, but, each_kv, each_row, kv_of, kvs_of, with_side, with_table

SCHEDULES = OPERATIONS["attend"].schedules
CORNERS = "D: corners in every schedule"


def _in_schedule(schedule: str) -> None:
    """Mutants that are wrong in one schedule alone."""

    @mutant("attend", f"{schedule}: -1 read as cell 0", CORNERS)
    def zero(right: Right, a: Any) -> Any:
        return right(each_row(a, lambda row, ids: np.where(ids < 0, 0, ids)) if a.schedule == schedule else a)

    @mutant("attend", f"{schedule}: a missing page read as the first one", CORNERS)
    def first_page(right: Right, a: Any) -> Any:
        return right(each_kv(a, lambda kv: with_table(kv, np.maximum(kv.table, 0))) if a.schedule == schedule else a)

    @mutant("attend", f"{schedule}: an id behind the count read", CORNERS)
    def behind(right: Right, a: Any) -> Any:
        steps = a.steps.copy()
        more = (steps[:, 3] > 0) & (steps[:, 3] < a.ids.shape[1])
        steps[more, 3] += 1
        return right(but(a, steps=steps) if a.schedule == schedule else a)

    @mutant("attend", f"{schedule}: an unused row is not left at 0", CORNERS)
    def unused(right: Right, a: Any) -> Any:
        out = right(a)
        if a.schedule == schedule:
            out[a.steps[:, 0] < 0] = np.nan
        return out

    @mutant("attend", f"{schedule}: a query that is not finite gives 0", CORNERS)
    def not_finite(right: Right, a: Any) -> Any:
        return np.nan_to_num(right(a)) if a.schedule == schedule else right(a)

    @mutant("attend", f"{schedule}: a row without cells gives NaN", CORNERS)
    def empty(right: Right, a: Any) -> Any:
        out = right(a)
        if a.schedule == schedule:
            for row, width in enumerate(a.steps[:, 3].tolist()):
                if width and (a.ids[row, :width] < 0).all():
                    out[row] = np.nan
        return out


for _schedule in SCHEDULES:
    _in_schedule(_schedule)


@mutant("attend", "a missing page counted as a row of zeros", "A8")
def _zero_row(right: Right, a: Any) -> Any:
    out = right(a)
    for row, width in enumerate(a.steps[:, 3].tolist()):
        ids = a.ids[row, :width]
        lost = int(((kv_of(a, row).locate(ids)[0] < 0) & (ids >= 0)).sum())
        out[row] *= np.float32((width - lost) / width if width else 1)
    return out


@mutant("attend", "ids shifted by one", "id arithmetic")
def _shifted(right: Right, a: Any) -> Any:
    return right(each_row(a, lambda row, ids: np.where(ids > 0, ids - 1, ids)))


@mutant("attend", "the tail left out", "A4")
def _no_tail(right: Right, a: Any) -> Any:
    return right(each_row(a, lambda row, ids: np.where(ids >= a.steps[row, 2] * REAL.ratio, -1, ids)))


@mutant("attend", "the row's own cell left out", "causal mask")
def _not_itself(right: Right, a: Any) -> Any:
    return right(each_row(a, lambda row, ids: np.where(ids == a.steps[row, 0], -1, ids)))


@mutant("attend", "the first selected cell counted twice", "loop bounds")
def _twice(right: Right, a: Any) -> Any:
    return right(each_row(a, lambda row, ids: np.where(np.arange(len(ids)) == 1, ids[:1], ids) if len(ids) else ids))


@mutant("attend", "a cell that is given twice counted once", "D: duplicate ids")
def _once(right: Right, a: Any) -> Any:
    return right(each_row(a, lambda row, ids: np.unique(ids)))


@mutant("attend", "page table off by one", "page arithmetic")
def _table(right: Right, a: Any) -> Any:
    return right(each_kv(a, lambda kv: with_table(kv, np.roll(kv.table, 1))))


@mutant("attend", "only the first page is seen", "C17")
def _first_page_only(right: Right, a: Any) -> Any:
    def within(row: int, ids: np.ndarray) -> np.ndarray:
        size = max(64, kv_of(a, row).pool.page_size)
        return np.where(ids >= size, -1, ids)

    return right(each_row(a, within))


@mutant("attend", "pages taken in ascending order", "page arithmetic")
def _ascending(right: Right, a: Any) -> Any:
    def in_order(kv: Any) -> Any:
        table, here = kv.table.copy(), kv.table >= 0
        table[here] = np.sort(table[here])
        return with_table(kv, table)

    return right(each_kv(a, in_order))


@mutant("attend", "heads and cells of a page exchanged", "page layout")
def _layout(right: Right, a: Any) -> Any:
    def other(kv: Any) -> Any:
        codes = kv.pool.v.codes
        return with_side(kv, "v", codes=codes.transpose(0, 2, 1, 3).reshape(codes.shape))

    return right(each_kv(a, other))


def _at_tile(tile: int, off: int) -> None:
    @mutant(
        "attend", f"the last cell dropped at a width of {tile} k {off:+d}", "D: splits against widths of tile x splits"
    )
    def dropped(right: Right, a: Any) -> Any:
        def last(row: int, ids: np.ndarray) -> np.ndarray:
            return ids[:-1] if len(ids) > tile and (len(ids) - off) % tile == 0 else ids

        return right(each_row(a, last))


def _at_split(splits: int, tile: int, off: int) -> None:
    @mutant("attend", f"{splits} splits of {tile} cells: the last cell dropped at {off:+d}", "D: splits against widths")
    def dropped(right: Right, a: Any) -> Any:
        def last(row: int, ids: np.ndarray) -> np.ndarray:
            return ids[:-1] if len(ids) == splits * tile + off else ids

        return right(each_row(a, last) if a.schedule == "split" and a.splits == splits else a)


for _tile in (16, 32, 64, 128):
    for _off in (-1, 0, 1):
        _at_tile(_tile, _off)
for _splits, _tile, _off in ((4, 16, 1), (5, 64, -1), (9, 32, 0), (12, 128, 1), (16, 64, 1), (19, 64, 0)):
    _at_split(_splits, _tile, _off)


def _at_splits(splits: int) -> None:
    @mutant("attend", f"wrong for {splits} splits", "D: a number of splits that is wrong by itself")
    def wrong(right: Right, a: Any) -> Any:
        hit = a.schedule == "split" and a.splits == splits
        return right(each_row(a, lambda row, ids: ids[: len(ids) - len(ids) // splits]) if hit else a)


for _splits in (4, 5, 6, 8, 9, 11, 13, 16, 17, 19):
    _at_splits(_splits)


@mutant("attend", "split: parts without a cell are merged as zeros", "C3")
def _empty_parts(right: Right, a: Any) -> Any:
    out = right(a)
    if a.schedule == "split":
        few = (a.steps[:, 3] > 0) & (a.steps[:, 3] < a.splits)
        out[few] *= np.float32(0.5)
    return out


def _at_rows(rows: int) -> None:
    @mutant("attend", f"wrong for {rows} rows", "D: a number of rows that is wrong by itself")
    def wrong(right: Right, a: Any) -> Any:
        out = right(a)
        if len(out) == rows:
            out[-1] = out[-2]
        return out


for _rows in ROWS:
    _at_rows(_rows)


@mutant("attend", "rows from the ninth on read the query of the eighth", "more rows than a window")
def _ninth(right: Right, a: Any) -> Any:
    q = a.q.copy()
    q[8:] = q[7:8]
    return right(but(a, q=q))


@mutant("attend", "every row has the count of the first", "scalar baked into a graph, A3")
def _one_count(right: Right, a: Any) -> Any:
    steps = a.steps.copy()
    steps[:, 3] = np.minimum(steps[0, 3], a.steps[:, 3])
    return right(but(a, steps=steps))


@mutant("attend", "an unused row moves the rows behind it up", "C14")
def _compacted(right: Right, a: Any) -> Any:
    out, used = right(a), a.steps[:, 0] >= 0
    moved = np.zeros_like(out)
    moved[: used.sum()] = out[used]
    return moved


@mutant("attend", "KV head by modulo", "head mapping")
def _modulo(right: Right, a: Any) -> Any:
    order = np.arange(REAL.n_head).reshape(REAL.group, REAL.n_head_kv).T.ravel()
    out = np.empty_like(a.q)
    out[:, order] = right(but(a, q=np.ascontiguousarray(a.q[:, order])))
    return out


@mutant("attend", "the last head repeats the one before", "head mapping")
def _last_head(right: Right, a: Any) -> Any:
    out = right(a)
    out[:, -1] = out[:, -2]
    return out


@mutant("attend", "the last dim is not written", "C2")
def _last_dim(right: Right, a: Any) -> Any:
    out = right(a)
    out[..., -1] = 0
    return out


@mutant("attend", "a NaN in one head spoils its row", CORNERS)
def _spoilt(right: Right, a: Any) -> Any:
    out = right(a)
    out[np.isnan(out).any(axis=(1, 2))] = np.nan
    return out


@mutant("attend", "a NaN in one row spoils the next", "C14")
def _next_row(right: Right, a: Any) -> Any:
    out = right(a)
    bad = ~np.isfinite(a.q).all(axis=(1, 2))
    out[1:][bad[:-1]] = np.nan
    return out


@mutant("attend", "a query of zeros gives NaN", "division by its largest magnitude")
def _zero_query(right: Right, a: Any) -> Any:
    out = right(a)
    out[(a.q == 0).all(axis=-1)] = np.nan
    return out


@mutant("attend", "ids end at the first -1", "D: runs of absent ids")
def _first_absent(right: Right, a: Any) -> Any:
    return right(each_row(a, lambda row, ids: ids[: int((ids < 0).argmax())] if (ids < 0).any() else ids))


def _at_run(size: int, where: str) -> None:
    @mutant("attend", f"a tile of {size} absent ids at the {where} gives NaN", "D: a tile of absent pages")
    def run(right: Right, a: Any) -> Any:
        out = right(a)
        for row, width in enumerate(a.steps[:, 3].tolist()):
            gone = a.ids[row, :width] < 0
            part = {"head": gone[:size], "middle": gone[(width - size) // 2 :][:size], "end": gone[-size:]}[where]
            if width > size and len(part) == size and part.all() and not gone.all():
                out[row] = np.nan
        return out


for _size, _where in ((64, "head"), (64, "middle"), (64, "end"), (512, "head"), (512, "middle"), (600, "end")):
    _at_run(_size, _where)


def _at_width(width: int) -> None:
    @mutant("attend", f"wrong for a width of {width}", "D: rule boundaries in attention")
    def wrong(right: Right, a: Any) -> Any:
        return right(each_row(a, lambda row, ids: ids[1:] if len(ids) == width else ids))


for _width in (2047, 2048, 2049, 2050, 2051):
    _at_width(_width)


def _at_context(n_kv: int) -> None:
    @mutant("attend", f"wrong for a context of {n_kv} cells", "D: rule boundaries in attention")
    def wrong(right: Right, a: Any) -> Any:
        return right(each_row(a, lambda row, ids: ids[1:] if a.steps[row, 1] == n_kv else ids))


for _n_kv in (2052, 2053, 2054, 2055, 2056):
    _at_context(_n_kv)


@mutant("attend", "every slot read from the first one's pool", "slot mapping")
def _first_slot(right: Right, a: Any) -> Any:
    if a.slots is None:
        return right(a)
    kv = a.kv[int(a.slots[0])]
    return right(but(each_row(a, lambda row, ids: np.minimum(ids, kv.capacity - 1)), kv=kv, slots=None))


@mutant("attend", "slots counted without those that have no row", "D: gaps, slots without rows")
def _gaps(right: Right, a: Any) -> Any:
    if a.slots is None:
        return right(a)
    slots = np.unique(a.slots, return_inverse=True)[1].astype(np.int32)
    limited = but(a, slots=slots)
    return right(each_row(limited, lambda row, ids: np.minimum(ids, kv_of(limited, row).capacity - 1)))


@mutant("attend", "slots from the ninth on are the first", "D: 8 and more slots")
def _eight(right: Right, a: Any) -> Any:
    if a.slots is None:
        return right(a)
    limited = but(a, slots=np.where(a.slots > 7, 0, a.slots).astype(np.int32))
    return right(each_row(limited, lambda row, ids: np.minimum(ids, kv_of(limited, row).capacity - 1)))


@mutant("attend", "mixed page sizes: slots of another size than the first give 0", "D: mixed page sizes")
def _mixed_pages(right: Right, a: Any) -> Any:
    out, size = right(a), kvs_of(a)[0].pool.page_size
    for row in range(len(out)):
        if kv_of(a, row).pool.page_size != size:
            out[row] = 0
    return out


@mutant("attend", "mixed formats: slots of another format than the first give 0", "D: mixed formats")
def _mixed_formats(right: Right, a: Any) -> Any:
    out, format = right(a), kvs_of(a)[0].pool.format
    for row in range(len(out)):
        if kv_of(a, row).pool.format != format:
            out[row] = 0
    return out


def _in_format(format: str, page: int) -> None:
    @mutant("attend", f"{format} in pages of {page}: the last cell dropped", "a build that is wrong by itself")
    def wrong(right: Right, a: Any) -> Any:
        def last(row: int, ids: np.ndarray) -> np.ndarray:
            pool = kv_of(a, row).pool
            return ids[:-1] if (pool.format, pool.page_size) == (format, page) and len(ids) > 1 else ids

        return right(each_row(a, last))


for _format, _page in (("int8", 512), ("q4_0", 1), ("k8v4", 64), ("q4_0", 512), ("k8v4", 4)):
    _in_format(_format, _page)
