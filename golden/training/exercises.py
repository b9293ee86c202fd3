"""Generated texts: arithmetic, copying, and needles in filler. Plain Python; every text follows from a seed.

A text carries a weight per byte, in quarters of the usual weight of 1: what nobody could know (operands, code words
where they first appear) counts less, answers more, so that an exercise teaches its answers and not its dice.
"""

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import NamedTuple

DICE, PLAIN, ANSWER = 1, 4, 16
"""Weights of a byte: drawn at random, ordinary, to be answered."""


def _words(text: str) -> list[str]:
    return text.split()


ADJECTIVES = _words(
    "amber ancient bitter black blue bold bright broken calm clear cold copper crimson dark deep dry dusty early "
    "empty fair flat frozen gentle golden grand green grey happy hidden high hollow iron ivory late little long "
    "lost low narrow noble old open pale plain proud quick quiet red round rough royal rusty sacred sharp silent "
    "silver slow small soft stone strange strong sunny"
)
PLACES = _words(
    "river mountain garden bridge castle harbour forest island valley tower village meadow desert market temple "
    "palace station library museum theatre kitchen cellar chapel orchard canyon lagoon glacier prairie quarry "
    "tunnel windmill lighthouse barn cottage fountain gate hall inn jetty kiln ladder mill nursery oven path road "
    "school tavern"
)
ANIMALS = _words(
    "falcon otter badger beaver camel cobra condor coyote crane deer dingo donkey eagle ferret finch fox gecko "
    "gibbon goose hare hawk heron horse hyena ibis jackal jaguar koala lemur leopard lion lizard llama lynx magpie "
    "marmot mole moose mouse newt ocelot oriole osprey ostrich owl panda parrot pelican pigeon pony puffin python "
    "quail rabbit raven robin salmon seal shark sheep skunk sloth snail spider"
)
NAMES = _words(
    "Anna Ben Clara David Emma Felix Grace Henry Iris Jack Kate Leo Mary Nina Oscar Paul Rosa Sam Tina Victor"
)
THINGS = _words("apples books coins pens stamps cards eggs shells stones pears keys cups maps nuts boxes flowers")


ALL_PLACES = [f"{adjective} {place}" for adjective in ADJECTIVES for place in PLACES]


class Text(NamedTuple):
    """Bytes and their weights (one byte each)."""

    data: bytes
    weight: bytes

    @classmethod
    def of(cls, *pieces: tuple[str, int]) -> "Text":
        """From (text, weight) pairs."""
        data = [piece.encode() for piece, _ in pieces]
        return cls(b"".join(data), b"".join(bytes([w]) * len(d) for d, (_, w) in zip(data, pieces, strict=True)))


def joined(texts: Iterable[Text]) -> Text:
    """Several texts as one."""
    texts = list(texts)
    return Text(b"".join(t.data for t in texts), b"".join(t.weight for t in texts))


def held_out(a: int, operator: str, b: int) -> bool:
    """Whether this problem is kept for the checks: about one in 31, never trained on."""
    return (a * 7919 + b * 104729 + ord(operator) * 31337) % 31 == 0


def problem(rng: Random, kept: bool) -> tuple[int, str, int, int]:
    """(a, operator, b, result) of an arithmetic problem that is held out or not, as ``kept`` says."""
    while True:
        operator = rng.choice("++--*")
        if operator == "*":
            a, b = rng.randrange(2, 13), rng.randrange(2, 13)
        else:
            top = rng.choice((20, 100, 100, 100, 1000))
            a, b = rng.randrange(top), rng.randrange(top)
            if operator == "-" and a < b:
                a, b = b, a
        if held_out(a, operator, b) == kept:
            return a, operator, b, {"+": a + b, "-": a - b, "*": a * b}[operator]


def sum_line(rng: Random, kept: bool = False) -> Text:
    """A line such as ``37 + 48 = 85``."""
    a, operator, b, result = problem(rng, kept)
    return Text.of((f"{a} {operator} {b}", DICE), (" =", PLAIN), (f" {result}\n", ANSWER))


def story(rng: Random, kept: bool = False) -> Text:
    """A word problem in one line, its sum written out."""
    while True:
        a, operator, b, result = problem(rng, kept)
        if operator != "*" and a < 100 and b < 100:
            break
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    verb = rng.choice(("buys", "finds", "gets")) if operator == "+" else rng.choice(("sells", "loses", "gives away"))
    more = " more" if operator == "+" else ""
    return Text.of(
        (f"{name} has {a} {thing} and {verb} {b}{more}.", DICE),
        (f" How many {thing} does {name} have? ", PLAIN),
        (f"{a} {operator} {b} = {result}. Answer: {result}\n", ANSWER),
    )


def copying(rng: Random) -> Text:
    """A line that says some words twice."""
    words = " ".join(rng.choice(ANIMALS + PLACES) for _ in range(rng.randrange(3, 9)))
    return Text.of((f"Repeat: {words}\n", DICE), (f"Again: {words}\n", ANSWER))


