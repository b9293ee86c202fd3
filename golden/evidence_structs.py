"""The parts of an evidence record as typed structs, and what types cannot say in their ``validate``."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from qsa.reference.validation import LARGEST, InvalidError, convert

from . import sources
from .record import seal_of

VERSION = 1
"""Of the form of the record."""

Status = Literal["passed", "failed", "unsupported"]
Time = Annotated[float, Meta(gt=0, le=LARGEST, description="a number above 0")]
Count = Annotated[int, Meta(gt=0, description="a number of cases above 0")]
Seconds = Annotated[
    Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0, le=LARGEST)],
    Meta(description="a finite number, not negative"),
]
"""Of either type, so that a record keeps the one that it was written with."""


class Row(Struct, frozen=True):
    """A benchmark's row.

    ``contract``: hot or cold, graph or launch, the median of how many. ``limit``: what was measured in the same run as
    the case's limit; ``share`` = limit_us / median_us. The four times (microseconds) and the share are None in a row
    whose result was not correct: a wrong kernel has no speed.
    """

    case: str
    contract: str
    correct: bool
    median_us: Time | None
    p10_us: Time | None
    p90_us: Time | None
    limit: str
    limit_us: Time | None
    share: Time | None

    def validate(self, field: str) -> None:
        """Raises ValueError, which names ``field``, unless the times are there just where the result is correct."""
        for name in ("median_us", "p10_us", "p90_us", "limit_us", "share"):
            value = getattr(self, name)
            if (value is None) is self.correct:
                rule = "a number above 0" if self.correct else "null where the result is not correct"
                raise InvalidError(f"{field}.{name}", value, rule)


class Switch(Struct, frozen=True):
    """A row about a switch: for each of its contexts (cells) the microseconds of what is timed, off and on, and unset
    where that may be neither. All sides gave the same bytes, or there is no row."""

    switch: str
    what: str
    contexts: list[Annotated[int, Meta(gt=0, description="a number of cells above 0")]]
    off_us: list[Time]
    on_us: list[Time]
    unset_us: list[Time] = []

    def validate(self, field: str) -> None:
        """Raises ValueError, which names ``field``, unless every side has a time for each context."""
        for name in ("off_us", "on_us", "unset_us"):
            times = getattr(self, name)
            if len(times) != len(self.contexts) and (times or name != "unset_us"):
                raise InvalidError(f"{field}.{name}", times, f"a number for each of the {len(self.contexts)} contexts")


class Failure(Struct, frozen=True):
    """A case that failed, and why."""

    case: str
    reason: str


class Results(Struct, frozen=True):
    """What is printed of any step's results, which may hold more: ``failures``, the first ones; ``reasons``, why
    unsupported -> number of cases; ``verdict``, lines; ``failed``, the number of all failures."""

    failures: list[Failure] = []
    reasons: dict[str, Count] = {}
    verdict: list[str] = []
    failed: Any = None

    def validate(self, field: str) -> None:
        """Raises ValueError, which names ``field``, unless ``failed`` counts the failures: only the first are in the
        list, so what is printed of the rest comes from the number."""
        if self.failures and (type(self.failed) is not int or self.failed < len(self.failures)):
            rule = f"the number of failures, at least {len(self.failures)}"
            raise InvalidError(f"{field}.failed", self.failed, rule)


class BenchmarkResults(Results, frozen=True):
    """Results of a step of the section ``benchmark``."""

    rows: list[Row] = []
    switches: list[Switch] = []

    def validate(self, field: str) -> None:
        """Raises ValueError, which names ``field`` and the row, as the parts do."""
        super().validate(field)
        for name in ("rows", "switches"):
            for index, row in enumerate(getattr(self, name)):
                row.validate(f"{field}.{name}[{index}]")


class Device(Struct, frozen=True, forbid_unknown_fields=True):
    """A CUDA device; ``memory`` and ``l2`` in bytes."""

    name: str
    compute_capability: str
    multiprocessors: int
    memory: int
    l2: int


class Step(Struct, frozen=True, forbid_unknown_fields=True):
    """One step of a section. A step that crashed or ran past its time is ``failed`` and its ``reason`` says so.
    ``results`` are plain data of the step's own; see :class:`Results` for what is checked of them."""

    name: str
    date: str
    driver: str
    status: Status
    reason: str
    seconds: Seconds
    command: str
    results: dict[str, Any]


class Section(Struct, frozen=True, forbid_unknown_fields=True):
    """The steps of a section, and the status of the whole."""

    status: Status
    steps: list[Step]


class Evidence(Struct, frozen=True, forbid_unknown_fields=True):
    """One record of a device.

    ``name`` is also the file's, ``version`` that of this form of the record, ``contract`` that of the arithmetic
    (``exact-1``), ``date`` the day of the last addition (UTC). ``versions``: package or ``python`` -> version;
    ``toolkit`` is that of the CUDA runtime. ``sources``: hashes of the kernels, of the reference, and of every file
    that these read. ``seal`` is the hash of all the rest: a record changed by hand has another one.
    """

    name: str
    version: int
    contract: str
    date: str
    device: Device
    versions: dict[str, str]
    sources: sources.Fingerprint
    sections: dict[str, Section]
    seal: str

    def validate(self, name: str) -> None:
        """Raises ValueError, which names the field, unless this is the whole and unchanged record ``name``."""
        if self.name != name:
            raise InvalidError("name", self.name, f"{name!r}, as the file is called")
        if self.version != VERSION:
            raise InvalidError("version", self.version, str(VERSION))
        for key, found in self.sections.items():
            for index, step in enumerate(found.steps):
                field = f"sections.{key}.steps[{index}].results"
                convert(step.results, BenchmarkResults if key == "benchmark" else Results, field).validate(field)
        if self.seal != seal_of(self):
            raise ValueError(
                "seal: does not fit the other fields: the file was changed by hand; run `qsa evidence run` on the "
                "device"
            )
