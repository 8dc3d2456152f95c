"""Computing prompts: a chunk at a time, each in a cache of its own."""

from collections.abc import Container, Sequence

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import KVCache

from pippin.core.events import Event, Progress, Token, TopToken
from pippin.engines.language.kv_cache.groups import RowGroups
from pippin.engines.language.kv_cache.kinds import RowCache, arrays_of, new_row_cache
from pippin.engines.language.model.head import Head
from pippin.engines.language.model.lora import Adapters
from pippin.engines.language.prefix_cache.cache import PrefixCache
from pippin.engines.language.step.scheduler import Scheduler, Ticket
from pippin.engines.language.step.sequences import Prompt, Request
from pippin.engines.language.text.tokenizer import Tokenizer

SCORED_CHUNK = 64  # tokens whose logits over the vocabulary are held at once


def compute_chunk(model: nn.Module, head: Head, prompt: Prompt, tokens: int, *, wait: bool) -> None:
    """Add the next `tokens` of the prompt to its cache, and note the logits after its last one; `wait` until the
    device has filled the cache."""
    start = prompt.ticket.computed
    with head.only([tokens - 1]):
        logits = head.last(_run(model, prompt, start, tokens), [tokens - 1])
    note_logits(prompt, tokens, logits)
    start_computing([prompt], wait=wait)


def start_computing(prompts: Sequence[Prompt], *, wait: bool) -> None:
    """Hand chunks to the device. Logits with them: they look at the cache, and a look that waits would have what is
    next written there copy all of it."""
    arrays = [array for prompt in prompts for array in arrays_of(prompt.cache or [])]
    arrays += [prompt.logits for prompt in prompts if prompt.logits is not None]
    if wait:
        mx.eval(arrays)
    else:
        mx.async_eval(*arrays)  # type: ignore[no-untyped-call]


def note_logits(prompt: Prompt, count: int, logits: mx.array) -> None:
    """`logits` [1, vocabulary] follow the next `count` tokens: they matter if no more come."""
    if count == prompt.ticket.remaining:
        prompt.logits = logits


def _run(model: nn.Module, prompt: Prompt, start: int, count: int) -> mx.array:
    """Logits [1, count, vocabulary] of tokens of the prompt, from `start` on."""
    tokens = prompt.tokens[start : start + count]
    viewing = prompt.request.viewing
    given = {} if viewing is None else {"inputs": viewing.inputs(tokens, start)}
    logits: mx.array = model(mx.array([tokens]), cache=prompt.cache, **given)
    return logits


def score_chunk(
    model: nn.Module, prompt: Prompt, tokens: int, tokenizer: Tokenizer, alternatives: int
) -> None:
    """As `compute_chunk`, and note the logprob of each token that follows one of these."""
    assert prompt.cache is not None
    start = prompt.ticket.computed
    if not prompt.scores:
        prompt.scores.append(Token(prompt.tokens[0], tokenizer.raw(prompt.tokens[0]), None))
    while tokens > 0:
        count = prompt.border(start + min(tokens, SCORED_CHUNK), start) - start
        logits = _run(model, prompt, start, count)[0].astype(mx.float32)
        if start + count == len(prompt.tokens):
            prompt.logits = logits[-1:]
            mx.eval(prompt.logits)
            logits = logits[:-1]
            if not logits.size:
                break
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        targets = prompt.tokens[start + 1 : start + count + 1]
        chosen = mx.take_along_axis(logprobs, mx.array(targets)[:, None], axis=-1)[:, 0]
        best = mx.argsort(-logprobs, axis=-1)[:, :alternatives]
        scores = mx.take_along_axis(logprobs, best, axis=-1)
        mx.eval(chosen, best, scores, arrays_of(prompt.cache))
        rows = zip(
            targets,
            np.array(chosen).tolist(),
            np.array(best).tolist(),
            np.array(scores).tolist(),
            strict=True,
        )
        for token, logprob, ids, values in rows:
            top = tuple(
                TopToken(other, tokenizer.raw(other), value) for other, value in zip(ids, values, strict=True)
            )
            prompt.scores.append(Token(token, tokenizer.raw(token), logprob, top))
        start, tokens = start + count, tokens - count


MOST_PADDING = 1.5  # padded tokens for each real one
MOST_CONTEXT = 8192  # tokens of all prompts' caches, which a pass copies side by side


