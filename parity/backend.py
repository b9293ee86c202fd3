"""A backend under test: our own, or anybody's module or object with functions of ``contract/operations.py``.

Every function is optional. What a backend lacks, refuses (``Unsupported("why")``, NotImplementedError, False) or has
not declared (``contract/declaration.py``) is unsupported, with the reason. ``attend`` gets a schedule, a number of
splits and an arithmetic only when the function takes such a keyword: without ``schedule`` it has the standing schedule
alone (and ``split`` when it takes ``splits``). ``block_scores`` and ``select`` may take a ``schedule`` too.

Queries and raw keys are handed over in the number types that the backend declares, so they must hold values of that
type already: :meth:`Backend.query` and its like round them. Results come back in NumPy.
"""

from typing import Any, TypeVar

import numpy as np

from qsa.kernels.switches import ARITHMETICS
from qsa.reference.geometry import REAL, Geometry
from qsa.reference.index import Index
from qsa.reference.kv import PagedKV, Pool

from .contract import Kernel, OwnIndex, OwnKV, UnsupportedError, declared, load, rounded
from .contract.domain import check_heads, check_ids, check_pools, check_rule, check_steps, check_values
from .contract.ids import rows_of, to_blocks, to_cells
from .contract.kernel import call
from .contract.number_types import stored
from .contract.storage import Own

__all__ = ["GUARD", "Backend", "UnsupportedError", "call"]

GUARD = np.float32(-(2.0**93))
"""Fills an output and the rows around it before the call: an element that is not written, or written outside, shows."""

STORAGE = ("cache", "append", "read")
INDEX_STORAGE = ("index_cache", "index_append", "index_read")
"""Functions that a backend with own storage, or an own index, has all of."""

KV = TypeVar("KV", PagedKV, OwnKV, list[PagedKV], list[OwnKV])


