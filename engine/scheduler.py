"""The scheduler: which slot a request gets, which requests a step serves, and how a window's rows are shared."""

from collections.abc import Collection, Sequence

from .request import MAX_ROWS, Request


def allocate_rows(requested: Sequence[int], rows: int = MAX_ROWS) -> list[int]:
    """Share the rows of one window among its slots.

    requested  rows that each slot can use, at least 1 each; at most ``rows`` slots
    rows       rows of the window

    Returns the rows of each slot. Every slot gets an equal share, limited to what it requested. Rows that are left over
    go one at a time to the slots that can use more, in slot order.
    """
    allocated = [min(count, rows // len(requested)) for count in requested]
    left = rows - sum(allocated)
    while left and any(given < count for given, count in zip(allocated, requested, strict=True)):
        for index, count in enumerate(requested):
            if left and allocated[index] < count:
                allocated[index] += 1
                left -= 1
    return allocated


class Scheduler:
    """Round-robin scheduling of ``slots`` slots in ``groups`` groups; slot s is in group s // (slots / groups).

    Windows rotate over the groups. Within a group they rotate over its slots when more of them decode than a window has
    rows. Prompts rotate chunk by chunk. Raises ValueError unless ``groups`` divides ``slots``.
    """

    def __init__(self, slots: int, groups: int) -> None:
        if groups < 1 or slots % groups:
            raise ValueError(f"groups = {groups}: must divide slots = {slots}")
        self.slots, self.groups = slots, groups
        self.group_size = slots // groups
        self._next_group, self._next_in_group, self._next_prompt = 0, [0] * groups, 0
        self._prefill_next = True

    def free_slot(self, occupied: Collection[int]) -> int | None:
        """The slot for a new request: the first free one of the group with the fewest ``occupied`` slots, or None."""
        free = [slot for slot in range(self.slots) if slot not in occupied]
        group_load = [sum(slot // self.group_size == group for slot in occupied) for group in range(self.groups)]
        return min(free, key=lambda slot: (group_load[slot // self.group_size], slot), default=None)

    def schedule_prefill(self, prefilling: Sequence[Request], decoding: Sequence[Request]) -> bool:
        """Whether the next step reads a prompt. Prompts and windows alternate while both wait, so neither starves."""
        if not prefilling or not decoding:
            return bool(prefilling)
        self._prefill_next = not self._prefill_next
        return not self._prefill_next

    def next_prompt(self, prefilling: Sequence[Request]) -> Request:
        """The request of ``prefilling`` whose prompt chunk runs next."""
        request = min(prefilling, key=lambda request: (_slot(request) - self._next_prompt) % self.slots)
        self._next_prompt = (_slot(request) + 1) % self.slots
        return request

    def next_window(self, decoding: Sequence[Request]) -> list[Request]:
        """The requests of ``decoding`` (one or more) that the next window serves: at most 8, all of one group."""
        for _ in range(self.groups):
            group, self._next_group = self._next_group, (self._next_group + 1) % self.groups
            members = [request for request in decoding if _slot(request) // self.group_size == group]
            if members:
                break
        first = self._next_in_group[group]
        members.sort(key=lambda request: (_slot(request) - first) % self.slots)
        chosen = members[:MAX_ROWS]
        self._next_in_group[group] = (_slot(chosen[-1]) + 1) % self.slots
        return chosen


def _slot(request: Request) -> int:
    assert request.slot is not None, "a scheduled request has a slot"
    return request.slot
