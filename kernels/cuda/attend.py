"""``attend`` on CUDA: the exact arithmetic in every schedule; the float one is in ``attend_float``.

One kernel (attend_exact/kernel.py) serves every schedule of the exact arithmetic; one or two rows of int8 have another
(attend_few/kernel.py) where the table of ``common/defaults.py`` says so. All give the same bytes. A schedule only says
how many blocks share a row:

==========  =======================================================================================================
schedule    blocks that share a row and KV head
==========  =======================================================================================================
``batch``   as many as leave no multiprocessor without a block: one wave, one block each
``multi``   the same, by the engines' name for several slots
``prompt``  the same
``step``    the same, a row at a time
``split``   up to 20, at most two blocks per multiprocessor over all rows, or one where no second fits; int8 alone
==========  =======================================================================================================

Rows of int8 on sm_90 go in a cluster of blocks each, which tell each other by way of shared memory, where the table of
``common/defaults.py`` has a size of which the device holds all clusters at once; the driver says how many it holds.
Otherwise, and in the schedule ``split``, blocks tell each other by way of the scratch. With the switch split_attn at 0
only a single row is a cluster, of 13 blocks. Slots of one format take one launch, however many they are; slots of
several formats a launch for each format. Widths, ids and page tables are read on the device: a captured graph follows
them. The slots' pools are those of the call: a graph keeps those of its capture. Source: design sections 4, 5 and 8.
"""

from collections.abc import Sequence
from typing import Any, Literal

from ..ops import WINDOW_ROWS, refuse
from ..switches import ARITHMETICS, switches
from .attend_exact.plan import make_plan, new_scratch, row_blocks, scratch_words
from .attend_float.launch import attend_float, make_float_plan
from .common.checks import check_count, check_schedule, check_splits, listed
from .common.plans import Plan, PlanCache, check_plan
from .common.pools import NAME, check_attend, kinds_of, run_over
from .device.containers import DeviceKV
from .toolchain.compiler import array_module, stream_key
from .toolchain.host import DeviceArray

__all__ = ["attend", "new_scratch", "plan_attend", "row_blocks", "scratch_words"]

_plans = PlanCache()


def attend(
    q: DeviceArray,
    kv: DeviceKV | Sequence[DeviceKV],
    ids: DeviceArray,
    steps: DeviceArray,
    slots: DeviceArray | None = None,
    out: DeviceArray | None = None,
    *,
    schedule: str | None = None,
    splits: int | None = None,
    arithmetic: str | None = None,
    scratch: DeviceArray | None = None,
    stream: Any = None,
    plan: Plan | None = None,
) -> DeviceArray | Literal[False]:
    """Attention of every row over its selected cells; all arrays on the device, C-contiguous.

    q           [rows, n_head, 256] float32, normed and rotated by position
    kv          a DeviceKV, or a list of them with ``slots`` [rows] int32 naming each row's; a row that names none of
                them is left unwritten. Of one DeviceKV alone the rows are all its own, and ``slots`` need not be given.
                int8 V scales are not negative, as ``append_kv`` writes them
    ids         [rows, cap] int32; -1, cells beyond the page table and cells whose page is not resident are not selected
    steps       [rows, 4] int32; the first ``width`` ids of each row are its cells
    out         [rows, n_head, 256] float32, or None: a new array
    schedule    see the module; None: ``split`` where ``splits`` are given, and under the switch split_attn where that
                fits and the call has the rows of a window (8 at most), else ``batch``
    splits      1 to MAX_SPLITS, for ``split`` alone; None: chosen
    arithmetic  ``exact``, ``float``, or None: the switch QSA_ARITHMETIC
    scratch     of :func:`new_scratch` and :func:`scratch_words`, or None: one kept for the device and stream. For the
                float arithmetic as ``attend_float`` says
    stream      a CuPy stream; None: the current one
    plan        of :func:`plan_attend`, which has chosen schedule, splits, arithmetic and scratch; None: that of an
                earlier call like this one, or a new one

    Returns ``out``: 0 for a row that selects nothing; a query that is not finite makes its own row and head NaN.
    Returns False before any launch for a format outside the exact arithmetic and, in its split schedule, one other than
    int8 (``format``; the float arithmetic as ``attend_float`` says), for a split on a device before sm_80 (``device``),
    for a head_dim other than 256, more than 12 heads to a KV head, or more cells than a row's blocks can hold
    (``geometry``), and for a scratch that is too small or of another type (``scratch``). Raises ValueError on
    mismatched arrays, an unknown schedule or arithmetic, splits that do not fit, and on a plan of another stream,
    device, shape or kind of K/V. Page tables are checked when a :class:`~qsa.kernels.cuda.device.containers.DeviceKV`
    is made and by its ``set_table``; nothing is synchronised here to check them again.
    """
    if plan is not None:
        decided = {"schedule": schedule, "splits": splits, "arithmetic": arithmetic, "scratch": scratch}
        return _with_plan(plan, q, kv, ids, steps, slots, out, decided, stream)
    if schedule is None and splits is None and _split_by_switch(kv, len(q)):
        answer = attend(
            q, kv, ids, steps, slots, out, schedule="split", arithmetic=arithmetic, scratch=scratch, stream=stream
        )
        # What does not fit, a format or a scratch, keeps the schedule it had.
        if answer is not False:
            return answer
    if schedule is None:
        schedule = "batch" if splits is None else "split"
    if _arithmetic(arithmetic) == "float":
        return attend_float(q, kv, ids, steps, slots, out, schedule, splits, scratch, stream)
    kvs = [kv] if isinstance(kv, DeviceKV) else listed(kv)
    key, known = _plans.find(
        lambda: (
            *(stream_key(stream), q.shape, ids.shape, slots is None, schedule, splits, switches().split_attn is False),
            None if scratch is None else (scratch.shape, scratch.dtype, scratch.flags.c_contiguous),
            *((held.pool.format, id(held.pool.geometry)) for held in kvs),
        )
    )
    if known is None:
        check_attend(q, kvs, ids, steps, slots, out, schedule, splits)
        rows, cap = ids.shape
        made = make_plan(kvs, rows, cap, schedule, splits, slots is not None, scratch, stream)
        if isinstance(made, str):
            return refuse(NAME, made)
        known = _plans.keep(key, made)
    out = array_module().empty(q.shape, "float32") if out is None else out
    given = (() if slots is None else (slots,)) + (() if scratch is None else (scratch,))
    run_over(kvs, known, (q, ids, steps, out, *given), stream)
    return out


