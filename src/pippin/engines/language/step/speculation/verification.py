"""Decides when the model checks proposed tokens, and how many for each sequence."""

from bisect import bisect_right
from collections.abc import Sequence as Many
from typing import Literal

from pippin.engines.language.step.sequences import Running, Sequence
from pippin.engines.language.step.speculation.pace import HOPE, SMOOTHING, Acceptance, Pace
from pippin.engines.language.step.speculation.proposers import Either, Follower, Proposal, Proposer, agreed

AGREED = (1, 2, 3, 4, 8, 16, 32)
"""Lookups with so many tokens in common, up to the next number, are assumed to be right equally often: the first
proposal is wrong half of the time after two tokens, and one time in twenty after sixteen (measured on code edits and
prose)."""

HOPES = (0.5, 0.4, 0.5, 0.6, 0.7, 0.85, 0.9, 0.9)
"""The assumed chance of a proposal before any was judged, by how many of the numbers in `AGREED` are reached."""

LOOKS_WHILE_RESTING = 8
"""Steps of which one asks whether proposals pay again, where they have not for long: asking takes time as well."""

Grounds = int | Literal["drafted", "any"]
"""The class within which acceptance is counted: an index in `HOPES` for lookups, drafts, or all proposals."""


class Speculation:
    """Asks for proposals where they are worth it, and learns what became of them."""

    def __init__(
        self, proposer: Proposer, pace: Pace, *, block: int | None = None, always: bool = True
    ) -> None:
        """`block`: no step goes past a multiple of so many tokens, at which the state of a sequence is to be
        remembered. `always`: sequences without a prediction may have proposals too."""
        self.proposer = proposer
        self.always = always
        # Sources of proposals that are told of the model's states.
        drafter = proposer.other if isinstance(proposer, Either) else proposer
        self.followers = (drafter,) if isinstance(drafter, Follower) else ()
        self.pace = pace
        self._rested = 0  # steps since it was last asked whether proposals pay, while they do not
        self._block = block
        # The acceptance of each sequence, and the prior of a new one.
        self._seen: dict[Sequence, dict[Grounds, Acceptance]] = {}
        self._priors: dict[Grounds, float] = {"drafted": HOPE, "any": HOPE, **dict(enumerate(HOPES))}
        self._grounds: dict[Sequence, Grounds] = {}  # of the last proposals

    def wanted(self, running: list[Running]) -> bool:
        """Whether the next step should look for proposals. They have to be known before the step is built."""
        if self.forces(running, drawn=1):
            return True
        ready = [self.proposer.is_ready(each.sequence) for each in running]
        if not any(ready):
            return False
        if self.proposer.is_free:
            return self.pace.worth_looking(self._chances(running))
        self._rested = (self._rested + 1) % LOOKS_WHILE_RESTING if self.pace.rests else 0
        if self._rested:
            return False
        rooms = [self.pace.most if each else 0 for each in ready]
        return any(self.pace.lengths(self._chances(running), rooms))

    def forces(self, running: list[Running], drawn: int = 0) -> bool:
        """Whether a grammar forces the next tokens of a sequence, behind the first so many which are being drawn, and
        taking them in one pass pays."""
        chains = [max(len(each.sequence.decoder.certain) - drawn, 0) for each in running]
        return any(chains) and any(self.pace.lengths([float(count > 0) for count in chains], chains))

    def proposals(self, running: list[Running]) -> list[Proposal]:
        """One for each of these sequences, whose tokens are all known: what its grammar forces, else guesses."""
        rooms = [self._room(each) for each in running]
        found = [
            Proposal(list(each.sequence.decoder.certain[:room]), certain=True)
            for each, room in zip(running, rooms, strict=True)
        ]
        forces = any(own.tokens for own in found)
        left = [0 if own.tokens else room for own, room in zip(found, rooms, strict=True)]
        guesses = self._guesses(running, left)
        found = [own if own.tokens else guess for own, guess in zip(found, guesses, strict=True)]
        if not forces and not self.proposer.is_free:
            return found  # no more was drafted than pays
        chances = [self._chance(each.sequence, own) for each, own in zip(running, found, strict=True)]
        lengths = self.pace.lengths(chances, [len(own.tokens) for own in found])
        return [own._replace(tokens=own.tokens[:length]) for own, length in zip(found, lengths, strict=True)]

    def _guesses(self, running: list[Running], rooms: list[int]) -> list[Proposal]:
        """What the proposer says of each sequence, in so many tokens at most, as far as its grammar allows it."""
        asked = rooms if self.proposer.is_free else self.pace.lengths(self._chances(running), rooms)
        found = self.proposer.propose(
            [(each.sequence, most) for each, most in zip(running, asked, strict=True)]
        )
        self._grounds = {
            each.sequence: "drafted" if proposal.agreed is None else bisect_right(AGREED, proposal.agreed)
            for each, proposal in zip(running, found, strict=True)
            if proposal.tokens
        }
        return [
            proposal._replace(tokens=proposal.tokens[: each.sequence.decoder.allowed(proposal.tokens)])
            for each, proposal in zip(running, found, strict=True)
        ]

    def _chance(self, sequence: Sequence, proposal: Proposal) -> float:
        """The chance that each token of a proposal is right."""
        if proposal.certain or not proposal.tokens:
            return float(proposal.certain)
        return self._known(sequence, self._grounds[sequence]).chance

    def _room(self, running: Running) -> int:
        """Tokens that can be proposed for a sequence."""
        room = min(self.pace.most, running.growth - 1)
        if self._block is not None:
            room = min(room, self._block - 1 - running.slot.length % self._block)
        return max(room, 0)

    def _chances(self, running: list[Running]) -> list[float]:
        """The chance that a proposal is right, of each sequence, while proposals are not known yet."""
        return [self._known(each.sequence, "any").chance for each in running]

    def _known(self, sequence: Sequence, grounds: Grounds) -> Acceptance:
        """The acceptance of a sequence, a new one before any of its proposals was judged."""
        return self._seen.get(sequence, {}).get(grounds) or Acceptance(self._priors[grounds])

    def judged(self, sequence: Sequence, proposal: Proposal, chosen: list[int]) -> None:
        """The model chose these tokens where it was given this proposal."""
        if not proposal.tokens or proposal.certain:
            return
        proposed, accepted = len(proposal.tokens), agreed(proposal.tokens, chosen)
        for grounds in (self._grounds[sequence], "any"):
            seen = self._known(sequence, grounds)
            seen.observe(proposed, accepted)
            self._seen.setdefault(sequence, {})[grounds] = seen
            self._priors[grounds] += SMOOTHING * (seen.chance - self._priors[grounds])

    def learn(
        self, seconds: float, sequences: int, proposals: Many[Proposal], given: int, *, looked: bool
    ) -> None:
        """A step that only decoded took so many seconds. Those that it judged are `proposals`, which gave so many
        tokens. `looked`: it looked for some."""
        if proposals:
            computed = self.pace.computed([len(each.tokens) for each in proposals])
            self.pace.observe(sequences, computed, seconds, given)
        elif looked:
            self.pace.looked_in_vain(sequences, seconds)
        else:
            self.pace.observe(sequences, sequences, seconds, sequences)
        for each in self.followers:
            each.rests = self.pace.rests

    def forget(self, sequence: Sequence) -> None:
        """Drop what is known of a sequence that has left the batch."""
        self._seen.pop(sequence, None)
        self._grounds.pop(sequence, None)
        self.proposer.forget(sequence)
