"""The report of ``qsa bench`` as typed structs: ``docs/schema/bench.schema.json`` is made of them."""

from typing import Any, Literal

from msgspec import Struct

Status = Literal["timed", "wrong", "impossible", "unsupported"]


class State(Struct, frozen=True, forbid_unknown_fields=True):
    """A processor or device at one moment, None where it is not told.

    clock_mhz      its clock; ``most_mhz`` the highest that it has
    temperature    degrees Celsius
    watts          electric power
    throttled      why the clock is lowered; of a CPU: that heat has lowered it since the run began
    load           processes that wanted to run, on average of the last minute (of the host)
    """

    clock_mhz: float | None = None
    most_mhz: float | None = None
    temperature: float | None = None
    watts: float | None = None
    throttled: tuple[str, ...] = ()
    load: float | None = None


class Rate(Struct, frozen=True, forbid_unknown_fields=True):
    """GB/s (1e9 bytes) at which a set of ``bytes`` is copied (bytes read and written counted) and read."""

    bytes: int
    copy_gb_s: float
    read_gb_s: float

    @property
    def most(self) -> float:
        """The higher of the two."""
        return max(self.copy_gb_s, self.read_gb_s)


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """What the machine can do at most, measured in the run that is judged by it.

    device       its name
    cache        bytes of the cache that ``hot`` may be served from
    rates        ascending in bytes, the last one of the memory
    small_us     microseconds of the smallest kernel, or of the smallest call of NumPy on a CPU
    least_us     microseconds that no call is faster than
    macs_per_s   8-bit multiply-adds a second at most; ``macs_source`` says from what
    """

    device: str
    cache: int
    rates: tuple[Rate, ...]
    small_us: float
    least_us: float
    macs_per_s: float
    macs_source: str


class Floor(Struct, frozen=True, forbid_unknown_fields=True):
    """What a case needs at least. ``us`` is the largest of the three times, in microseconds.

    bytes, macs  that must be read or written, and multiply-adds (of a selection comparisons)
    """

    bytes: int
    macs: int
    bytes_us: float
    macs_us: float
    least_us: float
    us: float


class Against(Struct, frozen=True, forbid_unknown_fields=True):
    """The time of the backend itself over this one's: above 1 this one is faster.

    ratio    median over the rounds, in each of which the two took turns A B B A
    p        probability of such ranks if both were equally fast (``parity/speed/verdict.py``)
    verdict  of the backend itself: FASTER, SLOWER, SAME or AMBIGUOUS
    """

    ratio: float
    p: float
    verdict: str


class Timing(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One case on one contestant. Without ``status`` timed there is no time, and ``reason`` says why.

    us        microseconds of one call: the lower quartile of the samples on a CPU, the median on a device
    contract  how it was measured
    samples   the samples in the order of measuring, microseconds
    share     the floor's share of the time
    """

    case: str
    operation: str
    parameters: dict[str, int | str]
    contestant: str
    status: Status
    reason: str = ""
    contract: str = ""
    us: float | None = None
    p10_us: float | None = None
    p90_us: float | None = None
    samples: tuple[float, ...] = ()
    floor: Floor | None = None
    share: float | None = None
    against: Against | None = None
    state: State | None = None


class Exponent(Struct, frozen=True, forbid_unknown_fields=True):
    """How the time grows along an axis: as the axis to the power of ``exponent``.

    series    case string without the axis
    axis      ``rows`` or ``context``
    last      the exponent between the last two points alone, where the constant part weighs least
    points    [value of the axis, microseconds, microseconds of the floor]
    """

    series: str
    contestant: str
    axis: str
    exponent: float
    last: float
    points: tuple[tuple[int, float, float], ...]


class Contestant(Struct, frozen=True, forbid_unknown_fields=True):
    """A backend of the run: its ``name`` in the table, the backend as it was named, the arithmetic it is judged in,
    and the hash of its sources."""

    name: str
    backend: str
    arithmetic: str
    sources: str


class Bench(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A run of ``qsa bench``. ``interrupted`` says what ended it before its end, empty where nothing did."""

    kind: Literal["bench"] = "bench"
    version: Literal[1] = 1
    environment: dict[str, Any]
    contestants: tuple[Contestant, ...]
    limits: tuple[Limits, ...]
    start: tuple[State, ...]
    end: tuple[State, ...] = ()
    timings: tuple[Timing, ...] = ()
    exponents: tuple[Exponent, ...] = ()
    seconds: float = 0.0
    interrupted: str = ""
