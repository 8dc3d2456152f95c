"""When to let the model judge several proposed tokens at once, and how many of whose."""

from dataclasses import dataclass

from pippin.engines.language.step.sequences import Running, Sequence
from pippin.engines.language.step.speculation.clock import Instant, StepClock
from pippin.engines.language.step.speculation.heads import Heads
from pippin.engines.language.step.speculation.pace import SMOOTHING, Acceptance, Pace
from pippin.engines.language.step.speculation.proposers import Proposer


@dataclass(frozen=True)
class Judged:
    """A pass that has judged proposals: what they were for each sequence, and how many tokens it gave in all."""

    proposals: list[list[int]]
    tokens: int


class Speculation:
    """Asks for proposals where they are worth it, and learns what became of them."""

    def __init__(
        self,
        proposer: Proposer,
        pace: Pace,
        *,
        most: int,
        block: int | None = None,
        always: bool = True,
        heads: Heads | None = None,
        clock: StepClock | None = None,
    ) -> None:
        """`most`: tokens proposed for a sequence. `block`: no step goes past a multiple of so many tokens, where the
        state of a sequence is to be remembered. `always`: there may be proposals for sequences without a prediction,
        too. `heads`: what the proposer asks that is to know the model's states. `clock` measures steps."""
        self.proposer = proposer
        self.clock = clock or StepClock()
        self.always = always
        self.heads = heads
        self.pace = pace
        self._most = most
        self._block = block
        self._seen: dict[Sequence, Acceptance] = {}
        self._prior = Acceptance().prior  # of sequences that nothing was judged of

    def wanted(self, running: list[Running]) -> bool:
        """Whether the next step should look for proposals, which then have to be known before it is built."""
        ready = [self.proposer.is_ready(each.sequence) for each in running]
        if not any(ready):
            return False
        chances = self._chances(running)
        if self.proposer.is_free:
            return self.pace.worth_looking(chances)
        return any(self.pace.lengths(chances, [self._most if each else 0 for each in ready]))

    def proposals(self, running: list[Running]) -> list[list[int]]:
        """One list for each sequence, all of whose tokens are known."""
        rooms, chances = [self._room(each) for each in running], self._chances(running)
        asked = rooms if self.proposer.is_free else self.pace.lengths(chances, rooms)
        found = self.proposer.propose(
            [(each.sequence, most) for each, most in zip(running, asked, strict=True)]
        )
        allowed = [
            tokens[: each.sequence.decoder.allowed(tokens)] if tokens else []
            for each, tokens in zip(running, found, strict=True)
        ]
        if not self.proposer.is_free:
            return allowed
        lengths = self.pace.lengths(chances, list(map(len, allowed)))
        return [tokens[:length] for tokens, length in zip(allowed, lengths, strict=True)]

    def _room(self, running: Running) -> int:
        """Tokens that can be proposed for a sequence."""
        room = min(self._most, running.growth - 1)
        if self._block is not None:
            room = min(room, self._block - 1 - running.slot.length % self._block)
        return max(room, 0)

    def _chances(self, running: list[Running]) -> list[float]:
        return [
            seen.chance if (seen := self._seen.get(each.sequence)) is not None else self._prior
            for each in running
        ]

    def judged(self, sequence: Sequence, proposed: int, accepted: int) -> None:
        """What became of the proposals for a sequence."""
        if not proposed:
            return
        seen = self._seen.setdefault(sequence, Acceptance(self._prior))
        seen.observe(proposed, accepted)
        self._prior += SMOOTHING * (seen.chance - self._prior)

    def learn(self, began: Instant, sequences: int, judged: Judged | None, *, looked: bool) -> None:
        """A step that did nothing but decode began then, and is done. `looked`: it looked for proposals."""
        width = 1 if judged is None else 1 + max(map(len, judged.proposals))
        seconds = self.clock.seconds((sequences, width), began)
        if judged is not None:
            self.pace.observe(sequences, width, seconds, judged.tokens)
        elif looked:
            self.pace.looked_in_vain(sequences, seconds)
        else:
            self.pace.observe(sequences, 1, seconds, sequences)
        if self.heads is not None:
            self.heads.rests = self.pace.rests

    def forget(self, sequence: Sequence) -> None:
        """Drop what is known of a sequence that has left the batch."""
        self._seen.pop(sequence, None)
        self.proposer.forget(sequence)