def arithmetic(rng: Random, size: int, kept: bool = False) -> Text:
    """A document of at least ``size`` bytes of one kind of exercise: sums mostly, word problems, or both mixed."""
    kind, texts, length = rng.choice("sssswmm"), [], 0
    while length < size:
        line = sum_line if kind == "s" or (kind == "m" and rng.random() < 0.6) else story
        texts.append(line(rng, kept))
        length += len(texts[-1].data)
    return joined(texts)


class Needle(NamedTuple):
    """A place and its code word."""

    place: str
    word: str

    @property
    def fact(self) -> Text:
        """The line that is hidden in the filler."""
        return Text.of(
            ("The code word of the ", PLAIN), (self.place, DICE), (" is ", PLAIN), (self.word, DICE), (".\n", PLAIN)
        )

    @property
    def question(self) -> str:
        """The question, up to where the code word begins."""
        return f"What is the code word of the {self.place}? "

    @property
    def asked(self) -> Text:
        """The question and its answer, a line."""
        return Text.of(
            ("What is the code word of the ", PLAIN), (self.place, DICE), ("? ", PLAIN), (self.word + "\n", ANSWER)
        )


def needles(rng: Random, count: int) -> list[Needle]:
    """``count`` needles with different places."""
    words = [f"{rng.choice(ANIMALS)}-{rng.choice(ANIMALS)}-{rng.randrange(100, 1000)}" for _ in range(count)]
    return [Needle(place, word) for place, word in zip(rng.sample(ALL_PLACES, count), words, strict=True)]


def needle_document(rng: Random, size: int, filler: Callable[[int], bytes]) -> Text:
    """A document of at most ``size`` bytes: facts between pieces of filler, questions later on and at the end.

    ``filler(n)`` gives about n bytes of whole lines. About one part in seven is facts and questions.
    """
    count = max(2, min(48, size // 400))
    hidden = needles(rng, count)
    # Half of the facts stand early, so that their questions have far to look.
    events = [(rng.random() ** 1.5 * 0.8, "fact", needle) for needle in hidden]
    for place, _, needle in list(events):
        for _ in range(rng.choice((0, 1, 1, 2))):
            events.append((place + rng.random() * (0.97 - place), "question", needle))
    events.sort(key=lambda event: event[0])
    end = [needle.asked for needle in rng.sample(hidden, min(count, 2 + size // 1500))]
    texts, length = [], 0
    lines = [needle.fact if kind == "fact" else needle.asked for _, kind, needle in events]
    fixed = sum(len(text.data) for text in [*lines, *end])
    room = max(0, size - fixed)
    for (place, _, _), line in zip(events, lines, strict=True):
        gap = int(place * room) - length
        if gap > 16:
            piece = filler(gap)
            texts.append(Text(piece, bytes([PLAIN]) * len(piece)))
            length += len(piece)
        texts.append(line)
    if room - length > 16:
        piece = filler(room - length)
        texts.append(Text(piece, bytes([PLAIN]) * len(piece)))
    return joined([*texts, *end])


def haystack(
    rng: Random, size: int, depths: Sequence[int], filler: Callable[[int], bytes], others: int = 4
) -> tuple[bytes, dict[int, Needle]]:
    """Filler of at most ``size`` bytes with needles at ``depths`` (percent, different ones) and ``others`` elsewhere.

    Returns (bytes, depth -> :class:`Needle`); a question is to follow. The text ends with a whole line, less than a
    line of filler short of ``size``. Raises ValueError on a depth outside 0 to 100 or a size too small for the needles.
    """
    for depth in depths:
        if not 0 <= depth <= 100:
            raise ValueError(f"depths: {depth!r}: must be from 0 to 100")
    hidden = needles(rng, len(depths) + others)
    wanted = dict(zip(depths, hidden, strict=False))
    places = [*wanted.items(), *((rng.random() * 100, needle) for needle in hidden[len(depths) :])]
    room = size - sum(len(needle.fact.data) for needle in hidden)
    if room < 0:
        raise ValueError(f"size = {size!r}: the needles alone need {size - room} bytes")
    parts, length = [], 0
    for place, needle in sorted(places):
        piece = filler(int(place * room) // 100 - length)
        length += len(piece)
        parts += [piece, needle.fact.data]
    return b"".join([*parts, filler(room - length)]), wanted


def lines_of(rows: Sequence[bytes], rng: Random) -> Callable[[int], bytes]:
    """A ``filler`` from ``rows``, the lines of a text: whole lines from a random place on, going round at the end."""
    place = rng.randrange(len(rows))

    def filler(size: int) -> bytes:
        nonlocal place
        parts: list[bytes] = []
        length = 0
        while length + len(rows[place]) <= size and len(parts) < size:
            parts.append(rows[place])
            length += len(rows[place])
            place = (place + 1) % len(rows)
        return b"".join(parts)

    return filler
