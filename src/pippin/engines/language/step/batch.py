"""The rows that decode together: one step through the model, and one draw for all of them."""

from collections.abc import Iterable

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from pippin.engines.language.kv_cache.groups import CacheGroups
from pippin.engines.language.kv_cache.slots import PromptCache, Slot, SlotGroup
from pippin.engines.language.model.lora import Adapters
from pippin.engines.language.sampling.sampler import BatchSampler, Choice, Sampled, choice_seed
from pippin.engines.language.step.sequences import Row
from pippin.engines.language.text.tokenizer import Tokenizer


class Batch:
    """`rows` is in the sampler's order. A step is `forward`, `sample`; then `read` gives the tokens drawn.

    `forward` may come before the last draw is read: rows that end there leave, and are not drawn for again. Rows that
    join before `sample` are drawn for from their prompts' logits.
    """

    def __init__(
        self,
        groups: CacheGroups,
        tokenizer: Tokenizer,
        vocabulary: int,
        adapters: Adapters,
        *,
        sorts_slowly: bool = False,
        overlaps: bool = True,
    ) -> None:
        """`overlaps`: the device computes a step while the host goes on."""
        self.rows: list[Row] = []
        self.groups = groups
        self._tokenizer = tokenizer
        self._adapters = adapters
        self._sampler = BatchSampler(tokenizer, sorts_slowly=sorts_slowly)
        self._mask_words = -(-vocabulary // 32)
        self._drawn: Sampled | None = None
        self._drawn_rows: list[Row] = []
        self.overlaps = overlaps
        self.built = False  # the next step is under way
        self._logits: list[mx.array] = []  # [n, vocabulary] each: of the step, then of rows that joined since
        self._places: dict[Row, int] = {}  # of rows in `_logits`, put together

    def join(
        self,
        row: Row,
        cache: PromptCache,
        logits: mx.array,
        slot: Slot,
    ) -> None:
        """Take a row whose tokens are in `cache`; `logits` [1, vocabulary] follow them. The cache may be used again, if
        it does not lie in the slot."""
        row.joined, row.slot = len(row.tokens), slot
        self.groups.join(cache, slot, row.request.shift)
        self._places[row] = sum(part.shape[0] for part in self._logits)
        self._logits.append(logits)
        job = row.request.job
        self._sampler.join(
            job.request.sampling,
            seed=choice_seed(job.seed, row.choice),
            prompt=row.tokens,
            logprobs=row.wanted,
            generated=row.generated,
        )
        self.rows.append(row)

    def leave(self, gone: list[Row]) -> None:
        if not gone:
            return
        leaving = set(gone)
        self.groups.leave([row.slot for row in gone])
        self._sampler.leave([index for index, row in enumerate(self.rows) if row not in leaving])
        self.rows = [row for row in self.rows if row not in leaving]
        if not self.rows:
            self._forget_step()

    def _forget_step(self) -> None:
        self.built, self._logits, self._places = False, [], {}

    def forward(self) -> None:
        """Build the next step of all rows, and have the device compute it."""
        self.groups.compact()
        fresh = [row for row in self.rows if row.fresh is not None]
        sources = [] if self._drawn is None else [self._drawn.tokens]
        drawn = sources[0].size if sources else 0
        if fresh:
            sources.append(mx.array([row.fresh for row in fresh], dtype=mx.int32))
            for index, row in enumerate(fresh):
                row.source, row.fresh = drawn + index, None
        source = mx.concatenate(sources) if len(sources) > 1 else sources[0]
        results = []
        self._places = {}
        start = 0
        for group, mine in self._by_group():
            picked = [mine[slot].source if slot in mine else 0 for slot in range(group.low, group.high)]
            self._choose_adapters(group, mine)
            logits = group.forward(_pick(source, picked)[:, None])
            results.append(logits[:, -1])
            self._places |= {row: start + slot - group.low for slot, row in mine.items()}
            start += group.high - group.low
        self._logits = results
        self.built = True
        mx.async_eval(*results)  # type: ignore[no-untyped-call]

    def _by_group(self) -> Iterable[tuple[SlotGroup, dict[int, Row]]]:
        """The groups that have rows, and these by the indexes of their slots."""
        found: dict[SlotGroup, dict[int, Row]] = {}
        for row in self.rows:
            found.setdefault(row.slot.group, {})[row.slot.index] = row
        return found.items()

    def fit(self, limit: int, count: int = 1) -> bool:
        """See `CacheGroups.fit`."""
        for row in self.rows:
            if row.ticket.kind != row.slot.length_class:
                self.groups.promote(row.slot, row.ticket.kind)
        return self.groups.fit(limit, count)

    def _choose_adapters(self, group: SlotGroup, rows: dict[int, Row]) -> None:
        if len(self._adapters):
            slots = range(group.low, group.high)
            self._adapters.choose([rows[slot].request.adapter if slot in rows else 0 for slot in slots])

    def sample(self) -> None:
        """Draw for the rows that are here now, as masks and forced tokens have it."""
        logits = self._logits[0] if len(self._logits) == 1 else mx.concatenate(self._logits)
        logits = _pick(logits, [self._places[row] for row in self.rows])
        masked, masks = self._masks()
        drawn = self._sampler.sample(logits, masks, masked or None)
        mx.async_eval(*drawn.arrays())  # type: ignore[no-untyped-call]
        self._forget_step()
        self._drawn, self._drawn_rows = drawn, list(self.rows)
        for index, row in enumerate(self.rows):
            row.source, row.fresh = index, None  # one that was preempted may have another input from before

    def _masks(self) -> tuple[list[int], NDArray[np.int32] | None]:
        masked = [place for place, row in enumerate(self.rows) if row.decoder.needs_mask]
        if not masked:
            return [], None
        masks = np.zeros((len(masked), self._mask_words), dtype=np.int32)
        for mask, place in zip(masks, masked, strict=True):
            self.rows[place].decoder.fill_mask(mask)
        return masked, masks

    def read(self) -> list[tuple[Row, Choice]]:
        """The last draw on the host, of the rows that are still here; each draw is read once."""
        if self._drawn is None or not self._drawn_rows:
            return []
        rows, self._drawn_rows = self._drawn_rows, []
        choices = self._drawn.read(self._tokenizer, [row.wanted for row in rows])
        live = set(self.rows)
        return [(row, choice) for row, choice in zip(rows, choices, strict=True) if row in live]

    def check(self, proposals: list[list[int]]) -> list[list[Choice]]:
        """A step over each row's last token and the tokens proposed after it, which the host knows all.

        Gives what the model chose for each row: the proposals as far as it agrees, and one token more.
        """
        width = max(map(len, proposals)) + 1
        tokens = np.zeros((len(self.rows), width), np.int32)
        for place, (row, proposed) in enumerate(zip(self.rows, proposals, strict=True)):
            tokens[place, : len(proposed) + 1] = [row.tokens[-1], *proposed]
        order = {row: place for place, row in enumerate(self.rows)}
        results, places = [], {}
        start = 0
        for group, mine in self._by_group():
            inputs = np.zeros((group.high - group.low, width), np.int32)
            for slot, row in mine.items():
                inputs[slot - group.low] = tokens[order[row]]
                places[row] = start + slot - group.low
            self._choose_adapters(group, mine)
            results.append(group.forward(mx.array(inputs)))
            start += group.high - group.low
        logits = results[0] if len(results) == 1 else mx.concatenate(results)
        logits = _pick(logits, [places[row] for row in self.rows])
        drawn = self._sampler.sample_ahead(logits, tokens[:, 1:], *self._masks_ahead(proposals, width))
        wanted = [row.wanted for row in self.rows]
        choices = [each.read(self._tokenizer, wanted) for each in drawn]
        chosen = [
            _agreed(proposed, [each[place] for each in choices]) for place, proposed in enumerate(proposals)
        ]
        self._settle(chosen, width)
        return chosen

    def _masks_ahead(
        self, proposals: list[list[int]], width: int
    ) -> tuple[list[NDArray[np.int32] | None], list[list[int] | None]]:
        masked = [place for place, row in enumerate(self.rows) if row.decoder.needs_mask]
        if not masked:
            return [], []
        masks = np.full((width, len(masked), self._mask_words), -1, dtype=np.int32)
        for index, place in enumerate(masked):
            own = np.full((len(proposals[place]) + 1, self._mask_words), -1, dtype=np.int32)
            self.rows[place].decoder.masks_ahead(proposals[place], own)
            masks[: len(own), index] = own
        return list(masks), [masked] * width

    def _settle(self, chosen: list[list[Choice]], width: int) -> None:
        """Take the caches back to what was chosen, and let the sampler remember it."""
        tokens = np.zeros((len(chosen), width), np.int32)
        for place, (row, choices) in enumerate(zip(self.rows, chosen, strict=True)):
            tokens[place, : len(choices)] = [choice.token for choice in choices]
            row.slot.rewind(width - len(choices))
            row.fresh = choices[-1].token
        self._sampler.commit(tokens, np.array([len(choices) for choices in chosen], np.int32))
        self._drawn, self._drawn_rows = None, []


def _pick(array: mx.array, indices: list[int]) -> mx.array:
    return array if indices == list(range(array.shape[0])) else array[mx.array(indices)]


def _agreed(proposed: list[int], choices: list[Choice]) -> list[Choice]:
    """The choices up to the first that is not the proposal."""
    for place, token in enumerate(proposed):
        if choices[place].token != token:
            return choices[: place + 1]
    return choices[: len(proposed) + 1]