class Backend:
    """The backend ``name`` (design section 5) in one arithmetic, called with NumPy arrays throughout.

    ``arithmetic``: ``exact`` or ``float``; None is the first that the backend declares. ``declaration`` is what it
    declares. Every operation raises :class:`UnsupportedError` when the backend lacks it, refuses it or has not declared
    such inputs, ValueError when its result is not an array of the right kind, ChangedInputError when it changed an
    input, and whatever the backend itself raises. Raises ValueError on an unknown name or arithmetic, an arithmetic
    that the backend does not declare, or a declaration that does not fit.
    """

    def __init__(self, name: str, arithmetic: str | None = None) -> None:
        if arithmetic is not None and arithmetic not in ARITHMETICS:
            raise ValueError(f"arithmetic = {arithmetic!r}: allowed are {', '.join(ARITHMETICS)}")
        self.name, self.module = name, load(name)
        try:
            self.declaration = declared(self.module)
        except ValueError as error:
            raise ValueError(f"backend = {name!r}: {error}") from None
        known = self.declaration.arithmetics
        self.arithmetic = known[0] if arithmetic is None else arithmetic
        if self.arithmetic not in known:
            raise ValueError(f"arithmetic = {arithmetic!r}: backend {name!r} declares {', '.join(known)}")
        self.kernel = Kernel(self.module, self.declaration)

    def has(self, operation: str) -> bool:
        """Whether the backend defines ``operation``."""
        return self.kernel.has(operation)

    @property
    def own_storage(self) -> bool:
        """Whether K and V lie in the backend's own storage. A backend that defines ``append_kv`` uses our pools."""
        return all(map(self.has, STORAGE)) and not self.has("append_kv")

    @property
    def own_index(self) -> bool:
        """Whether the pooled keys lie in the backend's own index."""
        return all(map(self.has, INDEX_STORAGE)) and not self.has("append_index")

    def rounded(self, stage: str, x: np.ndarray) -> np.ndarray:
        """``x`` float32 rounded to the type of ``stage``, a field of ``Types``: the values that truth is made of."""
        return rounded(x, getattr(self.declaration.types, stage))

    def _typed(self, stage: str, x: np.ndarray) -> np.ndarray:
        """``x`` in the type of ``stage``. Raises ValueError where that changes a value: a fault of the suite."""
        name = getattr(self.declaration.types, stage)
        if name == "float32":
            return x
        typed = stored(x, name)
        if not np.array_equal(typed.astype(np.float32), x, equal_nan=True):
            raise ValueError(f"{stage}: has values that {name} has not: round them first")
        return typed

    def attend(
        self,
        q: np.ndarray,
        kv: PagedKV | OwnKV | list[Any],
        ids: np.ndarray,
        steps: np.ndarray,
        slots: np.ndarray | None = None,
        *,
        schedule: str = "batch",
        splits: int = 1,
    ) -> np.ndarray:
        """[rows, n_head, head_dim] in the type of the output; arguments as ``reference.attend`` has them."""
        arguments = self._attend_arguments("attend", q, kv, ids, steps, slots)
        keywords = self.attend_keywords(schedule, splits)
        guarded = None
        if self.kernel.takes("attend", "out") and self.kernel.on_host:
            guarded = np.full((len(q) + 2, *q.shape[1:]), GUARD, np.float32)
            keywords["out"] = guarded[1:-1]
        result, _ = self.kernel.call("attend", arguments, keywords)
        if guarded is not None:
            if not (guarded[0] == GUARD).all() or not (guarded[-1] == GUARD).all():
                raise ValueError("attend: wrote outside its output")
            result = guarded[1:-1] if result is None or isinstance(result, (bool, np.bool_)) else result
        return self.kernel.array("attend", result)

    def attend_gated(self, q: np.ndarray, gate: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """Attention times sigmoid(gate), in one call; gate [rows, n_head, head_dim] float32, of the query's type."""
        check_values("attend_gated", self.declaration, gate=gate)
        given = self._attend_arguments("attend_gated", q, kv, ids, steps, None)
        arguments = {"q": given.pop("q"), "gate": self._typed("query", gate), **given}
        return self.kernel.array("attend_gated", self.kernel.call("attend_gated", arguments)[0])

    def _attend_arguments(
        self, name: str, q: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray, slots: np.ndarray | None
    ) -> dict[str, Any]:
        """The arguments of attention as the backend takes them, found within what it declares."""
        self.kernel.function(name)
        kvs, declaration = kv if isinstance(kv, list) else [kv], self.declaration
        first = kvs[0].paged if isinstance(kvs[0], OwnKV) else kvs[0]
        check_pools(name, declaration, kvs, self.arithmetic)
        check_heads(name, declaration, q.shape[1], first.pool.geometry.n_head_kv, q.shape[2])
        check_steps(name, declaration, steps)
        check_values(name, declaration, q=q[steps[:, 0] >= 0])
        check_ids(name, declaration, kvs, ids, steps, slots)
        if declaration.attend_ids == "blocks":
            ids = to_blocks(ids, steps, first.pool.geometry)
        arguments: dict[str, Any] = {"q": self._typed("query", q), "kv": kv, "ids": ids, "steps": steps}
        if slots is not None:
            if not self.kernel.takes(name, "slots"):
                raise UnsupportedError(f"{name}: several slots: the function takes no slots")
            arguments["slots"] = slots
        return arguments

    def attend_keywords(self, schedule: str, splits: int | None) -> dict[str, Any]:
        """Keywords for arithmetic, schedule and splits, as far as ``attend`` takes them."""

        def takes(keyword: str) -> bool:
            return self.kernel.takes("attend", keyword)

        keywords: dict[str, Any] = {"arithmetic": self.arithmetic} if takes("arithmetic") else {}
        if takes("schedule"):
            keywords["schedule"] = schedule
        elif schedule != "batch" and not (schedule == "split" and takes("splits")):
            raise UnsupportedError(f"attend: schedule {schedule}: the function takes no schedule")
        if schedule == "split":
            if not takes("splits"):
                raise UnsupportedError("attend: schedule split: the function takes no splits")
            keywords["splits"] = splits
        return keywords

    def block_scores(
        self, q_idx: np.ndarray, index: Index | OwnIndex, steps: np.ndarray, *, schedule: str | None = None
    ) -> np.ndarray:
        """[rows, max_blocks] in the type of the scores; entries behind a row's n_bid have no meaning."""
        self.kernel.function("block_scores")
        check_steps("block_scores", self.declaration, steps)
        values = index.index if isinstance(index, OwnIndex) else index
        seen = values.pooled[: int(steps[:, 2].max(initial=0))]
        check_values("block_scores", self.declaration, q_idx=q_idx, pooled=seen, dead=values.dead)
        keywords = self._schedule("block_scores", schedule)
        arguments = {"q_idx": self._typed("index_query", q_idx), "index": index, "steps": steps}
        return self.kernel.array("block_scores", self.kernel.call("block_scores", arguments, keywords)[0])

    def select(
        self,
        scores: np.ndarray,
        steps: np.ndarray,
        rule: str = "blocks",
        geometry: Geometry = REAL,
        *,
        schedule: str | None = None,
    ) -> np.ndarray:
        """A row's cells, then -1. In the exact arithmetic the array itself: int32 [rows, 2051]. Else int64 [rows, cap],
        every row's cells ascending and with multiplicity, whatever form and order the backend gives them in."""
        self.kernel.function("select")
        check_rule("select", self.declaration, rule)
        check_steps("select", self.declaration, steps)
        for row, (_, _, n_bid, _) in enumerate(steps.tolist()):
            check_values("select", self.declaration, scores=scores[row, :n_bid])
        keywords: dict[str, Any] = {}
        if self.kernel.takes("select", "geometry"):
            keywords["geometry"] = geometry
        elif geometry != REAL:
            raise UnsupportedError("select: a budget of other sizes: the function takes no geometry")
        if self.kernel.takes("select", "rule"):
            keywords["rule"] = rule
        elif len(self.declaration.rules) > 1 and rule != "blocks":
            raise UnsupportedError(f"select: rule {rule}: the function takes no rule, and declares several (rules)")
        keywords |= self._schedule("select", schedule)
        arguments = {"scores": self._typed("index_scores", scores), "steps": steps}
        return self._ids("select", self.kernel.call("select", arguments, keywords)[0], steps, geometry)

    def indexer(
        self, q_idx: np.ndarray, raw: np.ndarray, index: Index, steps: np.ndarray, rule: str = "blocks"
    ) -> np.ndarray:
        """Ids as :meth:`select` gives them, from queries [rows, heads, idx_dim] and raw keys [n, idx_dim] in one call.
        ``index`` gives the weight of the norm and the tables of the rotation."""
        keywords = self._rule("indexer", rule)
        check_steps("indexer", self.declaration, steps)
        check_values("indexer", self.declaration, q_idx=q_idx, raw=raw)
        arguments = {"q_idx": self._typed("index_query", q_idx), "raw": self._typed("raw_keys", raw)}
        arguments |= {"weight": index.weight, "rope": index.rope, "steps": steps}
        result, _ = self.kernel.call("indexer", arguments, keywords)
        return self._ids("indexer", result, steps, index.geometry)

    def sparse_attention(
        self,
        q: np.ndarray,
        q_idx: np.ndarray,
        raw: np.ndarray,
        index: Index,
        kv: Any,
        steps: np.ndarray,
        rule: str = "blocks",
    ) -> np.ndarray:
        """[rows, n_head, head_dim]: indexer and attention in one call; arguments as :meth:`indexer` and :meth:`attend`
        have them."""
        keywords = self._rule("sparse_attention", rule)
        check_values("sparse_attention", self.declaration, q_idx=q_idx, raw=raw)
        none = np.full((len(q), 1), -1, np.int32)
        unselected = steps.copy()
        unselected[:, 3] = 0
        given = self._attend_arguments("sparse_attention", q, kv, none, unselected, None)
        arguments = {"q": given["q"], "q_idx": self._typed("index_query", q_idx)}
        arguments |= {"raw": self._typed("raw_keys", raw), "weight": index.weight, "rope": index.rope}
        arguments |= {"kv": kv, "steps": steps}
        return self.kernel.array("sparse_attention", self.kernel.call("sparse_attention", arguments, keywords)[0])

    def _rule(self, name: str, rule: str) -> dict[str, Any]:
        self.kernel.function(name)
        check_rule(name, self.declaration, rule)
        return {"rule": rule} if self.kernel.takes(name, "rule") else {}

    def _schedule(self, name: str, schedule: str | None) -> dict[str, Any]:
        """The keyword for a schedule, none for None: the standing one."""
        if schedule is None:
            return {}
        if not self.kernel.takes(name, "schedule"):
            raise UnsupportedError(f"{name}: schedule {schedule}: the function takes no schedule")
        return {"schedule": schedule}

    def _ids(self, name: str, result: Any, steps: np.ndarray, geometry: Geometry) -> np.ndarray:
        if self.arithmetic == "exact":
            return self.kernel.array(name, result)
        rows = rows_of(result)
        rows = list(self.kernel.array(name, result)) if rows is None else [self.kernel.array(name, row) for row in rows]
        return to_cells(rows, steps, self.declaration.ids, geometry)

    def append_kv(self, k: np.ndarray, v: np.ndarray, kv: KV, steps: np.ndarray, slots: Any = None) -> KV:
        """The PagedKV (or list of them) after appending; the one given may have changed too."""
        self.kernel.function("append_kv")
        kvs: list[Any] = kv if isinstance(kv, list) else [kv]
        check_pools("append_kv", self.declaration, kvs, self.arithmetic)
        check_heads("append_kv", self.declaration, kvs[0].pool.geometry.n_head, *k.shape[1:])
        check_steps("append_kv", self.declaration, steps)
        arguments: dict[str, Any] = {"k": k, "v": v, "kv": kv, "steps": steps}
        if slots is not None:
            arguments["slots"] = slots
        return self.kernel.host(self.kernel.call("append_kv", arguments)[1]["kv"])

    def append_index(self, raw: np.ndarray, steps: np.ndarray, index: Index) -> Index:
        """The Index after appending; the one given may have changed too."""
        self.kernel.function("append_index")
        check_steps("append_index", self.declaration, steps)
        check_values("append_index", self.declaration, raw=raw)
        arguments = {"raw": self._typed("raw_keys", raw), "steps": steps, "index": index}
        return self.kernel.host(self.kernel.call("append_index", arguments)[1]["index"])

    def own_kv(self, k: np.ndarray, v: np.ndarray, positions: np.ndarray, capacity: int, pieces: int = 1) -> OwnKV:
        """K and V [n, kv heads, dim] float32 of cells ``positions`` [n] int64 in the backend's own storage of
        ``capacity`` cells, appended in ``pieces`` calls, with the values that it reads back."""
        shapes = self.declaration.shapes
        if shapes.context is not None and capacity > shapes.context:
            raise UnsupportedError(f"cache: {capacity} cells: declared are {shapes.context} at most (shapes.context)")
        handle = call("cache", self.kernel.function("cache"), capacity)
        for part in np.array_split(np.arange(len(positions)), pieces):
            if len(part):
                # The handle is the backend's own and is not compared.
                self._store("append", handle, k=k[part], v=v[part], positions=positions[part])
        table = np.full(capacity, -1, np.int32)
        table[positions] = np.arange(len(positions))
        paged = PagedKV(Pool("f64", max(1, len(positions)), 1), table)
        values = self.read_own(handle, positions)
        paged.pool.k.codes[: len(positions), :, 0], paged.pool.v.codes[: len(positions), :, 0] = values
        return OwnKV(handle, paged)

    def _store(self, name: str, handle: Any, **arguments: Any) -> None:
        self.kernel.call(name, {"handle": Own(handle), **arguments})

    def read_own(self, handle: Any, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(K, V) float64 [n, kv heads, dim] that the backend's own storage holds at ``positions``."""
        result = call("read", self.kernel.function("read"), handle, self.kernel.device(positions))
        k, v = (self.kernel.array("read", side).astype(np.float64) for side in result)
        shape = (len(positions), REAL.n_head_kv, REAL.head_dim)
        for name, side in (("K", k), ("V", v)):
            if side.shape != shape:
                raise ValueError(f"read: gave {name} of shape {list(side.shape)}: must be {list(shape)}")
        return k, v

    def own_index_of(self, raw: np.ndarray, index: Index) -> OwnIndex:
        """Raw keys [n, idx_dim] of cells 0 to n - 1 in the backend's own index. ``index``, a filled one of the
        reference in float64, gives the tables; its pooled keys are replaced by those read back."""
        make = self.kernel.function("index_cache")
        tables = (self.kernel.device(table) for table in (index.weight, index.rope, index.rope0))
        handle = call("index_cache", make, index.max_blocks, *tables)
        self._store("index_append", handle, raw=self._typed("raw_keys", raw), positions=np.arange(len(raw)))
        blocks = np.arange(len(raw) // index.geometry.ratio)
        if len(blocks):
            keys = call("index_read", self.kernel.function("index_read"), handle, self.kernel.device(blocks))
            index.pooled[: len(blocks)] = self.kernel.array("index_read", keys)
        return OwnIndex(handle, index)
