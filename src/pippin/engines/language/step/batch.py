"""The sequences that decode together: one pass through the model, and one draw for all of them."""

from collections.abc import Iterable, Mapping, Sequence

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from pippin.engines.language.kv_cache.groups import CacheGroups
from pippin.engines.language.kv_cache.kinds.base import PromptCache, Slot, SlotGroup
from pippin.engines.language.kv_cache.layout import padded
from pippin.engines.language.model.loaded import LoadedModel
from pippin.engines.language.sampling.sampler import BatchSampler, Masks, Sampled, SampledToken, choice_seed
from pippin.engines.language.step.sequences import Running
from pippin.engines.language.step.speculation.proposers import Follower, Proposal, agreed


class Batch:
    """A step is `forward` and `sample`; then `read` gives the tokens drawn. Or it is `check`, which does all three for
    several tokens of each sequence.

    `forward` may come before the last draw is read: sequences that end there leave, and are not drawn for again.
    Sequences that join before `sample` are drawn for from their prompts' logits.
    """

    def __init__(
        self,
        groups: CacheGroups,
        model: LoadedModel,
        sampler: BatchSampler,
        followers: Sequence[Follower] = (),
    ) -> None:
        """`followers` are told what states passes leave."""
        self.running: list[Running] = []  # in the sampler's order
        # Those whose next tokens may be known: a client predicts the answer, or wants it in a grammar.
        self.foreseen: set[Running] = set()
        self.groups = groups
        self.model = model
        self.built = False  # the next pass is built
        self._unqueued: list[mx.array] = []  # of that pass, if the device has not been given it yet
        self.followers = followers
        self._adapters = model.adapters
        self._head = model.head
        self._mask_words = -(-model.vocabulary // 32)
        self._sampler = sampler
        self._nothing_drawn = Sampled(mx.zeros((0,), mx.int32))
        self._drawn = self._nothing_drawn
        self._drawn_for: list[Running] = []  # until it is read
        # [n, vocabulary] each: of the pass, then of sequences that joined since.
        self._logits: list[mx.array] = []
        self._logits_at: dict[Running, int] = {}  # index of each sequence in `_logits`, put together

    def join(self, running: Running, slot: Slot, cache: PromptCache, logits: mx.array) -> None:
        """Take a sequence whose tokens are in `cache`; `logits` [1, vocabulary] follow them. The cache may be used
        again, if it does not lie in the slot."""
        sequence = running.sequence
        running.joined, running.slot = len(sequence.tokens), slot
        slot.group.join(slot, cache, sequence.request.shift)
        self._logits_at[running] = sum(part.shape[0] for part in self._logits)
        self._logits.append(logits)
        job = sequence.request.job
        self._sampler.join(
            job.request.sampling,
            seed=choice_seed(job.seed, sequence.choice),
            prompt=sequence.tokens,
            logprobs=job.request.logprobs,
            generated=len(sequence.tokens) - len(job.prompt),
            vocabulary=logits.shape[-1],
        )
        self.running.append(running)
        if sequence.foreseen:
            self.foreseen.add(running)

    def leave(self, gone: list[Running]) -> None:
        if not gone:
            return
        leaving = set(gone)
        self.groups.leave([each.slot for each in gone])
        self._sampler.leave([index for index, each in enumerate(self.running) if each not in leaving])
        self.running = [each for each in self.running if each not in leaving]
        self.foreseen -= leaving
        if not self.running:
            self._forget_pass()

    def _forget_pass(self) -> None:
        self.built, self._logits, self._logits_at = False, [], {}

    def forward(self, *, queues: bool = True) -> None:
        """Build the next pass, and have the device compute it; without `queues`, when `queue` is called."""
        self.groups.compact()
        drawn = self._drawn.tokens.size
        given: list[int] = []  # tokens that the last draw does not hold
        for each in self.running:
            if each.next_token is not None:
                each.source = drawn + len(given)
                given.append(each.next_token)
                each.next_token = None
        inputs = [self._drawn.tokens] if drawn else []
        if given:
            inputs.append(mx.array(given, dtype=mx.int32))
        tokens = mx.concatenate(inputs) if len(inputs) > 1 else inputs[0]
        self._logits = [logits[:, -1] for logits in self._pass(tokens[:, None])]
        self.built = True
        arrays = list(self._logits)
        for told in self.followers:
            arrays += told.kept(dict.fromkeys(self.running, 1))
        self._unqueued = arrays
        if queues:
            self.queue()

    def queue(self) -> None:
        """Have the device compute a pass that is only built yet, if there is one."""
        arrays, self._unqueued = self._unqueued, []
        mx.async_eval(*arrays)  # type: ignore[no-untyped-call]

    def _pass(self, tokens: mx.array, only: Mapping[Running, int] | None = None) -> list[mx.array]:
        """Run the model: each sequence has its `source` among `tokens` [n, width] as input. Gives logits [slots, width,
        vocabulary] of each group, and notes where in them each sequence has its own. `only`: the one place of each
        sequence whose logits are computed; the width is 1 then."""
        results, start = [], 0
        self._logits_at = {}
        for group, slots in self._by_group():
            # A slot without a sequence computes what nobody reads.
            sources = [slots[slot].source if slot in slots else 0 for slot in range(group.low, group.high)]
            self._choose_adapters(group, slots)
            if only is None:
                results.append(group.forward(_pick(tokens, sources)))
            else:
                places = [only[slots[slot]] if slot in slots else 0 for slot in range(group.low, group.high)]
                with self._head.only(places):
                    results.append(self._head.last(group.forward(_pick(tokens, sources)), places)[:, None])
            for told in self.followers:
                told.passed(group)
            for slot, each in slots.items():
                self._logits_at[each] = start + slot - group.low
            start += group.high - group.low
        return results

    def _by_group(self) -> Iterable[tuple[SlotGroup, dict[int, Running]]]:
        """The groups that have sequences, and these by the indexes of their slots."""
        found: dict[SlotGroup, dict[int, Running]] = {}
        for each in self.running:
            found.setdefault(each.slot.group, {})[each.slot.index] = each
        return found.items()

    def fit(self, limit: int, count: int = 1) -> bool:
        """Whether a pass of `count` tokens fits in `limit` bytes, as far as it can be made to: `CacheGroups.fit`."""
        for each in self.running:
            if each.length_class != each.slot.length_class:
                self.groups.promote(each.slot, each.length_class, each.growth)
        return self.groups.fit(limit, count)

    def _choose_adapters(self, group: SlotGroup, slots: dict[int, Running]) -> None:
        if self._adapters.names:
            numbers = range(group.low, group.high)
            self._adapters.choose(
                [slots[slot].sequence.request.adapter if slot in slots else 0 for slot in numbers]
            )

    def _in_order(self, parts: list[mx.array]) -> mx.array:
        """What was computed for each sequence, in the sampler's order."""
        whole = parts[0] if len(parts) == 1 else mx.concatenate(parts)
        return _pick(whole, list(map(self._logits_at.__getitem__, self.running)))

    def sample(self) -> None:
        """Draw for the sequences that are here now, as masks and forced tokens have it."""
        masks = self._masks_ahead([[]] * len(self.running))
        now = None if masks is None else Masks(masks.rows, masks.bits[0])
        self._drawn = self._sampler.sample(self._in_order(self._logits), now)
        mx.async_eval(*self._drawn.arrays())  # type: ignore[no-untyped-call]
        self._forget_pass()
        self._drawn_for = list(self.running)
        for index, each in enumerate(self.running):
            # One that was checked before may have another input from there.
            each.source, each.next_token = index, None

    def read(self) -> list[tuple[Running, SampledToken]]:
        """The last draw on the host, with the sequences that it was for."""
        drawn_for, self._drawn_for = self._drawn_for, []
        return list(zip(drawn_for, self._sampler.read(self._drawn), strict=True))

    def check(self, proposals: list[Proposal]) -> list[list[SampledToken]]:
        """A pass over each sequence's last token and the tokens proposed after it, which the host knows all.

        Gives what the model chose for each sequence: the proposals as far as it agrees, and one token more.
        """
        chains = [each.tokens for each in proposals]
        tokens = np.zeros((len(self.running), max(map(len, chains)) + 1), np.int32)
        for index, (each, proposed) in enumerate(zip(self.running, chains, strict=True)):
            tokens[index, : len(proposed) + 1] = [each.sequence.tokens[-1], *proposed]
            each.source = index
        # Behind what a grammar forces one token is drawn; the logits before it are needed if the client reads them.
        sure = all(each.certain or not each.tokens for each in proposals)
        if sure and all(each.sequence.request.job.request.logprobs is None for each in self.running):
            ends = {each: len(chain) for each, chain in zip(self.running, chains, strict=True)}
            logits = self._in_order(self._pass(padded(tokens, chains), ends))
            found = self._chosen_behind(logits[:, 0], tokens[:, 1:], chains)
        else:
            logits = self._in_order(self._pass(padded(tokens, chains)))
            found = self._chosen(logits, tokens[:, 1:], chains)
        for told in self.followers:
            told.kept({each: len(chosen) for each, chosen in zip(self.running, found, strict=True)})
        self._commit(found, tokens.shape[1])
        return found

    def _chosen(
        self, logits: mx.array, tokens: NDArray[np.int32], chains: list[list[int]]
    ) -> list[list[SampledToken]]:
        """The tokens that each sequence takes, exactly as plain steps would choose them, with its own draws, masks and
        penalties: its chain as far as the model agrees, and one token more. `tokens` [n, width - 1] are the chains,
        `logits` [n, width, vocabulary] those of a pass over the last token of each sequence and its chain."""
        drawn = self._sampler.sample_ahead(logits, tokens, self._masks_ahead(chains))
        sampled = [self._sampler.read(each) for each in drawn]
        found = []
        for index, chain in enumerate(chains):
            chosen = [each[index] for each in sampled]
            found.append(chosen[: 1 + agreed(chain, [each.token for each in chosen])])
        return found

    def _chosen_behind(
        self, logits: mx.array, tokens: NDArray[np.int32], chains: list[list[int]]
    ) -> list[list[SampledToken]]:
        """The same where all chains are certain: the chain, and the token behind it. `logits` [n, vocabulary] are those
        at the ends of the chains."""
        counts = np.array([len(chain) for chain in chains], np.int32)
        masks = self._masks_ahead(chains)
        if masks is not None:
            masks = Masks(masks.rows, masks.bits[counts[masks.rows], np.arange(len(masks.rows))])
        ends = self._sampler.read(self._sampler.sample_behind(logits, tokens, counts, masks))
        return [[*map(SampledToken, chain), end] for chain, end in zip(chains, ends, strict=True)]

    def _masks_ahead(self, chains: list[list[int]]) -> Masks | None:
        """The masks at each place of these chains, as if the tokens before it had been chosen."""
        masked = [index for index, each in enumerate(self.running) if each.sequence.decoder.needs_mask]
        if not masked:
            return None
        width = max(map(len, chains)) + 1
        bits = np.full((width, len(masked), self._mask_words), -1, dtype=np.int32)
        for number, index in enumerate(masked):
            own = bits[: len(chains[index]) + 1, number]
            self.running[index].sequence.decoder.masks_ahead(chains[index], own)
        return Masks(masked, bits)

    def _commit(self, chosen: list[list[SampledToken]], width: int) -> None:
        """Take the caches back to what was chosen, and let the sampler remember it."""
        tokens = np.zeros((len(chosen), width), np.int32)
        for index, (each, sampled) in enumerate(zip(self.running, chosen, strict=True)):
            tokens[index, : len(sampled)] = [token.token for token in sampled]
            each.next_token = sampled[-1].token
        taken = dict(zip(self.running, map(len, chosen), strict=True))
        for group, slots in self._by_group():
            self._choose_adapters(group, slots)  # layers may be computed again
            group.rewind({slot: width - taken[each] for slot, each in slots.items()})
        self._sampler.commit(tokens, np.array([len(sampled) for sampled in chosen], np.int32))
        self._drawn, self._drawn_for = self._nothing_drawn, []
        self._logits_at = {}


def _pick(array: mx.array, indices: list[int]) -> mx.array:
    return array if indices == list(range(array.shape[0])) else array[mx.array(indices)]
