"""When to let the model judge several proposed tokens at once, by what was measured."""

from pippin.engines.language.step.sequences import Running
from pippin.engines.language.step.speculation.proposers import Proposer

MOST_SEQUENCES = 4  # with more, a step is busy enough without proposals
SMOOTHING = 0.1
UNPROPOSED = 4  # steps without proposals at first
PATIENCE = 16  # steps with proposals before they are judged
PAUSE = 128  # steps without, after they did not pay


class Speculation:
    """Decides, by what was measured, whether this step asks for proposals."""

    def __init__(self, proposer: Proposer, most: int) -> None:
        self.proposer = proposer
        self._most = most
        self._plain = 0.0  # seconds for a token, without proposals
        self._proposed = 0.0  # seconds for a token, with them
        self._measured = 0  # steps without
        self._judged = 0  # steps with
        self._paused = 0

    def wanted(self, running: list[Running]) -> bool:
        """Whether this step should look for proposals."""
        if not running or len(running) > MOST_SEQUENCES:
            return False
        if self._measured < UNPROPOSED:  # something to compare with
            return False
        if self._paused:
            self._paused -= 1
            return False
        if self._judged >= PATIENCE and self._proposed > self._plain:
            self._judged, self._paused = 0, PAUSE
            return False
        return True

    def proposals(self, running: list[Running]) -> list[list[int]]:
        """One list for each sequence, all of whose tokens are known."""
        return [self._propose(each) for each in running]

    def _propose(self, running: Running) -> list[int]:
        most = min(self._most, running.growth - 1)
        if most <= 0:
            return []
        proposed = self.proposer.propose(running.sequence, most)
        return proposed[: running.sequence.decoder.allowed(proposed)] if proposed else []

    def observe(self, seconds: float, tokens: float, *, proposed: bool) -> None:
        """A step took so long and gave so many tokens to each sequence, on average."""
        cost = seconds / max(tokens, 1)
        if proposed:
            self._judged += 1
            self._proposed = (
                cost if not self._proposed else self._proposed + SMOOTHING * (cost - self._proposed)
            )
        else:
            self._measured += 1
            self._plain = cost if not self._plain else self._plain + SMOOTHING * (cost - self._plain)
