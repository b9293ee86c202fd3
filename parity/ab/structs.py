"""What the processes of ``qsa ab`` hand over, and what ``--json`` writes."""

from typing import Any

from msgspec import Struct


class Arm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One side: what ``--a`` or ``--b`` says.

    side         ``A`` or ``B``; text: as it was typed
    environment  variables of its processes, on top of those of the command without the project's switches
    arithmetic   empty: as the environment says, and the backend declares
    slots        texts of the decode screen that run at a time, in ``groups``
    spec         rows of a verify window: the last token and the drafts; spec_min_p: drafting goes on from this
                 probability on
    acceptance   rule that accepts drafts of a sampled text
    capacity     cells of a slot, 0: what the size of the screens says
    """

    side: str
    text: str
    environment: dict[str, str]
    backend: str
    arithmetic: str = ""
    slots: int = 1
    groups: int = 1
    spec: int = 5
    spec_min_p: float = 0.5
    acceptance: str = "exact_match"
    chunk: int = 1024
    page_size: int = 4
    kv_format: str = "int8"
    capacity: int = 0


class TextRun(Struct, frozen=True, forbid_unknown_fields=True):
    """A text of a screen as one process continued it.

    prompt         prompt tokens; tokens: ids that were emitted; hash: of these
    rounds         verify windows that served it; drafted, accepted: drafts
    first          seconds from its submission to its first token
    decode         seconds of the windows that served it, each whole also where it served other slots too
    """

    name: str
    prompt: int
    tokens: list[int]
    hash: str
    rounds: int
    drafted: int
    accepted: int
    first: float
    decode: float


class ArmRun(Struct, frozen=True, forbid_unknown_fields=True):
    """The screens as one process of an arm ran them, by its own clock.

    arithmetic  which it was
    windows     verify windows, whatever the number of slots that each served; decode: their seconds
    device      those of them in which the model was computed, by the engine's count
    total       seconds of both screens
    throttled   why a clock was lowered meanwhile
    others      share of the processors that other processes took meanwhile; None where the system does not tell
    """

    arithmetic: str
    decode_texts: list[TextRun]
    prompt_texts: list[TextRun]
    windows: int
    decode: float
    device: float
    total: float
    throttled: list[str]
    others: float | None


class SevenText(Struct, frozen=True, forbid_unknown_fields=True):
    """One of the seven computations: ``hash`` of its tokens, ``logits`` that of the logits behind them; ``golden``:
    empty when both are the golden's, else what differs, None where no golden is made for this setting."""

    name: str
    tokens: list[int]
    hash: str
    logits: str
    golden: str | None


class Checks(Struct, frozen=True, forbid_unknown_fields=True):
    """What one side's outputs are: needles by name, found or not."""

    arithmetic: str
    seven: list[SevenText]
    needles: dict[str, bool]


class Parity(Struct, frozen=True, forbid_unknown_fields=True):
    """Cases of ``qsa parity`` under one side's setting; ``failures``: the first case strings that failed."""

    passed: int
    failed: int
    unsupported: int
    failures: list[str]


class Row(Struct, frozen=True, forbid_unknown_fields=True):
    """A figure of the speed table.

    a, b     values of arms 1 and 4, of arms 2 and 3
    change   of the mean from A to B, as a share; None where an arm has none of it
    noise    the larger difference of the two arms of a side, as a share
    verdict  FASTER, SLOWER, SAME or AMBIGUOUS; empty where there is no change, and ``reason`` says why
    """

    name: str
    a: tuple[float, float]
    b: tuple[float, float]
    change: float | None
    noise: float
    verdict: str
    reason: str


class Check(Struct, frozen=True, forbid_unknown_fields=True):
    """A check of the outputs: what A and B gave; ``status`` is passed or failed, or empty where it has no rule;
    ``wrong``: the sides that broke the rule."""

    name: str
    rule: str
    a: str
    b: str
    status: str
    wrong: list[str] = []
    detail: list[str] = []


class Output(Struct, frozen=True, forbid_unknown_fields=True):
    """A text on both sides, by its hashes. ``first``: index of the first token that differs, -1 where nothing does;
    ``tokens``, those of A, where the logits behind them alone differ."""

    name: str
    a: str
    b: str
    first: int
    tokens: int


class Report(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What ``qsa ab --json`` writes.

    verdict    ``right`` (speed may be read), ``wrong`` (a check failed: no speed is given), ``incomplete`` (a
               process gave nothing, or the run was interrupted)
    reasons    why it is not right, and what the reader of the speed must know
    runs       of the arms 1 to 4, in this order: A, B, B, A
    """

    verdict: str
    reasons: list[str]
    size: str
    a: Arm
    b: Arm
    rows: list[Row]
    checks: list[Check]
    outputs: list[Output]
    seven: list[Output]
    runs: list[ArmRun]
    seconds: float
    environment: dict[str, Any]
    interrupted: str = ""