def _split_by_switch(kv, rows):
    """Whether the switch split_attn gives a call the schedule ``split``. Another format than int8 is a refusal of it,
    also where the schedule by name takes one."""
    if not switches().split_attn or rows > WINDOW_ROWS:
        return False
    kvs = [kv] if isinstance(kv, DeviceKV) else listed(kv)
    if any(held.pool.format != "int8" for held in kvs):
        return refuse(NAME, "format")
    return True


def _arithmetic(arithmetic):
    """The arithmetic of a call: ``arithmetic``, or what the switch says where that is None."""
    arithmetic = switches().arithmetic if arithmetic is None else arithmetic
    if arithmetic not in ARITHMETICS:
        raise ValueError(f"arithmetic = {arithmetic!r}: allowed are {' and '.join(ARITHMETICS)}")
    return arithmetic


def plan_attend(
    kv: DeviceKV | Sequence[DeviceKV],
    rows: int,
    cap: int,
    *,
    with_slots: bool | None = None,
    schedule: str | None = None,
    splits: int | None = None,
    arithmetic: str | None = None,
    stream: Any = None,
) -> Plan | Literal[False]:
    """A plan of :func:`attend` for calls of ``rows`` rows whose ids have room for ``cap`` cells, over K/V of these
    formats and this geometry: of ``kv``, or as many others like it.

    with_slots  whether calls give ``slots``; None: where ``kv`` is a list of several

    The other arguments, the refusals (False, counted) and ValueError are those of :func:`attend`. The kernels are
    compiled and the scratch is made here, so that the calls can be captured. The plan holds no pool: calls give theirs.
    """
    kvs = listed(kv)
    check_count("rows", rows)
    check_count("cap", cap)
    with_slots = len(kvs) > 1 if with_slots is None else with_slots
    if len(kvs) > 1 and not with_slots:
        raise ValueError(f"with_slots = {with_slots}: kv is a list of {len(kvs)}, whose rows must name their slots")
    if schedule is None and splits is None and _split_by_switch(kvs, rows):
        options = {"with_slots": with_slots, "arithmetic": arithmetic, "stream": stream}
        answer = plan_attend(kvs, rows, cap, schedule="split", **options)
        if answer is not False:
            return answer
    if schedule is None:
        schedule = "batch" if splits is None else "split"
    check_schedule(NAME, schedule)
    check_splits(schedule, splits)
    exact = _arithmetic(arithmetic) == "exact"
    make = make_plan if exact else make_float_plan
    made = make(kvs, rows, cap, schedule, splits, with_slots, None, stream)
    return refuse(NAME, made) if isinstance(made, str) else made


def _with_plan(plan, q, kv, ids, steps, slots, out, given, stream):
    """:func:`attend` with a plan of :func:`plan_attend`."""
    kvs = [kv] if isinstance(kv, DeviceKV) else listed(kv)
    check_plan(plan, NAME, kinds_of(kvs), stream, **given)
    inputs = (q, ids, steps)
    if out is None:
        plan.addresses(inputs)
        out = array_module().empty(q.shape, "float32")
    run_over(kvs, plan, (*inputs, out) if slots is None else (*inputs, out, slots), stream)
    return out
