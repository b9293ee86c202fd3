"""What a backend declares about itself: its attribute ``declaration``, a :class:`Declaration` or a dict of its fields.

Every field has a default that fits an ordinary float32 kernel of the real geometry. Where a default is None, it depends
on the arithmetic: a backend that declares the exact one has promised an answer for every input, so its domain and
shapes are not limited and ties go to the lower index; see :meth:`Declaration.resolved`.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from qsa.reference.formats import FORMATS
from qsa.reference.geometry import REAL
from qsa.reference.index import INDEX_FORMATS
from qsa.reference.validation import InvalidError, convert

from .number_types import NUMBER_TYPES, TypeName, unit

ArithmeticName = Literal["exact", "float"]
Positive = Annotated[int, Meta(ge=1, description="an integer, 1 or more")]
IdForm = Literal["cells", "blocks"]
Invariance = Literal["repeat", "batch", "schedule", "splits", "pages", "value_scale", "value_sign", "signs", "heads"]


class Types(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Number types at the stages where a kernel rounds.

    ============  ====================================================================================================
    query         the query of ``attend``: the judge rounds it first and hands it over in this type
    kv            K and V as the backend's own storage keeps them
    scores        attention's scores, before and after their factor
    weights       the exponentials, as they meet V
    output        the result of ``attend``
    raw_keys      raw indexer keys: the judge rounds them first (llama.cpp and Strata keep fp16)
    index_keys    pooled indexer keys as the backend's own index keeps them
    index_query   the query of ``block_scores``: the judge rounds it first
    index_scores  the scores of blocks, and what selection compares
    ============  ====================================================================================================
    """

    query: TypeName = "float32"
    kv: TypeName = "float32"
    scores: TypeName = "float32"
    weights: TypeName = "float32"
    output: TypeName = "float32"
    raw_keys: TypeName = "float32"
    index_keys: TypeName = "float32"
    index_query: TypeName = "float32"
    index_scores: TypeName = "float32"


class Shapes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What sizes a backend takes; None is any.

    ============  ====================================================================================================
    heads         pairs [query heads, KV heads]
    head_dim      dims of a head
    rows          rows of one call at most
    context       cells of a sequence at most
    page_sizes    cells of a page, of our pools
    slots         slots of one call at most
    ============  ====================================================================================================
    """

    heads: list[tuple[Positive, Positive]] | None = None
    head_dim: list[Positive] | None = None
    rows: Positive | None = None
    context: Positive | None = None
    page_sizes: list[Positive] | None = None
    slots: Positive | None = None


class Domain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which unusual inputs a backend has an answer for; None is what its arithmetic says.

    ============  ====================================================================================================
    nan           NaN in a query, a key or a score
    infinity      infinities there
    subnormal     numbers below 2^-126, which many kernels flush to 0
    absent_ids    -1 among the ids of a row
    unused_rows   rows with position -1, which belong to no sequence
    absent_pages  selected cells whose page is not resident
    overflow      values that no scale of a format holds: ``append_kv`` raises and writes nothing; a device that is not
                  synchronised cannot, so that it is to be declared in the exact arithmetic too
    ============  ====================================================================================================
    """

    nan: bool | None = None
    infinity: bool | None = None
    subnormal: bool | None = None
    absent_ids: bool | None = None
    unused_rows: bool | None = None
    absent_pages: bool | None = None
    overflow: bool | None = None


