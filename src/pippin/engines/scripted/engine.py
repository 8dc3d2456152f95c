"""Plays scripted answers: one token of every running request in each step, at the script's pace."""

import math
import os
import time
from typing import Any, Final, Literal, NoReturn

from pippin.core.errors import ServerError
from pippin.core.events import (
    Event,
    Finished,
    FinishReason,
    Progress,
    PromptEcho,
    Scored,
    Timings,
    Token,
    Usage,
)
from pippin.core.models import CacheStats, EngineStats, RequestStatus, WorkerSpec
from pippin.core.requests import GenerationRequest
from pippin.engines.base import Emission, LoadProgress, first_of, places_of, queue_is_full, yielding_to
from pippin.engines.scripted import tokenizer
from pippin.engines.scripted.performance import scripted_token
from pippin.engines.scripted.preparer import ScriptedJob, ScriptedPreparer
from pippin.output.reader import ChoiceReader, Formats, Markup, Thinking
from pippin.output.reasoning_formats import ReasoningFormat

TAKEN_AT_ONCE: Final = 8 << 20  # bytes, by the fault `memory`
LONGEST_REST: Final = 0.005  # seconds in a step where no token is due


class PlayedChoice(ChoiceReader):
    """A choice that is being answered, up to its next token."""

    def __init__(self, job: ScriptedJob, choice: int, preparer: ScriptedPreparer) -> None:
        self.number = choice
        self.performance = job.choices[choice]
        self.finished = None if self.performance.texts else self.performance.reason
        super().__init__(
            choice,
            job.request,
            Formats(tools=preparer.tool_format, reasoning=preparer.reasoning_format),
            tools=job.request.tools,
            stops=job.request.stop,
            thinking=_thinking(job.request),
            markup=_markup(job.request, preparer.reasoning_format),
        )

    def _spell(self, tokens: list[int]) -> str:
        return tokenizer.decode(tokens)

    def play(self) -> list[Event]:
        texts, thought, place = self.performance.texts, self.performance.thought, self.completion_tokens
        text, logprobs = texts[place], self._wanted.logprobs
        if place in (0, thought - 1) and thought:
            self.reader.added_token(self._length)
        self._count(tokenizer.token_id(text))
        self.reasoning_tokens += self.reader.thinking
        events = self._show(text, () if logprobs is None else (scripted_token(text, logprobs),))
        self._settle(self.performance.reason if self.completion_tokens == len(texts) else None)
        return events

    def finish(self, reason: FinishReason, usage: Usage, timings: Timings) -> list[Event]:
        events = self.close(reason)
        ending = Finished(
            self.number, self.finished or reason, self.stop_sequence, usage, timings, self.warnings
        )
        return [*events, ending]


def _thinking(request: GenerationRequest) -> Thinking:
    """Thinks as a language model whose template ends with the answer's first token: it may begin to think by itself."""
    possible = request.messages is not None and request.output_format is None
    return "possible" if possible and request.thinking.enabled is not False else "marked"


def _markup(request: GenerationRequest, reasoning: ReasoningFormat) -> Markup:
    """Where a format is asked for, the markers of reasoning are tokens of their own, and a text may quote them."""
    if request.output_format is None:
        return Markup()
    held: Literal["calls", "answer"] = "calls" if request.tools else "answer"
    return Markup(tokens=frozenset((reasoning.start, reasoning.end)), grammar=held)


class Row:
    """A request in the queue or in its place: all its choices, and when its next token is due."""

    count: Final = 1

    def __init__(self, job: ScriptedJob, preparer: ScriptedPreparer, arrival: int) -> None:
        self.job, self.arrival = job, arrival
        self.account, self.priority = job.request.account, job.request.priority
        self.gap = job.rule.gap if job.rule.gap is not None else preparer.script.gap
        self.choices = [PlayedChoice(job, choice, preparer) for choice in range(job.request.n)]
        self.open = list(self.choices)
        self.started: float | None = None  # until it has had a place
        self.due = 0.0
        self.steps = 0

    def begin(self) -> list[Event]:
        """The events that come before the first token."""
        self.started = time.monotonic()
        self.due = self.started + self.job.rule.delay
        request, prompt = self.job.request, self.job.accepted.prompt_tokens
        events: list[Event] = [Progress(prompt, prompt, min(self.job.rule.cached_tokens, prompt))]
        if request.echo:
            tokens: tuple[Token, ...] = ()
            if request.prompt_logprobs is not None:
                pieces = tokenizer.pieces(self.job.prompt)
                tokens = tuple(scripted_token(piece, request.prompt_logprobs) for piece in pieces)
                tokens = (Token(tokens[0].id, tokens[0].raw, None), *tokens[1:]) if tokens else ()
            events.append(PromptEcho(self.job.prompt, tokens))
        if request.decisions:
            # Log probabilities: labels that the prompt has are four times as likely as others.
            scores = (
                tuple(math.log(0.8 if label in self.job.prompt else 0.2) for label in each.labels)
                for each in request.decisions
            )
            events.append(Scored(tuple(scores)))
        return events

    def play(self, now: float) -> list[Event]:
        """Play the next token of every choice that is not over."""
        self.steps += 1
        self.due = now + self.gap
        assert self.started is not None
        waited, played = self.started - self.job.created, now - self.started
        timings = Timings(queue=waited * 1000, prefill=self.job.rule.delay * 1000, decode=played * 1000)
        events: list[Event] = []
        for choice in self.open:
            if choice.finished is None:
                events += choice.play()
            if choice.finished is not None:
                events += choice.finish(choice.finished, self._usage(choice), timings)
        self.open = [choice for choice in self.open if choice.finished is None]
        return events

    def status(self, now: float) -> RequestStatus:
        if self.started is None:
            return RequestStatus(id=self.job.id, phase="queued", elapsed=now - self.job.created)
        return RequestStatus(
            id=self.job.id,
            phase="generation",
            prompt_tokens=self.job.accepted.prompt_tokens,
            prefilled_tokens=self.job.accepted.prompt_tokens,
            generated_tokens=sum(choice.completion_tokens for choice in self.choices),
            max_tokens=self.job.request.max_tokens,
            elapsed=now - self.job.created,
        )

    def _usage(self, choice: PlayedChoice) -> Usage:
        return Usage(
            prompt_tokens=self.job.accepted.prompt_tokens,
            cached_tokens=min(self.job.rule.cached_tokens, self.job.accepted.prompt_tokens),
            completion_tokens=choice.completion_tokens,
            reasoning_tokens=choice.reasoning_tokens,
        )


