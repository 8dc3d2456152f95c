"""When to let the model judge several proposed tokens at once, and how many of whose."""

from bisect import bisect_right
from dataclasses import dataclass

from pippin.engines.language.step.sequences import Running, Sequence
from pippin.engines.language.step.speculation.clock import Instant, StepClock
from pippin.engines.language.step.speculation.followers import Follower
from pippin.engines.language.step.speculation.pace import HOPE, SMOOTHING, Acceptance, Pace
from pippin.engines.language.step.speculation.proposers import Proposal, Proposer

AGREED = (1, 2, 3, 4, 8, 16, 32)
"""Places found by so many tokens in common, up to the next number, are taken to be right equally often: of what
follows two tokens the first half is wrong, of what follows sixteen one in twenty (measured on code edits and prose)."""

HOPES = (0.5, 0.4, 0.5, 0.6, 0.7, 0.85, 0.9, 0.9)
"""Chances of proposals before any was judged, by how many of the numbers in `AGREED` are reached."""

Grounds = int | None
"""What tells how often proposals are right: an index in `HOPES` of those that were found, None of those drafted."""


def grounds_of(proposal: Proposal) -> Grounds:
    return None if proposal.agreed is None else bisect_right(AGREED, proposal.agreed)


def _hope(grounds: Grounds) -> float:
    return HOPE if grounds is None else HOPES[grounds]


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
        heads: Follower | None = None,
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
        # Of each sequence, and what one begins with, by grounds; and of all its proposals.
        self._seen: dict[Sequence, dict[Grounds, Acceptance]] = {}
        self._priors: dict[Grounds, float] = {}
        self._overall: dict[Sequence, Acceptance] = {}
        self._prior = HOPE
        self._grounds: dict[Sequence, Grounds] = {}  # of the last proposals

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
        rooms = [self._room(each) for each in running]
        asked = rooms if self.proposer.is_free else self.pace.lengths(self._chances(running), rooms)
        found = self.proposer.propose(
            [(each.sequence, most) for each, most in zip(running, asked, strict=True)]
        )
        self._grounds = {
            each.sequence: grounds_of(proposal)
            for each, proposal in zip(running, found, strict=True)
            if proposal.tokens
        }
        allowed = [
            tokens[: each.sequence.decoder.allowed(tokens)] if tokens else []
            for each, (tokens, _) in zip(running, found, strict=True)
        ]
        if not self.proposer.is_free:
            return allowed
        chances = [
            self._acceptance(each.sequence, self._grounds[each.sequence]).chance if tokens else 0.0
            for each, tokens in zip(running, allowed, strict=True)
        ]
        lengths = self.pace.lengths(chances, list(map(len, allowed)))
        return [tokens[:length] for tokens, length in zip(allowed, lengths, strict=True)]

    def _room(self, running: Running) -> int:
        """Tokens that can be proposed for a sequence."""
        room = min(self._most, running.growth - 1)
        if self._block is not None:
            room = min(room, self._block - 1 - running.slot.length % self._block)
        return max(room, 0)

    def _chances(self, running: list[Running]) -> list[float]:
        """Of proposals that are not known yet."""
        return [
            seen.chance if (seen := self._overall.get(each.sequence)) is not None else self._prior
            for each in running
        ]

    def _acceptance(self, sequence: Sequence, grounds: Grounds) -> Acceptance:
        seen = self._seen.setdefault(sequence, {})
        if grounds not in seen:
            seen[grounds] = Acceptance(self._priors.get(grounds, _hope(grounds)))
        return seen[grounds]

    def judged(self, sequence: Sequence, proposed: int, accepted: int) -> None:
        """What became of the proposals for a sequence."""
        if not proposed:
            return
        grounds = self._grounds[sequence]
        seen = self._acceptance(sequence, grounds)
        seen.observe(proposed, accepted)
        prior = self._priors.get(grounds, _hope(grounds))
        self._priors[grounds] = prior + SMOOTHING * (seen.chance - prior)
        overall = self._overall.setdefault(sequence, Acceptance(self._prior))
        overall.observe(proposed, accepted)
        self._prior += SMOOTHING * (overall.chance - self._prior)

    def learn(self, began: Instant, sequences: int, judged: Judged | None, *, looked: bool) -> None:
        """A step that did nothing but decode began then, and is done. `looked`: it looked for proposals."""
        computed = (
            sequences if judged is None else self.pace.computed([len(tokens) for tokens in judged.proposals])
        )
        seconds = self.clock.seconds((sequences, computed), began)
        if judged is not None:
            self.pace.observe(sequences, computed, seconds, judged.tokens)
        elif looked:
            self.pace.looked_in_vain(sequences, seconds)
        else:
            self.pace.observe(sequences, sequences, seconds, sequences)
        if self.heads is not None:
            self.heads.rests = self.pace.rests

    def forget(self, sequence: Sequence) -> None:
        """Drop what is known of a sequence that has left the batch."""
        for known in (self._seen, self._overall, self._grounds):
            known.pop(sequence, None)
        self.proposer.forget(sequence)
