"""The answers that run now: opened within limits, stopped by id, and noted for the log when they end."""

from functools import partial
from typing import Any, Final

import msgspec

from pippin.api.access.exchange import Exchange
from pippin.api.access.limits import Limits
from pippin.api.answers.answer import Answer
from pippin.api.dialects.base import RunInfo
from pippin.api.http.presence import Presence
from pippin.api.watching.observer import Observer
from pippin.config.options.server import ServerOptions
from pippin.core.errors import ErrorReport
from pippin.core.tasks import Generate
from pippin.service.run import Starter

UNKNOWN: Final = "unknown"
"""The model of requests for names that nobody here has: there is no end to those."""


class RunningAnswers:
    def __init__(self, options: ServerOptions, observer: Observer, limits: Limits) -> None:
        self._options = options
        self._observer = observer
        self._limits = limits
        self._active: dict[str, Answer] = {}
        self.answered = 0
        self.prompt_tokens = self.completion_tokens = 0  # of those that were answered

    def adopt(self, options: ServerOptions) -> None:
        """Hold new answers to changed options."""
        self._options = options

    def open(
        self,
        exchange: Exchange,
        tasks: list[Any],
        run: RunInfo,
        kind: str,
        *,
        stream: bool,
        timeout: float | None,
        presence: Presence,
        starter: Starter,
    ) -> Answer:
        """Begin to run tasks. Whoever opens an answer closes it."""
        self._limits.enter()
        stem = run.id if exchange.own_id else f"{exchange.id}.{run.id[:8]}"  # found in the worker's lines
        ids = [stem] if len(tasks) == 1 else [f"{stem}-{number}" for number in range(len(tasks))]
        limit = min(filter(None, (timeout, self._options.timeout)), default=None)
        model = tasks[0].request.model if isinstance(tasks[0], Generate) else run.model
        answer = Answer(
            starter,
            tasks,
            ids=ids,
            model=model,
            served=run.model,
            client=exchange.caller or None,
            presence=presence,
            observer=self._observer.request(kind, run.model if run.known else UNKNOWN, stream=stream),
            timeout=limit,
            on_close=partial(self._forget, exchange, run),
        )
        self._active[run.id] = answer
        self._active.setdefault(exchange.id, answer)
        return answer

    def _forget(self, exchange: Exchange, run: RunInfo, answer: Answer) -> None:
        self.answered += 1
        self.prompt_tokens += answer.prompt_tokens
        self.completion_tokens += answer.completion_tokens
        self._limits.leave(exchange.caller, answer.prompt_tokens + answer.completion_tokens)
        for name in (run.id, exchange.id):
            if self._active.get(name) is answer:
                del self._active[name]
        exchange.gone = answer.gone
        exchange.facts = {
            "model": run.model,
            "prompt": answer.prompt_tokens,
            "cached": answer.cached_tokens,
            "completion": answer.completion_tokens,
        }
        if answer.start_ms is not None:
            exchange.facts["start"] = round(answer.start_ms)
        if (times := answer.timings) is not None:
            exchange.facts |= {name: round(ms) for name, ms in msgspec.structs.asdict(times).items()}
        if answer.failure is not None and not answer.gone:
            exchange.facts["error"] = answer.failure.kind

    async def cancel(self, name: str) -> bool:
        """End a request by the id of its run or of its exchange; False if none is running."""
        answer = self._active.get(name)
        if answer is None:
            return False
        answer.end(ErrorReport(kind="cancelled", message="The request was cancelled."))
        return True
