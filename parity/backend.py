"""A backend under test: our own, or anybody's module or object with functions of ``contract/operations.py``.

Every function is optional. What a backend lacks, refuses (``Unsupported("why")``, NotImplementedError, False) or has
not declared (``contract/declaration.py``) is unsupported, with the reason. ``attend`` gets a schedule, a number of
splits and an arithmetic only when the function takes such a keyword: without ``schedule`` it has the standing schedule
alone (and ``split`` when it takes ``splits``). ``block_scores`` and ``select`` may take a ``schedule`` too.

Queries and raw keys are handed over in the number types that the backend declares, so they must hold values of that
type already: :meth:`Backend.query` and its like round them. Results come back in NumPy.
"""

from typing import Any

import numpy as np

from qsa.kernels.ops import BACKENDS
from qsa.kernels.switches import ARITHMETICS
from qsa.reference.geometry import REAL, Geometry
from qsa.reference.index import Index
from qsa.reference.kv import PagedKV

from .compare.remembered import digest
from .contract import Kernel, OwnIndex, OwnKV, UnsupportedError, declared, load, own_storage, rounded
from .contract.domain import check_heads, check_ids, check_index, check_pools, check_rule, check_steps, check_values
from .contract.ids import to_blocks, to_cells
from .contract.kernel import GUARD, Gives, call
from .contract.number_types import stored
from .isolation import RemoteKernel

__all__ = ["GUARD", "Backend", "UnsupportedError", "call"]

STORAGE = ("cache", "append", "read")
INDEX_STORAGE = ("index_cache", "index_append", "index_read")
"""Functions that a backend with own storage, or an own index, has all of."""


