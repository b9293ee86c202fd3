"""Who comes next: slots for requests, and the rows of a batch window over the slots."""

from typing import NamedTuple

from .request import MAX_ROWS, Request


class Share(NamedTuple):
    """``rows`` of the next window for ``request``."""

    request: Request
    rows: int


def share_rows(wanted, rows=MAX_ROWS):
    """Rows of a window for each of at most ``rows`` slots, which want ``wanted`` [slots] (1 or more each).

    Every slot gets an equal part, as far as it wants it; what is left over goes one by one in the slots' order.
    """
    shares = [min(want, rows // len(wanted)) for want in wanted]
    left = rows - sum(shares)
    while left and any(share < want for share, want in zip(shares, wanted, strict=True)):
        for place, want in enumerate(wanted):
            if left and shares[place] < want:
                shares[place] += 1
                left -= 1
    return shares


class Turns:
    """Whose turn it is, in ``groups`` groups of the ``slots``; slot s is in group s // (slots / groups).

    Windows take turns among the groups, and within a group among its slots where more decode than a window has rows;
    prompts being read take turns chunk by chunk. Raises ValueError unless groups divides slots.
    """

    def __init__(self, slots, groups):
        if groups < 1 or slots % groups:
            raise ValueError(f"groups = {groups}: must divide slots = {slots}")
        self.slots, self.groups = slots, groups
        self.size = slots // groups
        self._group, self._next, self._prompt = 0, [0] * groups, 0
        self._prompt_first = True

    def free_slot(self, taken):
        """The slot for a new request, or None: the first free one of the group with the fewest ``taken`` slots."""
        free = [slot for slot in range(self.slots) if slot not in taken]
        crowd = [sum(slot // self.size == group for slot in taken) for group in range(self.groups)]
        return min(free, key=lambda slot: (crowd[slot // self.size], slot), default=None)

    def prompt_now(self, reading, decoding):
        """Whether the next step reads a prompt: with both kinds waiting they alternate, so neither starves."""
        if not reading or not decoding:
            return bool(reading)
        self._prompt_first = not self._prompt_first
        return not self._prompt_first

    def next_prompt(self, reading):
        """The request of ``reading`` whose chunk comes next."""
        ordered = sorted(reading, key=lambda request: (request.slot - self._prompt) % self.slots)
        self._prompt = (ordered[0].slot + 1) % self.slots
        return ordered[0]

    def next_window(self, decoding):
        """The requests of ``decoding`` that the next window serves: at most 8, of one group."""
        for _ in range(self.groups):
            group, self._group = self._group, (self._group + 1) % self.groups
            mine = [request for request in decoding if request.slot // self.size == group]
            if mine:
                break
        first = self._next[group]
        mine.sort(key=lambda request: (request.slot - first) % self.slots)
        chosen = mine[:MAX_ROWS]
        self._next[group] = (chosen[-1].slot + 1) % self.slots
        return chosen