class ScriptedEngine:
    def __init__(self, preparer: ScriptedPreparer, ballast: bytearray) -> None:
        self._preparer = preparer
        self._ballast = ballast
        self._waiting: list[Row] = []
        self._rows: dict[str, Row] = {}
        self._arrivals = 0
        self._steps = 0
        self._prompt_tokens = 0
        self._completion_tokens = 0
        self._cleared = 0

    def submit(self, job: ScriptedJob) -> None:
        if len(self._waiting) >= self._preparer.options.queue_size:
            raise queue_is_full(len(self._waiting), 1.0)
        self._arrivals += 1
        self._waiting.append(Row(job, self._preparer, self._arrivals))

    def cancel(self, id: str) -> None:
        self._rows.pop(id, None)
        self._waiting = [row for row in self._waiting if row.job.id != id]

    @property
    def busy(self) -> bool:
        return bool(self._rows or self._waiting)

    def step(self) -> list[Emission]:
        emissions: list[Emission] = []
        while (row := self._next()) is not None:
            self._rows[row.job.id] = row
            if row.started is None:
                self._prompt_tokens += row.job.accepted.prompt_tokens
                emissions += [(row.job.id, event) for event in row.begin()]
        now = time.monotonic()
        for request, row in list(self._rows.items()):
            if row.due <= now:
                self._misbehave(row)
                emissions += [(request, event) for event in row.play(now)]
                if not row.open:
                    del self._rows[request]
                    self._completion_tokens += sum(choice.completion_tokens for choice in row.choices)
        self._steps += 1
        if not emissions:
            due = min((row.due for row in self._rows.values()), default=now)
            time.sleep(min(max(0.0, due - now), LONGEST_REST))
        return emissions

    def _next(self) -> Row | None:
        """Take the next request out of the queue, if there is a place for it, or another account's request makes one
        and goes on later."""
        if not self._waiting:
            return None
        places = places_of(self._rows.values())
        first = first_of(self._waiting, places)
        if len(self._rows) >= self._preparer.options.max_num_seqs:
            yielding = yielding_to(first, self._rows.values(), places)
            if not yielding:
                return None
            self._waiting.append(self._rows.pop(yielding[0].job.id))
        self._waiting.remove(first)
        return first

    def close(self) -> None:
        self._rows.clear()
        self._waiting.clear()
        self._ballast.clear()

    def stats(self) -> EngineStats:
        now = time.monotonic()
        rows = (*self._rows.values(), *self._waiting)
        played = sum(choice.completion_tokens for row in rows for choice in row.choices)
        return EngineStats(
            running=len(self._rows),
            waiting=len(self._waiting),
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens + played,
            batch_size=len(self._rows),
            weight_bytes=len(self._ballast),
            cache=CacheStats(evictions=self._cleared),
            requests=tuple(row.status(now) for row in rows),
        )

    def clear_cache(self, *, prefixes_only: bool, disk: bool) -> None:
        self._cleared += 1  # seen in the statistics, as evictions

    def reconfigure(self, options: dict[str, Any]) -> None:
        known = {"max_num_seqs", "queue_size", "memory_bytes"}
        if unknown := set(options) - known:
            raise ServerError("unsupported", f"These change at the next load only: {', '.join(unknown)}.")

    def _misbehave(self, row: Row) -> None:
        fault = row.job.rule.fault
        if fault is None or row.steps != fault.after:
            return
        match fault.kind:
            case "exit" | "abort" | "error":
                _fail(fault.kind, 3, "in this step")
            case "stall":
                time.sleep(3600.0)
            case "memory":
                taken = []
                while True:
                    taken.append(bytearray(b"x" * TAKEN_AT_ONCE))
                    time.sleep(0.002)


def open_engine(spec: WorkerSpec, preparer: ScriptedPreparer, progress: LoadProgress) -> ScriptedEngine:
    script = preparer.script
    for tenth in range(10 if script.load_seconds else 0):
        progress(tenth, 10, "tenths")
        time.sleep(script.load_seconds / 10)
    if script.load_error is not None:
        raise ServerError("load_failed", script.load_error)
    if script.load_fault is not None:
        _fail(script.load_fault, 4, "while loading")
    # Memory that is really taken, and no more than that on the way.
    ballast, piece = bytearray(script.ballast_mb << 20), os.urandom(1 << 20)
    for start in range(0, len(ballast), len(piece)):
        ballast[start : start + len(piece)] = piece
    return ScriptedEngine(preparer, ballast)


def _fail(kind: Literal["exit", "abort", "error"], status: int, moment: str) -> NoReturn:
    """End the process with a status or a crash, or raise an error."""
    if kind == "exit":
        os._exit(status)
    if kind == "abort":
        os.abort()
    raise RuntimeError(f"the script asked for an error {moment}")
