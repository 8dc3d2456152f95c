"""What the engine knows of a running request: its prompts, and the rows that they become."""

import time
from dataclasses import dataclass, field
from functools import cached_property

import mlx.core as mx

from pippin.core.events import Event, Finished, FinishReason, Timings, Token, Usage
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.kv_cache.slots import PromptCache, Slot
from pippin.engines.language.prefix_cache.disk import Loading
from pippin.engines.language.prefix_cache.tree import Node
from pippin.engines.language.step.decoder import RowDecoder
from pippin.engines.language.step.scheduler import Ticket
from pippin.engines.language.vision.sight import Viewing


@dataclass(eq=False, kw_only=True)
class Row:
    """One choice. `tokens` is its prompt and all that was generated, whose last token may not be in the cache yet."""

    request: "Request"
    choice: int
    decoder: RowDecoder
    tokens: list[int]
    ticket: Ticket
    slot: Slot = field(init=False, repr=False)  # where its cache lies, from when it begins to run
    joined: int = 0  # tokens in its cache when it began to run
    fresh: int | None = None  # the next input, where it does not come from the sampler
    source: int = -1  # index of the next input in what was sampled last
    held: list[Event] = field(default_factory=list)  # events to send with the next ones
    held_tokens: int = 0
    started: float = 0.0  # when its decoding began, monotonic
    state_node: Node | None = None  # where its newest recurrent state is remembered
    draft_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.request.job.prompt)

    @property
    def wanted(self) -> int | None:
        """Alternatives to report beside each token, None for no logprobs at all."""
        return self.request.job.request.logprobs


@dataclass(eq=False, kw_only=True)
class Prompt:
    """Tokens to compute for one or more rows: all choices of a new request, or one preempted row."""

    request: "Request"
    rows: list[Row]
    tokens: tuple[int, ...]
    ticket: Ticket
    cache: PromptCache | None = None
    slot: Slot | None = None  # where its row will lie, and `cache` with it
    begun: bool = False  # looked up in the prefix cache
    fetched: bool = False  # looked up on the disk
    loading: Loading | None = None  # from the disk
    borders: set[int] = field(default_factory=set)  # positions at which a chunk must end
    chunks: int = 0  # computed so far
    logits: mx.array | None = None  # [1, vocabulary] after the last token, once that is computed
    scores: list[Token] = field(default_factory=list)  # of the prompt's own tokens, where asked for

    def forget(self) -> None:
        """Let go of what was computed."""
        self.cache = self.logits = self.slot = None
        self.begun, self.chunks = False, 0
        self.borders.clear()
        self.scores.clear()

    @cached_property
    def identity(self) -> tuple[int, ...]:
        """Its tokens as the prefix cache knows them."""
        return self.request.job.identify(self.tokens)

    def border(self, place: int, least: int = 0) -> int:
        """Where a chunk ends that was to end at `place`."""
        viewing = self.request.viewing
        return place if viewing is None else viewing.border(place, least)

    def block_border(self, place: int, size: int) -> int:
        """The last border of blocks of `size` tokens up to `place` at which a chunk can end."""
        border = place // size * size
        while (free := self.border(border)) < border:
            border = free // size * size
        return border


@dataclass(eq=False, kw_only=True)
class Request:
    job: LanguageJob
    adapter: int = 0  # its index among the model's, 0 for none
    viewing: Viewing | None = None  # its media
    rows: list[Row] = field(default_factory=list)  # unfinished ones
    prompts: list[Prompt] = field(default_factory=list)  # waiting or in prefill
    admitted: float | None = None
    computed: float | None = None  # when the prompt was done
    first_token: float | None = None
    cached: int = 0  # prompt tokens from the prefix cache
    stored: int = 0  # prompt tokens written to it

    @property
    def shift(self) -> int:
        """What rotary positions of its answers differ by from their places."""
        return 0 if self.viewing is None else self.viewing.shift

    @property
    def scores_prompt(self) -> bool:
        request = self.job.request
        return request.prompt_logprobs is not None or (request.echo and request.logprobs is not None)

    def finish(self, row: Row, reason: FinishReason) -> Finished:
        now = time.monotonic()
        job, decoder = self.job, row.decoder
        admitted = self.admitted if self.admitted is not None else now
        computed = self.computed if self.computed is not None else now
        return Finished(
            row.choice,
            reason,
            decoder.stop_sequence,
            Usage(
                prompt_tokens=job.accepted.prompt_tokens,
                cached_tokens=self.cached,
                stored_tokens=self.stored,
                completion_tokens=decoder.completion_tokens,
                reasoning_tokens=decoder.reasoning_tokens,
                draft_tokens=row.draft_tokens,
                accepted_tokens=row.accepted_tokens,
            ),
            Timings(
                queue=(admitted - job.created) * 1e3,
                prefill=(computed - admitted) * 1e3,
                decode=(now - computed) * 1e3,
            ),
        )
