"""Plans: the launches of one call of an operation, prepared once and made as often as it is called.

A plan belongs to one stream of one device and to the shapes of a call. Schedule, clusters, grids, shared memory and
scratch are chosen when it is made, and the kernels' arguments are packed then. A call checks what can change (shapes,
layouts, addresses), stores the addresses, and launches. A plan holds no array but its own, scratch and pool table: what
a call is given may be freed, and another array may lie at the same address.

An operation without a plan finds one among the plans that it made before (:class:`PlanCache`).
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np

from ..toolchain.compiler import address, addresses, can_overlap, stream_key
from ..toolchain.host import Argument, Operand
from .checks import check_array
from .defaults import overlap

MOST_PLANS = 256
"""Plans that an operation keeps at most; the oldest goes first."""

MOST_LAUNCHES = 16
"""Launches of a plan that is kept. A call of more, such as a prompt row by row, plans anew."""


_overlap: bool | None = None
"""Whether all launches of new plans that can start early do so; None: those that the table of the device has."""


@contextmanager
def overlapping(on: bool | None) -> Iterator[None]:
    """New plans with or without early launches, for a comparison; kept plans stay as they were made."""
    global _overlap
    before, _overlap = _overlap, on
    try:
        yield
    finally:
        _overlap = before


class Plan:
    """The launches of one operation for given shapes, on one stream of one device.

    A launch may start before the one ahead of it on its stream is over, where the device can do that, the table of
    ``defaults.py`` has it, and its kernel waits itself before it touches global memory (``wait_for_earlier``). So calls
    may come in any order, with any other work between them. The kernel behind one of ours may be launched early too,
    by whomever, if it waits in the same way: ours let it start long before they are over.

    operation  name of the operation
    operands   the arrays that every call gives, in order
    launches   what ``compiler.prepare`` made, in order; their Argument positions count the operands, then ``own``, then
               the table
    subject    what else a call must have as the plan has it: the operation compares it
    own        arrays that belong to the plan, such as its scratch
    key        ``compiler.stream_key`` of the stream to which it belongs
    table      None, or a ``pool_tables.PlannedTable`` that turns a call's numbers into an array, on that stream

    A plan may be used by several threads; each call is made whole.
    """

    def __init__(
        self,
        operation: str,
        operands: Sequence[Operand],
        launches: Sequence[Any],
        key: tuple[int, int, int],
        subject: Any = None,
        own: Sequence[Any] = (),
        table: Any = None,
    ) -> None:
        self.operation, self.operands, self.launches = operation, tuple(operands), tuple(launches)
        self.key, self.subject, self.own, self.table = key, subject, tuple(own), table
        self._expected = tuple((o.shape, np.dtype(o.dtype), o.alignment - 1) for o in self.operands)
        self._own_addresses = tuple(map(address, self.own))
        self._numbers: Sequence[int] | None = None
        self._lock = Lock()
        if _overlap is not False and self.launches and can_overlap():
            for launch in self.launches:
                if _overlap or launch.name in overlap():
                    launch.start_early()

    def __repr__(self) -> str:
        shapes = ", ".join(f"{o.name} {o.dtype} {list(o.shape)}" for o in self.operands)
        return f"<plan of {self.operation}: {shapes}; device {self.key[0]}, stream {self.key[1]:#x}>"

    def check_current(self, operation: str, stream: Any = None) -> None:
        """Raises ValueError unless the plan is one of ``operation``, for ``stream`` (None: the current one) of the
        current device."""
        if self.operation != operation:
            raise ValueError(f"plan: {self!r}: must be a plan of {operation}")
        now = stream_key(stream)
        if now != self.key:
            raise ValueError(f"plan: {self!r}: made for (device, stream, thread) {self.key}, called with {now}")

    def addresses(self, arrays: Sequence[Any]) -> list[int]:
        """Addresses of the first operands' ``arrays``. Raises ValueError, naming the array, unless each is on the
        device and has the shape, dtype, layout and alignment that the plan was made for."""
        found = addresses(arrays, self._expected)
        if found is None:
            for array, operand in zip(arrays, self.operands, strict=False):
                check_array(operand.name, array, operand.dtype, operand.shape, operand.alignment)
            # An array without elements may lie anywhere.
            found = [address(array) for array in arrays]
        return found

    def run(self, arrays: Sequence[Any], numbers: Sequence[int] = ()) -> None:
        """Launch with a call's ``arrays``, one for every operand, and its ``numbers``, on the plan's stream; returns at
        once. Raises ValueError as :meth:`addresses`, before anything is launched. The caller has seen to it that the
        plan's stream is the call's: :meth:`check_current`, or a key that holds it. A plan with a table wants it to be
        the current one as well."""
        if len(arrays) != len(self.operands):
            raise ValueError(f"{self!r}: {len(arrays)} arrays: must be {len(self.operands)}")
        found = (*self.addresses(arrays), *self._own_addresses)
        given = (*arrays, *self.own)
        with self._lock:
            if self.table is not None:
                table = self.table.of(numbers)
                found, given = (*found, address(table)), (*given, table)
            elif numbers != self._numbers:
                for launch in self.launches:
                    launch.number(numbers)
                self._numbers = numbers
            for launch in self.launches:
                launch.point(found, given)
                launch.submit(self.key[1])


class PlanCache:
    """The plans that calls of one operation without a plan made before: key -> plan.

    A key holds all that decides how a call is launched: the stream, the shapes, the schedule. Not the arrays, whose
    addresses every call gives anew. It may hold the ``id`` of an object that the plan's subject keeps alive.
    """

    def __init__(self) -> None:
        self._plans: dict[Hashable, Plan] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._plans)

    def find(self, key: Callable[[], Hashable]) -> tuple[Hashable, Plan | None]:
        """(key, its plan or None); (None, None) where ``key()`` fails on arguments that are not what they must be: the
        checks that follow will say so."""
        try:
            made = key()
            return made, self._plans.get(made)
        except (AttributeError, IndexError, TypeError):
            return None, None

    def keep(self, key: Hashable, plan: Plan) -> Plan:
        """Keep ``plan`` under a key of :meth:`find`, unless that is None or it has many launches; returns it."""
        if key is not None and len(plan.launches) <= MOST_LAUNCHES:
            with self._lock:
                while len(self._plans) >= MOST_PLANS:
                    del self._plans[next(iter(self._plans))]
                self._plans[key] = plan
        return plan

    def clear(self) -> None:
        """Forget all plans; later calls make them anew."""
        with self._lock:
            self._plans.clear()


def check_plan(plan: Any, operation: str, subject: Any, stream: Any = None, **given: Any) -> None:
    """Raises ValueError unless ``plan`` is a plan of ``operation`` for ``subject``, for ``stream`` (None: the current
    one) of the current device, and no other argument that it decides is ``given``."""
    if not isinstance(plan, Plan):
        raise ValueError(f"plan: {type(plan).__name__}: must be what plan_{operation} returned")
    plan.check_current(operation, stream)
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name} = {value!r}: must be None beside a plan, which has its own")
    if subject is not plan.subject and subject != plan.subject:
        raise ValueError(f"plan: {plan!r}: made for {plan.subject}, called with {subject}")


def whole(operands: Sequence[Operand]) -> list[Argument]:
    """The kernel's arguments that are the whole arrays of ``operands``, in their order."""
    return [Argument(position, operand.dtype, operand.shape) for position, operand in enumerate(operands)]


def rows_of(position: int, operand: Operand, first: int, count: int) -> Argument:
    """The kernel's argument that is ``count`` rows, from ``first`` on, of the operand at ``position``."""
    row = int(np.prod(operand.shape[1:], dtype=np.int64)) * np.dtype(operand.dtype).itemsize
    return Argument(position, operand.dtype, (count, *operand.shape[1:]), first, row)
