"""Prompts on their way to become rows: looked up, computed a chunk at a time, kept for others."""

from collections.abc import Container

import mlx.nn as nn

from pippin.core.events import Event, Progress
from pippin.engines.language.head import Head
from pippin.engines.language.joint_prefill import can_join, compute_together, fits
from pippin.engines.language.lora import Adapters
from pippin.engines.language.prefill import compute_chunk, score_chunk
from pippin.engines.language.prefix_cache import PrefixCache
from pippin.engines.language.row_caches import new_row_cache
from pippin.engines.language.row_groups import RowGroups
from pippin.engines.language.rows import Prompt, Request
from pippin.engines.language.scheduler import Scheduler, Ticket
from pippin.engines.language.tokenizer import Tokenizer

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
                return max(len(medium.places), 1), []
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