class Backend:
    """The backend ``name`` (design section 5) in one arithmetic, called with NumPy arrays throughout.

    ``arithmetic``: ``exact`` or ``float``; None is the first that the backend declares. ``kernel``: where its functions
    run, in this process unless given. ``declaration`` is what it declares. ``experiments``: whether a wrong result is
    taken apart by more calls (``compare/experiments.py``); not where calls are recorded, or only the verdict counts.
    Every operation raises :class:`UnsupportedError` when the backend lacks it, refuses it or has not declared such
    inputs, ValueError when its result is not an array of the right kind, ChangedInputError when it changed an input,
    and whatever the backend itself raises. Raises ValueError on an unknown name or arithmetic, an arithmetic that the
    backend does not declare, or a declaration that does not fit.
    """

    def __init__(self, name: str, arithmetic: str | None = None, kernel: Kernel | RemoteKernel | None = None) -> None:
        if arithmetic is not None and arithmetic not in ARITHMETICS:
            raise ValueError(f"arithmetic = {arithmetic!r}: allowed are {', '.join(ARITHMETICS)}")
        self.name = name
        self.results: list[str] | None = None
        self.experiments = True
        self.kernel = kernel or _in_process(name)
        self.declaration = self.kernel.declaration
        known = self.declaration.arithmetics
        self.arithmetic = known[0] if arithmetic is None else arithmetic
        if self.arithmetic not in known:
            raise ValueError(f"arithmetic = {arithmetic!r}: backend {name!r} declares {', '.join(known)}")
        if self.arithmetic == "exact" and self.own_storage:
            text = "cache, append and read: the exact arithmetic is defined over our pools: define append_kv, or none"
            raise ValueError(f"backend = {name!r}: {text}")

    def __eq__(self, other: object) -> bool:
        """Whether the two are the same functions in the same arithmetic: what is made with one stands for the other."""
        if type(self) is not type(other) or not isinstance(other, Backend) or self.arithmetic != other.arithmetic:
            return False
        return self.kernel is other.kernel or (self.name == other.name and self.name in BACKENDS)

    def __hash__(self) -> int:
        return hash((self.name, self.arithmetic))

    def in_arithmetic(self, arithmetic: str) -> "Backend":
        """The same functions in another arithmetic that the backend declares."""
        return Backend(self.name, arithmetic, self.kernel)

    @property
    def module(self) -> Any:
        """The backend's module or object, where it runs in this process."""
        return self.kernel.module if isinstance(self.kernel, Kernel) else None

    def has(self, operation: str) -> bool:
        """Whether the backend defines ``operation``."""
        return self.kernel.has(operation)

    def _run(
        self,
        name: str,
        arguments: dict[str, Any],
        keywords: dict[str, Any] | None = None,
        gives: Gives = "array",
        guarded: Any = None,
    ) -> Any:
        """The result of one call, as :meth:`Kernel.run` has it."""
        self.require(name)
        result = self.kernel.run(name, arguments, keywords or {}, gives, guarded)
        if self.results is not None and gives != "own":
            self.results.append(digest(name, result))
        return result

    def require(self, name: str) -> None:
        """Raises UnsupportedError where the backend has no function ``name``."""
        if not self.has(name):
            near = self.kernel.near(name)
            raise UnsupportedError(f"{name}: the backend has none{f': did you mean it by {near}?' if near else ''}")

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
        return self._run("attend", arguments, keywords, guarded=q.shape)

    def attend_gated(self, q: np.ndarray, gate: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """Attention times sigmoid(gate), in one call; gate [rows, n_head, head_dim] float32, of the query's type."""
        check_values("attend_gated", self.declaration, gate=gate)
        given = self._attend_arguments("attend_gated", q, kv, ids, steps, None)
        arguments = {"q": given.pop("q"), "gate": self._typed("query", gate), **given}
        return self._run("attend_gated", arguments)

    def attend_stages(self, q: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray, row: int) -> dict[str, Any]:
        """Intermediate arrays of ``row`` by name, as far as the backend shows them (``compare/localise.py``)."""
        arguments = self._attend_arguments("attend_stages", q, kv, ids, steps, None)
        return self._run("attend_stages", {**arguments, "row": row}, gives="named")

    def _attend_arguments(
        self, name: str, q: np.ndarray, kv: Any, ids: np.ndarray, steps: np.ndarray, slots: np.ndarray | None
    ) -> dict[str, Any]:
        """The arguments of attention as the backend takes them, found within what it declares."""
        self.require(name)
        kvs, declaration = kv if isinstance(kv, list) else [kv], self.declaration
        first = kvs[0].paged if isinstance(kvs[0], OwnKV) else kvs[0]
        if self.own_storage and not isinstance(kvs[0], OwnKV):
            raise UnsupportedError(f"{name}: K/V of our pools: the backend has its own storage (format=own)")
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
        self.require("block_scores")
        check_steps("block_scores", self.declaration, steps)
        values = index.index if isinstance(index, OwnIndex) else index
        check_index("block_scores", self.declaration, values)
        seen = slice(int(steps[:, 2].max(initial=0)))
        # A million encoded keys are not decoded for a backend that has an answer for all.
        plain = values.format == "fp32" or (self.declaration.domain.nan and self.declaration.domain.infinity)
        pooled = values.pooled[seen] if plain else values.pooled_values(seen)
        dead = values.dead if plain else values.dead_values()
        check_values("block_scores", self.declaration, q_idx=q_idx, pooled=pooled, dead=dead)
        keywords = self._schedule("block_scores", schedule)
        arguments = {"q_idx": self._typed("index_query", q_idx), "index": index, "steps": steps}
        return self._run("block_scores", arguments, keywords)

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
        self.require("select")
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
        return self._ids("select", self._run("select", arguments, keywords, gives="rows"), steps, geometry)

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
        return self._ids("indexer", self._run("indexer", arguments, keywords, gives="rows"), steps, index.geometry)

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
        return self._run("sparse_attention", arguments, keywords)

    def _rule(self, name: str, rule: str) -> dict[str, Any]:
        self.require(name)
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
            if isinstance(result, list):
                raise ValueError(f"{name}: gave a list: the exact arithmetic has one array of ids")
            return result
        return to_cells(list(result), steps, self.declaration.ids, geometry)

    def append_kv(self, k: np.ndarray, v: np.ndarray, kv: Any, steps: np.ndarray, slots: Any = None) -> Any:
        """The PagedKV (or list of them) after appending; the one given may have changed too."""
        self.require("append_kv")
        kvs: list[Any] = kv if isinstance(kv, list) else [kv]
        check_pools("append_kv", self.declaration, kvs, self.arithmetic)
        check_heads("append_kv", self.declaration, kvs[0].pool.geometry.n_head, *k.shape[1:])
        check_steps("append_kv", self.declaration, steps)
        arguments: dict[str, Any] = {"k": k, "v": v, "kv": kv, "steps": steps}
        if slots is not None:
            arguments["slots"] = slots
        return self._run("append_kv", arguments, gives="kv")

    def append_index(self, raw: np.ndarray, steps: np.ndarray, index: Index) -> Index:
        """The Index after appending; the one given may have changed too."""
        self.require("append_index")
        check_index("append_index", self.declaration, index)
        check_steps("append_index", self.declaration, steps)
        check_values("append_index", self.declaration, raw=raw)
        arguments = {"raw": self._typed("raw_keys", raw), "steps": steps, "index": index}
        return self._run("append_index", arguments, gives="index")

    def own_kv(self, k: np.ndarray, v: np.ndarray, positions: np.ndarray, capacity: int, pieces: int = 1) -> OwnKV:
        """:func:`~.contract.own_storage.store` of this backend."""
        return own_storage.store(self.kernel, k, v, positions, capacity, pieces)

    def read_own(self, handle: Any, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """:func:`~.contract.own_storage.read` of this backend."""
        return own_storage.read(self.kernel, handle, positions)

    def own_index_of(self, raw: np.ndarray, index: Index) -> OwnIndex:
        """:func:`~.contract.own_storage.store_index` of this backend; ``raw`` has values of its type."""
        return own_storage.store_index(self.kernel, self._typed("raw_keys", raw), index)


def _in_process(name: str) -> Kernel:
    """The functions of the backend ``name`` in this process. Raises ValueError when it cannot be loaded."""
    module = load(name)
    try:
        return Kernel(module, declared(module))
    except ValueError as error:
        raise ValueError(f"backend = {name!r}: {error}") from None
