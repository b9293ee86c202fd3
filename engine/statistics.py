"""What is counted while a request runs."""

from dataclasses import dataclass


@dataclass
class Statistics:
    """Counts and times of one request.

    prompt_tokens                    ids read as prompt so far
    prompt_seconds, decode_seconds   time of the steps that it took part in; in a batch every request counts the whole
                                     step
    tokens                           ids emitted, the one after the prompt included
    rounds                           verify windows, those of one row included
    drafted, accepted                drafts verified, and those of them that stand in the text
    rollbacks                        windows of which only a part was kept
    draft_failures                   errors of the drafter; they cost acceptance, nothing else
    reruns                           windows that failed, in whichever slot, and ran again alone or without drafts
    """

    prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    decode_seconds: float = 0.0
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    rollbacks: int = 0
    draft_failures: int = 0
    reruns: int = 0

    @property
    def rejected(self):
        """Drafts that did not stand, those behind the first rejected one included."""
        return self.drafted - self.accepted

    @property
    def decoded(self):
        """Tokens that windows emitted: all but the one after the prompt."""
        return max(0, self.tokens - 1)

    @property
    def acceptance(self):
        """Share of the drafts that stand, 0 without drafts."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_round(self):
        """Tokens that a window emits on average, 0 without windows."""
        return self.decoded / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_second(self):
        """Tokens that windows emitted in a second of decoding, 0 without any."""
        return self.decoded / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def ms_per_round(self):
        """Milliseconds of a window on average, 0 without windows."""
        return 1000 * self.decode_seconds / self.rounds if self.rounds else 0.0
