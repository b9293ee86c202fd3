"""``--shard K/N``: a part of the cases, for N runs on as many machines or devices.

Which shard a case is in depends on its case string and on N alone: a case that is added or left out moves no other, and
every machine agrees, whatever the order of the cases.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import xxhash

from ..suite import Case

MOST = 4096
"""Largest number of shards."""


@dataclass(frozen=True)
class Shard:
    """Shard ``number`` of ``count``, from 1 on."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def parse(text: str) -> Shard:
    """The shard that ``K/N`` names. Raises ValueError unless 1 <= K <= N <= :data:`MOST`."""
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text, re.ASCII)
    shard = Shard(*map(int, found.groups())) if found else Shard(0, 0)
    if not 1 <= shard.number <= shard.count <= MOST:
        raise ValueError(f"--shard = {text!r}: must be K/N with 1 <= K <= N <= {MOST}, such as 2/8")
    return shard


def number_of(text: str, count: int) -> int:
    """The number, from 1 to ``count``, of the shard that the case ``text`` is in."""
    return xxhash.xxh3_64_intdigest(text.encode()) % count + 1


def chosen(cases: Iterable[Case], shard: Shard) -> list[Case]:
    """Those of ``cases`` that are in ``shard``."""
    return [case for case in cases if number_of(case.text, shard.count) == shard.number]


def missing(texts: Sequence[str]) -> list[str]:
    """The shards that are lacking beside those that ``texts`` name (``K/N`` each), so that all N of N are there."""
    shards = {parse(text) for text in texts}
    return [
        str(Shard(number, count))
        for count in sorted({shard.count for shard in shards})
        for number in range(1, count + 1)
        if Shard(number, count) not in shards
    ]