class JoinedCache:
    """One layer's caches of several prompts, as a model sees one cache. Rows are padded on the right."""

    def __init__(self, caches: Sequence[KVCache], counts: Sequence[int]) -> None:
        self._caches = caches
        self._counts = counts
        self._before = [cache.offset for cache in caches]
        self._longest = max(before + count for before, count in zip(self._before, counts, strict=True))
        self._starts = mx.array(self._before, dtype=mx.int32)
        self._written = False

    @property
    def offset(self) -> mx.array:
        return self._starts + mx.array(list(self._counts), dtype=mx.int32) if self._written else self._starts

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Give each cache its own tokens; all keys and values, [prompts, heads, longest, dim]."""
        self._written = True
        for row, (cache, count) in enumerate(zip(self._caches, self._counts, strict=True)):
            own = slice(row, row + 1)
            cache.update_and_fetch(keys[own, :, :count], values[own, :, :count])
        # All written before any is looked at: they may lie in one array, which would be copied otherwise.
        found = [cache.keys_and_values() for cache in self._caches]
        return self._side_by_side([pair[0] for pair in found]), self._side_by_side(
            [pair[1] for pair in found]
        )

    def _side_by_side(self, parts: list[mx.array]) -> mx.array:
        padded = [
            mx.pad(part, [(0, 0), (0, 0), (0, self._longest - part.shape[2]), (0, 0)])
            if part.shape[2] < self._longest
            else part
            for part in parts
        ]
        return mx.concatenate(padded)

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        queries = (self._starts[:, None] + mx.arange(N))[..., None]
        keys = mx.arange(self._longest)
        mask = keys <= queries
        if window_size is not None:
            mask = mask & (keys > queries - window_size)
        return mask[:, None]


def can_join(cache: RowCache) -> bool:
    return all(type(layer) is KVCache for layer in cache)


def fits(counts: Sequence[int], contexts: Sequence[int]) -> bool:
    """Whether chunks of so many tokens, after so many each, are worth computing together."""
    width = max(counts)
    longest = max(context + count for context, count in zip(contexts, counts, strict=True))
    return width * len(counts) <= MOST_PADDING * sum(counts) and longest * len(counts) <= MOST_CONTEXT


def compute_together(
    model: nn.Module, head: Head, prompts: Sequence[Prompt], counts: Sequence[int], *, wait: bool
) -> None:
    """As `compute_chunk`, with the next `counts` tokens of each prompt."""
    rows = [prompt.cache or [] for prompt in prompts]
    width = max(counts)
    tokens = []
    for prompt, count in zip(prompts, counts, strict=True):
        start = prompt.ticket.computed
        tokens.append([*prompt.tokens[start : start + count], *[0] * (width - count)])
    layers = [JoinedCache(caches, counts) for caches in zip(*rows, strict=True)]
    places = [count - 1 for count in counts]
    with head.only(places):
        logits = head.last(model(mx.array(tokens), cache=layers), places)
    for row, (prompt, count) in enumerate(zip(prompts, counts, strict=True)):
        note_logits(prompt, count, logits[row : row + 1])
    start_computing(prompts, wait=wait)


MOST_STRETCH = 1.25  # of a chunk, so that a prompt ends with it


class Prompts:
    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        scheduler: Scheduler,
        groups: RowGroups,
        prefixes: PrefixCache | None,
        adapters: Adapters,
        *,
        head: Head,
        joint: bool,
    ) -> None:
        """`joint`: the model was found to compute rows of different lengths together."""
        self._model = model
        self._groups = groups
        self._head = head
        self._tokenizer = tokenizer
        self._scheduler = scheduler
        self._prefixes = prefixes
        self._adapters = adapters
        self._prompts: dict[Ticket, Prompt] = {}
        self._can_join = joint and can_join(new_row_cache(model))

    def __len__(self) -> int:
        return len(self._prompts)

    def add(self, prompt: Prompt) -> None:
        prompt.request.prompts.append(prompt)
        self._prompts[prompt.ticket] = prompt

    def drop(self, prompt: Prompt) -> None:
        self.forget(prompt)
        self.remove(prompt)

    def forget(self, prompt: Prompt) -> None:
        """Let go of what was computed."""
        if prompt.reservation is not None:
            self._groups.release(prompt.ticket, prompt.reservation)
        prompt.forget()

    def remove(self, prompt: Prompt) -> None:
        """It is none any more, but rows."""
        prompt.request.prompts.remove(prompt)
        del self._prompts[prompt.ticket]

    def of(self, ticket: Ticket) -> Prompt:
        return self._prompts[ticket]

    def release(self) -> None:
        """Look again whether those that wait for others, or for the disk, still must."""
        for ticket in self._prompts:
            ticket.held = False

    def next(self, besides: Container[Ticket] = ()) -> Prompt | None:
        """The prompt to work on now, begun and not done."""
        while (ticket := self._scheduler.next_prompt(besides)) is not None:
            prompt = self._prompts[ticket]
            if prompt.begun or self._begin(prompt):
                return prompt
        return None

    def done(self) -> list[Prompt]:
        """Prompts that are computed."""
        return [self._prompts[ticket] for ticket in self._scheduler.done()]

    def _begin(self, prompt: Prompt) -> bool:
        """Start from what the prefix cache has; False if the prompt had better wait for one that is under way."""
        request, ticket = prompt.request, prompt.ticket
        prefixes = None if _scores(prompt) else self._prefixes
        if prefixes is not None:
            ahead = [
                other
                for other in self._prompts.values()
                if (other.begun or other.loading) and other.ticket.priority >= ticket.priority
            ]
            if prefixes.leader(prompt, ahead) is not None or not prefixes.fetched(prompt):
                ticket.held = True
                return False
        self._open(prompt)
        if prefixes is not None:
            self._scheduler.begun(ticket, prefixes.begin(prompt))
            if request.computed is None:
                request.cached = ticket.computed
        prompt.begun = True
        return True

    def _open(self, prompt: Prompt) -> None:
        """Give the prompt a cache, in the slot of its row if it becomes one."""
        ticket = prompt.ticket
        if self._scheduler.reserves(ticket):
            self._groups.limit = self._scheduler.for_rows()
            prompt.reservation = self._groups.reserve(ticket, coming=self._scheduler.coming(ticket))
        ticket.reserved = prompt.reservation is not None
        prompt.cache = (
            new_row_cache(self._model, ticket.length)
            if prompt.reservation is None
            else prompt.reservation.cache
        )

    def compute(self, prompt: Prompt, most: int, *, wait: bool) -> tuple[int, list[Prompt]]:
        """Add up to `most` tokens to this prompt, and to others that are best computed along with it, or compute
        the features of the medium that comes first; gives how many tokens it was, or stands for, and the prompts."""
        request, ticket = prompt.request, prompt.ticket
        count = self._count(prompt, most)
        if request.viewing is not None:
            medium = request.viewing.missing(ticket.computed, ticket.computed + count)
            if medium is not None:
                request.viewing.compute(medium, wait=wait)
                return max(len(medium.placeholders), 1), []
        prompts, counts = self._together(prompt, count, most)
        self._adapters.choose([each.request.adapter for each in prompts])
        if _scores(prompt):
            score_chunk(self._model, prompt, count, self._tokenizer, _alternatives(request))
        elif len(prompts) == 1:
            compute_chunk(self._model, self._head, prompt, count, wait=wait)
        else:
            compute_together(self._model, self._head, prompts, counts, wait=wait)
        for each, added in zip(prompts, counts, strict=True):
            self._scheduler.computed(each.ticket, added)
            each.chunks += 1
            self._keep(each)
        return sum(counts), prompts

    def _count(self, prompt: Prompt, most: int) -> int:
        """Tokens of the prompt's next chunk."""
        computed = prompt.ticket.computed
        ahead = [border - computed for border in prompt.borders if border > computed]
        remaining = min([prompt.ticket.remaining, *ahead])
        # What little would be left costs a whole pass, too.
        count = remaining if remaining <= MOST_STRETCH * most else most
        alone = not self._head.works and count == prompt.ticket.remaining > 1
        return prompt.border(computed + count - alone, computed) - computed

    def _together(self, first: Prompt, count: int, most: int) -> tuple[list[Prompt], list[int]]:
        """The prompt, and others whose chunks are computed in the same pass; how many tokens of each."""
        prompts, counts = [first], [count]
        while self._joins(first, count) and sum(counts) < most:
            other = self.next({prompt.ticket for prompt in prompts})
            if other is None:
                break
            more = self._count(other, most)
            computed = [*(prompt.ticket.computed for prompt in prompts), other.ticket.computed]
            beyond = sum(counts) + more > MOST_STRETCH * most
            if beyond or not self._joins(other, more) or not fits([*counts, more], computed):
                break
            prompts.append(other)
            counts.append(more)
        return prompts, counts

    def _joins(self, prompt: Prompt, count: int) -> bool:
        short = count <= self._scheduler.limits.prefill_chunk // 4
        return self._can_join and short and not _scores(prompt) and prompt.request.viewing is None

    def _keep(self, prompt: Prompt) -> None:
        """Remember what is computed of a prompt, for others to start from."""
        if self._prefixes is None or prompt.cache is None:
            return
        request, done = prompt.request, prompt.ticket.computed
        stored = self._prefixes.keep(request.job.key, prompt.identity[:done], prompt.cache, request.job.pins)
        if request.computed is None:
            request.stored += stored


def progress_of(prompt: Prompt) -> list[Event]:
    """What to tell of a prompt after a chunk: nothing where one chunk was all."""
    request, ticket = prompt.request, prompt.ticket
    if request.computed is not None or (prompt.chunks == 1 and not ticket.remaining):
        return []
    return [Progress(ticket.computed, len(request.job.prompt), request.cached)]


def _scores(prompt: Prompt) -> bool:
    return prompt.request.scores_prompt and prompt.request.computed is None


def _alternatives(request: Request) -> int:
    """Likeliest tokens to note beside each of the prompt's own."""
    asked = request.job.request.prompt_logprobs
    return asked if asked is not None else request.job.request.logprobs or 0
