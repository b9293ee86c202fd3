"""Statistics of a request: counts and times."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Clock:
    """Seconds of a runner since it was made.

    device  in which the device computed its programs; of calls that are no program, the time that they took
    waited  in which the host waited for these, or made the calls itself
    """

    device: float = 0.0
    waited: float = 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of the block as waited."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.waited += time.perf_counter() - begin

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Count the time of the block, a call of the model that is no program, as the device's and as waited."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - begin
            self.device += seconds
            self.waited += seconds


@dataclass
class Statistics:
    """Counts and times of one request.

    prompt_tokens                    prompt ids read so far
    prompt_seconds, decode_seconds   time of the steps that served it; in a batch every request counts the whole step
    host_seconds                     time of decoding in which the host did not wait for the model: the engine's own
    device_seconds                   time of decoding in which the model was computed. On a device the two overlap; of
                                     a round, what it does after the host's last wait is counted with the next one
    tokens                           ids emitted, including the one after the prompt
    rounds                           verify windows, including those of one row
    drafted, accepted                drafts verified, and drafts accepted
    rollbacks                        windows of which only some rows were kept
    draft_failures                   errors of the drafter; they cost drafts and nothing else
    reruns                           windows that failed, in any slot, and ran again alone or without drafts
    """

    prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    decode_seconds: float = 0.0
    host_seconds: float = 0.0
    device_seconds: float = 0.0
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    rollbacks: int = 0
    draft_failures: int = 0
    reruns: int = 0

    @property
    def rejected(self) -> int:
        """Drafts that were not accepted, including those after the first rejected one."""
        return self.drafted - self.accepted

    @property
    def decoded(self) -> int:
        """Tokens that windows emitted: all except the one after the prompt."""
        return max(0, self.tokens - 1)

    @property
    def acceptance(self) -> float:
        """Share of the drafts that were accepted; 0 without drafts."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Mean number of tokens that a window emits; 0 without windows."""
        return self.decoded / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens that windows emitted per second of decoding; 0 without windows."""
        return self.decoded / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def ms_per_round(self) -> float:
        """Mean milliseconds of a window; 0 without windows."""
        return 1000 * self.decode_seconds / self.rounds if self.rounds else 0.0

    @property
    def rounds_per_second(self) -> float:
        """Windows per second of decoding; 0 without windows."""
        return self.rounds / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def host_ms_per_round(self) -> float:
        """Mean milliseconds of the engine's own work in a window; 0 without windows."""
        return 1000 * self.host_seconds / self.rounds if self.rounds else 0.0

    @property
    def device_ms_per_round(self) -> float:
        """Mean milliseconds in which the model was computed for a window; 0 without windows."""
        return 1000 * self.device_seconds / self.rounds if self.rounds else 0.0
