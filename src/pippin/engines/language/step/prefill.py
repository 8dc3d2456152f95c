"""Prefill: computes prompts a chunk at a time, starting where the prefix cache ends."""

import math
import time
from collections.abc import Container, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from pippin.core.events import Token
from pippin.engines.language.kv_cache.kinds.base import PromptCache
from pippin.engines.language.kv_cache.layout import arrays_of, leaves, worth_joining
from pippin.engines.language.prefix_cache.cache import NoPrefixes, PrefixCache, shared_length
from pippin.engines.language.sampling.sampler import score
from pippin.engines.language.step.batch import Batch
from pippin.engines.language.step.branches import Scoring
from pippin.engines.language.step.scheduler import Scheduler
from pippin.engines.language.step.sequences import Prefilling, RestingChunk

SCORED_CHUNK = 64  # tokens whose logits over the vocabulary are held at once
MOST_STRETCH = 1.25  # times a chunk's size, for a chunk that ends its prompt


class Prefill:
    """Computes the prompts under way, in the order that the scheduler decides."""

    def __init__(self, batch: Batch, scheduler: Scheduler, prefixes: PrefixCache) -> None:
        """`batch`: where the prompts' sequences will run."""
        self._model = batch.model
        self._groups = batch.groups
        self._followers = batch.followers
        self._scheduler = scheduler
        self._prefixes = prefixes

    def next(self, besides: Container[Prefilling] = ()) -> Prefilling | None:
        """The prompt to work on now, or None if all must wait. It has a cache filled from the prefix cache."""
        while (prompt := self._scheduler.next_prompt(besides)) is not None:
            if prompt.cache is not None or self._begin(prompt):
                return prompt
        return None

    def discard(self, prompt: Prefilling, *, joined: bool = False) -> None:
        """Drop a prompt's computed state: its sequences have `joined` the batch, or it is cancelled or preempted.

        The prefix cache has its chunks, so a retry resumes from there. For layers that cannot be cut, only states after
        chunks that ended with a block are there: work after the last of these is lost.
        """
        if prompt.chunk is not None:
            self._abandon(prompt.chunk)
        if prompt.request.media is not None:
            prompt.request.media.give_up()
        if prompt.slot is not None and not joined:
            self._groups.leave([prompt.slot])
        for each in self._followers:
            each.prompt_dropped(prompt)
        prompt.cache = prompt.logits = prompt.slot = prompt.scoring = None

    def compute(
        self, prompt: Prefilling, most: int, *, wait: bool, until: float | None = None
    ) -> tuple[int, list[Prefilling]]:
        """Do one piece of work on this prompt: add up to `most` tokens to it and to others that are best computed with
        it, or encode the next medium. Returns how many tokens this computed, or what it cost in tokens, and the prompts
        that grew.

        `wait`: block until the device is done. `until`: when a pass is to rest (monotonic seconds), where it can.
        """
        if prompt.chunk is not None:
            return self._go_on(prompt.chunk, math.inf if until is None else until)
        if not prompt.remaining:
            return self._compute_branches(prompt, most), [prompt]
        media, count = prompt.request.media, self._count(prompt, most)
        if media is not None:
            medium = media.missing(prompt.computed, prompt.computed + count)
            if medium is not None:
                done = media.encode(medium, wait=wait, until=until)
                if wait or until is not None:
                    self._scheduler.rested(0, 0.0)  # its time is none of a chunk
                return max(len(medium.placeholders), 1) if done else 0, []
        prompts, counts = self._together(prompt, count, most)
        if until is not None and self.rests(prompt):
            tokens, caches, _ = self._next_tokens(prompts, counts)
            parts = self._model.module.in_parts(*self._groups.layout.together(tokens, caches))
            chunk = RestingChunk(prompts, counts, parts)
            for each in prompts:
                each.chunk = chunk
            return self._go_on(chunk, until)
        self._choose_adapters(prompts)
        if _is_scored(prompt):
            self._compute_scored(prompt, count)
        else:
            self._compute(prompts, counts, wait=wait)
        return self._computed(prompts, counts)

    def _computed(self, prompts: list[Prefilling], counts: Sequence[int]) -> tuple[int, list[Prefilling]]:
        for each, added in zip(prompts, counts, strict=True):
            self._scheduler.computed(each, added)
            self._keep(each)
        return sum(counts), prompts

    def _choose_adapters(self, prompts: Sequence[Prefilling]) -> None:
        if self._model.adapters.names:
            self._model.adapters.choose([each.request.adapter for each in prompts])

    def rests(self, prompt: Prefilling) -> bool:
        """Whether a pass over this prompt can rest between steps."""
        # Whoever follows the states of passes gets those of whole ones.
        able = hasattr(self._model.module, "in_parts") and not self._followers
        return able and prompt.request.media is None and not _is_scored(prompt) and prompt.remaining > 0

    def _go_on(self, chunk: RestingChunk, until: float) -> tuple[int, list[Prefilling]]:
        """Compute parts of a chunk, at least one, until another is not expected to end by `until`."""
        self._choose_adapters(chunk.prompts)
        last = [count - 1 for count in chunk.counts]
        logits, now = None, time.monotonic()
        with self._model.head.only(last):
            for part in chunk.parts:
                logits, began, now = part, now, time.monotonic()
                chunk.seconds, chunk.done = chunk.seconds + now - began, chunk.done + 1
                if now + chunk.seconds / chunk.done > until:
                    break
        if logits is None:
            self._scheduler.rested(0, 0.0)
            return 0, []
        logits = self._model.head.last(logits, last)
        mx.eval(logits)
        for row, (prompt, count) in enumerate(zip(chunk.prompts, chunk.counts, strict=True)):
            prompt.chunk = None
            if count == prompt.remaining:
                prompt.logits = logits[row : row + 1]
        found = self._computed(chunk.prompts, chunk.counts)
        self._scheduler.rested(sum(chunk.counts), chunk.seconds)
        return found

    def _abandon(self, chunk: RestingChunk) -> None:
        """One of its prompts goes: the others are as before it. They have keys and values alone, or they would not
        have been joined."""
        for prompt, count in zip(chunk.prompts, chunk.counts, strict=True):
            prompt.chunk = None
            for leaf in leaves(prompt.cache or []) if len(chunk.prompts) > 1 else ():
                leaf.trim(count)

    def _begin(self, prompt: Prefilling) -> bool:
        """Give the prompt a cache with its known tokens. False if it should wait for the disk, or for a prompt that
        computes the prefix that both share."""
        # All of its own tokens are to be scored, so none counts as known.
        prefixes = NoPrefixes() if _is_scored(prompt) else self._prefixes
        if self._waits_for_another(prompt, prefixes) or _waits_for_disk(prompt, prefixes):
            self._scheduler.pause(prompt)
            return False
        prompt.cache = self._new_cache(prompt)
        known = self._restore(prompt, prompt.cache, prefixes)
        self._scheduler.begin(prompt, known, in_slot=prompt.slot is not None)
        return True

    def _waits_for_another(self, prompt: Prefilling, prefixes: PrefixCache) -> bool:
        """Whether a prompt under way will soon have computed more of this one than the prefix cache has."""
        if not prefixes.keeps:
            return False
        key, identity = prompt.request.job.key, prompt.identity
        known = prefixes.match(key, identity).known
        for other in self._scheduler.prefilling:
            under_way = other.cache is not None or other.disk_read is not None
            if (
                other is prompt
                or not under_way
                or other.priority < prompt.priority
                or other.request.job.key != key
            ):
                continue
            common = shared_length(identity, other.identity)
            shared = other.request.block_end(common, prefixes.block_tokens)
            if shared > max(known, other.computed):
                if prefixes.has_snapshots:
                    # States of layers that cannot be cut are kept only at the end of a chunk: one must end here.
                    other.chunk_ends.add(shared)
                return True
        return False

    def _new_cache(self, prompt: Prefilling) -> PromptCache:
        """A new cache; in the slot of its sequence, if the prompt has only one."""
        branches = prompt.request.job.branches
        if branches or not self._scheduler.computes_in_slot(prompt.count):
            longest = max((branch.longest for branch in branches), default=0)
            return self._groups.layout.new_prompt_cache(prompt.length + longest)
        request = self._scheduler.slot_request(prompt)
        prompt.slot = self._groups.reserve(request, self._scheduler.for_running())
        return prompt.slot.group.prompt_cache(prompt.slot)

    def _restore(self, prompt: Prefilling, cache: PromptCache, prefixes: PrefixCache) -> int:
        """Copy the prompt's known tokens from the prefix cache; return how many there are."""
        request = prompt.request
        # The last token is always computed, because its logits are drawn from.
        asked = prompt.identity[:-1]
        # A block may end inside a medium only if all of the medium's first part is known, so media use whole blocks.
        match = prefixes.match(request.job.key, asked, whole_blocks=request.media is not None)
        if prefixes.has_snapshots:
            ends = {match.asked, match.in_tree, *request.job.pins, *request.job.partings}
            wanted, spare = (
                {request.block_end(end, prefixes.block_tokens) for end in each if end <= match.asked}
                for each in (ends, request.job.spares)
            )
            prompt.chunk_ends |= wanted | spare
            prompt.spare_ends = spare - wanted
        prefixes.restore(match, cache)
        if request.prefilled is None:
            request.cached_tokens = match.known
        return match.known

    def _keep(self, prompt: Prefilling) -> None:
        """Store the computed part of a prompt in the prefix cache."""
        request = prompt.request
        tokens = prompt.identity[: prompt.computed]
        key, spare = request.job.key, prompt.computed in prompt.spare_ends
        stored = self._prefixes.keep(key, tokens, prompt.cache or [], request.job.pins, spare=spare)
        if request.prefilled is None and stored:
            # A part of the first stored block may have been known already.
            partly = 0 if request.stored_tokens else request.cached_tokens % self._prefixes.block_tokens
            request.stored_tokens += stored - partly

    def _count(self, prompt: Prefilling, most: int) -> int:
        """How many tokens the prompt's next chunk has."""
        computed = prompt.computed
        most = min(most, self._scheduler.limits.longest_chunk(computed))
        ahead = [end - computed for end in prompt.chunk_ends if end > computed]
        remaining = min([prompt.remaining, *ahead])
        # A small rest would cost a whole pass too, so the chunk is stretched to take it.
        count = remaining if remaining <= MOST_STRETCH * most else most
        # If the head cannot compute logits of one position alone, the last token is computed by itself.
        last_alone = not self._model.head.works and count == prompt.remaining > 1
        end = prompt.request.chunk_end(computed + count - last_alone, computed)
        if self._prefixes.has_snapshots and count < prompt.remaining:
            # States of layers that cannot be cut are kept only at ends of blocks: a cancelled prompt can resume from
            # there.
            aligned = prompt.request.block_end(end, self._prefixes.block_tokens)
            end = aligned if aligned > computed else end
        return end - computed

    def _together(self, first: Prefilling, count: int, most: int) -> tuple[list[Prefilling], list[int]]:
        """This prompt and others whose chunks share its pass, and how many tokens of each."""
        prompts, counts = [first], [count]
        while self._joins(first, count) and sum(counts) < most:
            other = self.next(prompts)
            if other is None or not other.remaining:
                break
            more = self._count(other, most)
            computed = [*(prompt.computed for prompt in prompts), other.computed]
            beyond = sum(counts) + more > MOST_STRETCH * most
            if beyond or not self._joins(other, more) or not worth_joining([*counts, more], computed):
                break
            prompts.append(other)
            counts.append(more)
        return prompts, counts

    def _joins(self, prompt: Prefilling, count: int) -> bool:
        short = count <= self._scheduler.limits.prefill_chunk // 4
        is_text = prompt.request.media is None
        joins = self._model.joins_prompts and prompt.chunk is None
        return joins and short and is_text and not _is_scored(prompt)

    def _compute(self, prompts: Sequence[Prefilling], counts: Sequence[int], *, wait: bool) -> None:
        """Add the next `counts` tokens to the caches of these prompts in one pass, and keep the logits of those that
        end."""
        last = [count - 1 for count in counts]
        with self._model.head.only(last):
            logits = self._model.head.last(self._pass(*self._next_tokens(prompts, counts)), last)
        arrays: list[mx.array] = []
        for each in self._followers:
            arrays += each.prompts_passed(prompts, counts)
        for row, (prompt, count) in enumerate(zip(prompts, counts, strict=True)):
            arrays += arrays_of(prompt.cache or [])
            if count == prompt.remaining:
                prompt.logits = logits[row : row + 1]
                # Evaluated along with the caches: a graph that still refers to the caches would make the next write to
                # them copy everything.
                arrays.append(prompt.logits)
        if wait:
            mx.eval(arrays)
        else:
            mx.async_eval(*arrays)  # type: ignore[no-untyped-call]

    def _next_tokens(
        self, prompts: Sequence[Prefilling], counts: Sequence[int], done: int = 0
    ) -> tuple[list[tuple[int, ...]], list[PromptCache], dict[str, Any]]:
        """The next tokens of each prompt, its cache, and what the model takes beside them. `done`: tokens in the cache
        that the scheduler has not been told of yet."""
        starts = [prompt.computed + done for prompt in prompts]
        tokens = [
            prompt.tokens[start : start + count]
            for prompt, start, count in zip(prompts, starts, counts, strict=True)
        ]
        media = prompts[0].request.media  # such a prompt is alone
        given = {} if media is None else {"inputs": media.inputs(tokens[0], starts[0])}
        return tokens, [prompt.cache or [] for prompt in prompts], given

    def _pass(
        self, tokens: Sequence[tuple[int, ...]], caches: Sequence[PromptCache], given: dict[str, Any]
    ) -> mx.array:
        """Logits [caches, width, vocabulary] of the next `tokens` of each cache, padded on the right to the longest;
        `given` is what the model takes beside them."""
        inputs, layers = self._groups.layout.together(tokens, caches)
        logits: mx.array = self._model.module(inputs, cache=layers, **given)
        return logits

    def _compute_branches(self, prompt: Prefilling, most: int) -> int:
        """Compute and score the next tokens of some branches; return how many."""
        if prompt.scoring is None:
            cache, layout = prompt.cache or [], self._groups.layout
            prompt.scoring = Scoring(prompt.request.job, cache, layout, prompt.rows)
        chunks = prompt.scoring.take(min(most, self._scheduler.limits.longest_chunk(prompt.length)))
        self._choose_adapters([prompt] * len(chunks))
        # Rows may have different places; those that have fewer repeat one.
        places = [sorted({score.place for score in chunk.scores}) for chunk in chunks]
        width = max(1, *map(len, places))
        wanted = [[*each, *[each[-1] if each else 0] * (width - len(each))] for each in places]
        tokens, caches = [chunk.tokens for chunk in chunks], [chunk.cache for chunk in chunks]
        given = {} if prompt.request.media is None else {"shift": prompt.request.shift}
        head = self._model.head
        with head.only(wanted):
            logits = self._pass(tokens, caches, given)
        if not head.works:
            logits = logits[mx.arange(len(chunks))[:, None], mx.array(wanted)]
        logits = logits.astype(mx.float32)
        scores = [score for chunk in chunks for score in chunk.scores]
        rows = [row for row, chunk in enumerate(chunks) for _ in chunk.scores]
        columns = [places[row].index(score.place) for row, score in zip(rows, scores, strict=True)]
        # By one index at a time, which a GPU has compiled for draws.
        at = [row * width + column for row, column in zip(rows, columns, strict=True)]
        named = [place * logits.shape[-1] + score.token for place, score in zip(at, scores, strict=True)]
        # A type for each: chunks may end before the first token that is scored, and an empty list is one of floats.
        norms = mx.logsumexp(logits, axis=-1).reshape(-1)[mx.array(at, mx.int32)]
        found = logits.reshape(-1)[mx.array(named, mx.int32)] - norms
        mx.eval(found, [arrays_of(cache) for cache in caches])
        prompt.scoring.add(scores, np.array(found).tolist())
        count = sum(map(len, tokens))
        self._scheduler.computed(prompt, count)
        return count

    def _compute_scored(self, prompt: Prefilling, count: int) -> None:
        """Like `_compute`, and also note the logprob of each token that follows one of these `count`."""
        tokenizer = self._model.tokenizer
        if not prompt.scores:
            first = prompt.tokens[0]
            prompt.scores.append(Token(first, tokenizer.raw(first), None))
        done = 0
        while done < count:
            start = prompt.computed + done
            piece = prompt.request.chunk_end(start + min(count - done, SCORED_CHUNK), start) - start
            # Not by an index, for which a GPU would compile.
            logits = self._pass(*self._next_tokens([prompt], [piece], done)).squeeze(0).astype(mx.float32)
            for each in self._followers:
                mx.eval(each.prompts_passed([prompt], [piece], done))
            done += piece
            if start + piece == prompt.length:
                prompt.logits = logits[-1:]
                mx.eval(prompt.logits)
                logits = logits[:-1]
            if logits.size:
                prompt.scores += self._scores(prompt, start + 1, logits)

    def _scores(self, prompt: Prefilling, start: int, logits: mx.array) -> list[Token]:
        """The prompt's tokens from position `start` on, scored by the logits [n, vocabulary] before each of them."""
        asked = prompt.request.job.request
        alternatives = asked.prompt_logprobs if asked.prompt_logprobs is not None else asked.logprobs or 0
        tokenizer = self._model.tokenizer
        targets = mx.array(prompt.tokens[start : start + logits.shape[0]])
        scored = score(logits, targets, tuple((row, alternatives) for row in range(targets.size)))
        mx.eval(scored.arrays(), arrays_of(prompt.cache or []))
        found = scored.read(tokenizer)
        return [Token(each.token, tokenizer.raw(each.token), each.logprob, each.top) for each in found]


def _is_scored(prompt: Prefilling) -> bool:
    return prompt.request.scores_prompt and prompt.request.prefilled is None


def _waits_for_disk(prompt: Prefilling, prefixes: PrefixCache) -> bool:
    """Fetch blocks of the prompt from the disk; return whether the read is still under way."""
    if not prompt.asked_disk:
        prompt.asked_disk = True
        prompt.disk_read = prefixes.read_disk(prompt.request.job.key, prompt.identity[:-1])
    if prompt.disk_read is None:
        return False
    if not prompt.disk_read.reply.done():
        return True
    prefixes.take(prompt.disk_read)
    prompt.disk_read = None
    return False