class Declaration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a backend says about itself.

    ==================  ==============================================================================================
    arithmetic          ``float`` (the default), ``exact``, or a list of both; the first one is the one of a run
    types               number types, see :class:`Types`
    storage_error       largest relative error of a K or V vector in own storage; None: one rounding to ``types.kv``
    index_error         the same of a pooled indexer key in an own index; None: one rounding to ``types.index_keys``
    formats             K/V formats of our pools that ``attend`` and ``append_kv`` take; None: all of the arithmetic
    index_formats       formats of our Index that ``append_index`` and ``block_scores`` take: ``fp32``, ``int16``
    rules               selection rules that ``select`` and ``indexer`` have
    ids                 form of the ids that ``select`` gives: ``cells``, or ``blocks`` without the tail
    attend_ids          form of the ids that ``attend`` takes
    ties                ``lowest``: ties go to the lower index; ``any``
    relu_nan            what relu makes of a NaN score: ``nan``, or ``zero``
    tail_score          whether ``block_scores`` writes the score of the tail at index n_bid, its bonus included
    tail_over_infinity  whether the tail is selected before a block whose score is +inf
    invariance          what never changes a byte of a float kernel: ``repeat`` (the same call again), ``batch`` (other
                        rows beside a row), ``schedule`` (but ``split``), ``splits`` (their number), ``pages`` (their
                        size and labels); what changes the output alike: ``value_scale`` (V times a power of two),
                        ``value_sign`` (-V), ``heads`` (KV heads permuted) and, not at all, ``signs`` (-q and -K);
                        exact arithmetic has them all
    shapes, domain      see :class:`Shapes` and :class:`Domain`
    arrays              the arrays that the functions get: ``numpy``, ``torch`` or ``cupy``
    device              their device, as torch or CuPy names it: ``cpu``, ``cuda``, ``cuda:1``
    ==================  ==============================================================================================
    """

    arithmetic: ArithmeticName | list[ArithmeticName] = "float"
    types: Types = Types()
    storage_error: Annotated[float, Meta(gt=0, lt=1, description="a number between 0 and 1")] | None = None
    index_error: Annotated[float, Meta(gt=0, lt=1, description="a number between 0 and 1")] | None = None
    formats: list[str] | None = None
    index_formats: list[str] = msgspec.field(default_factory=lambda: ["fp32"])
    rules: list[Literal["blocks", "cells"]] = msgspec.field(default_factory=lambda: ["blocks", "cells"])
    ids: IdForm = "cells"
    attend_ids: IdForm = "cells"
    ties: Literal["lowest", "any"] | None = None
    relu_nan: Literal["nan", "zero"] = "nan"
    tail_score: bool | None = None
    tail_over_infinity: bool = True
    invariance: list[Invariance] = []
    shapes: Shapes = Shapes()
    domain: Domain = Domain()
    arrays: Literal["numpy", "torch", "cupy"] = "numpy"
    device: str = "cpu"

    @property
    def arithmetics(self) -> tuple[str, ...]:
        """The declared arithmetics, the one of a run first."""
        return (self.arithmetic,) if isinstance(self.arithmetic, str) else tuple(self.arithmetic)

    def resolved(self) -> "Declaration":
        """The declaration with every None replaced by the default that it stands for.

        =====================  =============================  ==========================
        field                  where exact is declared        otherwise
        =====================  =============================  ==========================
        ties                   lowest                         any
        tail_score             True                           False
        domain                 everything but overflow        nothing unusual
        shapes.heads           any                            the real ones: 24 over 2
        shapes.head_dim        any                            the real one: 256
        storage_error          one rounding to types.kv       the same
        index_error            one rounding to its type       the same
        =====================  =============================  ==========================
        """
        exact = "exact" in self.arithmetics
        shapes = self.shapes
        if not exact:
            shapes = replace(
                shapes,
                heads=[(REAL.n_head, REAL.n_head_kv)] if shapes.heads is None else shapes.heads,
                head_dim=[REAL.head_dim] if shapes.head_dim is None else shapes.head_dim,
            )
        domain = {name: value for name, value in msgspec.structs.asdict(self.domain).items() if value is not None}
        return replace(
            self,
            ties=self.ties or ("lowest" if exact else "any"),
            tail_score=exact if self.tail_score is None else self.tail_score,
            storage_error=unit(self.types.kv) if self.storage_error is None else self.storage_error,
            index_error=unit(self.types.index_keys) if self.index_error is None else self.index_error,
            shapes=shapes,
            domain=Domain(**dict.fromkeys(Domain.__struct_fields__, exact) | {"overflow": False} | domain),
        )


def declared(backend: Any) -> Declaration:
    """The :class:`Declaration` of a backend, resolved; that of an ordinary float kernel where it has none.

    Raises ValueError that names the field, its value and what is allowed.
    """
    given = getattr(backend, "declaration", None)
    if isinstance(given, Declaration):
        given = msgspec.to_builtins(given)
    if given is not None and not isinstance(given, dict):
        raise ValueError(f"declaration: is a {type(given).__name__}: must be a Declaration, or a dict of its fields")
    try:
        found = convert(_plain(given or {}), Declaration, "declaration")
    except InvalidError as error:
        raise ValueError(str(error)) from None
    if not found.arithmetics:
        raise ValueError("declaration.arithmetic: is empty: must be exact, float, or a list of them")
    if not found.rules:
        raise ValueError("declaration.rules: is empty: must have blocks, cells, or both")
    if found.arrays == "numpy" and found.device != "cpu":
        raise ValueError(f"declaration.device: {found.device!r}: goes with arrays torch or cupy")
    if "exact" in found.arithmetics and any(value != "float32" for value in msgspec.structs.astuple(found.types)):
        raise ValueError("declaration.types: the exact arithmetic is defined for float32 arguments alone")
    for name in found.formats or ():
        if name not in FORMATS:
            raise ValueError(f"declaration.formats: {name!r}: allowed are {', '.join(FORMATS)}")
    if not found.index_formats:
        raise ValueError(f"declaration.index_formats: is empty: must have some of {', '.join(INDEX_FORMATS)}")
    for name in found.index_formats:
        if name not in INDEX_FORMATS:
            raise ValueError(f"declaration.index_formats: {name!r}: allowed are {', '.join(INDEX_FORMATS)}")
    return found.resolved()


def _plain(value: Any) -> Any:
    """``value`` with tuples and sets as lists, which is how JSON and the checks have them."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


__all__ = ["NUMBER_TYPES", "Declaration", "Domain", "Shapes", "Types", "declared"]
