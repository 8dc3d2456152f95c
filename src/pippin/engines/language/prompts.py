"""Prompts on their way to become rows: looked up, computed a chunk at a time, kept for others."""

import mlx.nn as nn

from pippin.core.events import Event, Progress
from pippin.engines.language.lora import Adapters
from pippin.engines.language.prefill import compute_chunk, score_chunk
from pippin.engines.language.prefix_cache import PrefixCache
from pippin.engines.language.rows import Prompt, Request
from pippin.engines.language.scheduler import Scheduler, Ticket
from pippin.engines.language.tokenizer import Tokenizer


class Prompts:
    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        scheduler: Scheduler,
        prefixes: PrefixCache | None,
        adapters: Adapters,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._scheduler = scheduler
        self._prefixes = prefixes
        self._adapters = adapters
        self._prompts: dict[Ticket, Prompt] = {}

    def __len__(self) -> int:
        return len(self._prompts)

    def add(self, prompt: Prompt) -> None:
        prompt.request.prompts.append(prompt)
        self._prompts[prompt.ticket] = prompt

    def drop(self, prompt: Prompt) -> None:
        prompt.request.prompts.remove(prompt)
        del self._prompts[prompt.ticket]

    def of(self, ticket: Ticket) -> Prompt:
        return self._prompts[ticket]

    def release(self) -> None:
        """Look again whether those that wait for others, or for the disk, still must."""
        for ticket in self._prompts:
            ticket.held = False

    def next(self) -> Prompt | None:
        """The prompt to work on now, begun."""
        while (ticket := self._scheduler.next_prompt()) is not None:
            prompt = self._prompts[ticket]
            if prompt.begun or self._begin(prompt):
                return prompt
        return None

    def _begin(self, prompt: Prompt) -> bool:
        """Start from what the prefix cache has; False if the prompt had better wait for one that is under way."""
        request, ticket = prompt.request, prompt.ticket
        if self._prefixes is not None and not _scores(prompt):
            ahead = [
                other
                for other in self._prompts.values()
                if (other.begun or other.loading) and other.ticket.priority >= ticket.priority
            ]
            if self._prefixes.leader(prompt, ahead) is not None or not self._prefixes.fetched(prompt):
                ticket.held = True
                return False
            ticket.computed = self._prefixes.begin(prompt)
            if request.computed is None:
                request.cached = ticket.computed
        prompt.begun = True
        return True

    def compute(self, prompt: Prompt, most: int, *, wait: bool) -> tuple[int, list[Event]]:
        """Add up to `most` tokens of a prompt to its cache, or compute the features of the medium that comes first;
        gives how many tokens it was, or stands for, and what to tell of it."""
        request, ticket = prompt.request, prompt.ticket
        ahead = [border - ticket.computed for border in prompt.borders if border > ticket.computed]
        count = min(most, ticket.remaining, *ahead) if ahead else min(most, ticket.remaining)
        if request.viewing is not None:
            medium = request.viewing.missing(ticket.computed, ticket.computed + count)
            if medium is not None:
                request.viewing.compute(medium, wait=wait)
                return max(len(medium.places), 1), []
        first = ticket.computed == request.cached
        self._adapters.choose([request.adapter])
        if _scores(prompt):
            score_chunk(self._model, prompt, count, self._tokenizer, _alternatives(request))
        else:
            compute_chunk(self._model, prompt, count, wait=wait)
        self._scheduler.computed(ticket, count)
        self._keep(prompt)
        if request.computed is not None or (first and not ticket.remaining):
            return count, []
        done = ticket.computed + (not ticket.remaining)
        return count, [Progress(done, len(request.job.prompt), request.cached)]

    def _keep(self, prompt: Prompt) -> None:
        """Remember what is computed of a prompt, for others to start from."""
        if self._prefixes is None or prompt.cache is None:
            return
        request, done = prompt.request, prompt.ticket.computed
        stored = self._prefixes.keep(request.job.key, prompt.identity[:done], prompt.cache, request.job.pins)
        if request.computed is None:
            request.stored += stored


def _scores(prompt: Prompt) -> bool:
    return prompt.request.scores_prompt and prompt.request.computed is None


def _alternatives(request: Request) -> int:
    """Likeliest tokens to note beside each of the prompt's own."""
    asked = request.job.request.prompt_logprobs
    return asked if asked is not None else request.job.request.logprobs or 0
