"""One request body being answered: started, read to its end, drawn, and always closed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from pippin.api.answers.runs import Runs, start_runs
from pippin.api.dialects.base import StreamEncoder
from pippin.api.http import drawn_size
from pippin.api.http.large_work import LargeWork
from pippin.api.http.presence import Presence
from pippin.api.watching.observer import RequestObserver
from pippin.core.completion import Completion, collect
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.events import (
    Embedded,
    Event,
    Failed,
    Finished,
    PartDelta,
    PicturesDone,
    Ranked,
    Spoken,
    Timings,
    Transcribed,
)
from pippin.core.models import ModelState
from pippin.core.tasks import Generate, Task
from pippin.service.run import Starter


def load_comment(states: list[ModelState], model: str) -> bytes:
    """A server-sent comment on where the load of a model stands; nothing where none goes on."""
    state = next((each for each in states if each.id == model), None)
    if state is None or state.stage is None:
        return b""
    match state.stage:
        case "waiting":
            doing = "waits until other models are done"
        case "weights" if state.progress is not None and state.progress[1]:
            done, total, _ = state.progress
            doing = f"has loaded {done * 100 // total} % of its weights"
        case "weights":
            doing = "loads its weights"
        case _:
            doing = "is starting"
    return f": the model {doing}\n\n".encode()


GONE: Final = ErrorReport(kind="cancelled", message="The client left before the answer was complete.")


def drawn(encoder: StreamEncoder, events: Sequence[Event], request: int) -> bytes:
    return b"".join([encoder.event(event, request) for event in events])


def tokens_of(event: Event) -> int:
    """What a terminal event of no generation says was used; limits count it."""
    match event:
        case Embedded(prompt_tokens=count) | Ranked(prompt_tokens=count):
            return count
        case Transcribed(usage=usage) | Spoken(usage=usage) | PicturesDone(usage=usage):
            return usage.prompt_tokens + usage.completion_tokens
        case _:
            return 0


class Answer:
    def __init__(
        self,
        service: Starter,
        tasks: Sequence[Task],
        *,
        ids: Sequence[str],
        model: str,
        served: str,
        client: str | None,
        presence: Presence,
        observer: RequestObserver,
        timeout: float | None,
        on_close: "Callable[[Answer], None]",
    ) -> None:
        """`model` as the client names it, `served` as it is called here. `timeout`: seconds from now until the request
        is ended with an error."""
        self.ids = ids
        self.served = served
        self.cached_tokens = 0
        self._generates = isinstance(tasks[0], Generate)
        self._prompts: dict[int, int] = {}  # tokens, of each request
        self._completed: dict[tuple[int, int], int] = {}  # tokens so far, of each choice of each request
        self.start_ms: float | None = None  # until it was accepted: a load, and the reading of the prompt
        self.timings: Timings | None = None  # of the choice that ended last
        self.failure: ErrorReport | None = None
        self._presence = presence
        self._observer = observer
        self._on_close = on_close
        self._runs: Runs | None = None
        self._opened = asyncio.get_running_loop().time()
        self._closed = False
        self._starting = asyncio.create_task(
            start_runs(service, tasks, model=model, ids=ids, client=client), name=f"start {ids[0]}"
        )
        presence.on_gone(lambda: self.end(GONE))
        self._timer: asyncio.TimerHandle | None = None
        if timeout is not None:
            late = ErrorReport(kind="timeout", message=f"The request took longer than {timeout:g} seconds.")
            self._timer = asyncio.get_running_loop().call_later(timeout, self.end, late)

    @property
    def gone(self) -> bool:
        """Whether the client hung up."""
        return self.failure is GONE

    @property
    def prompt_tokens(self) -> int:
        return sum(self._prompts.values())

    @property
    def completion_tokens(self) -> int:
        """As far as it got: who hangs up before the end has used them too."""
        return sum(self._completed.values())

    def end(self, report: ErrorReport) -> None:
        """End it from outside, with this reason."""
        if self.failure is None:
            self.failure = report
        if self._runs is not None:
            self._runs.fail(report)
        else:
            self._starting.cancel()

    async def started(self, within: float | None = None) -> bool:
        """Whether it was accepted in time. Raises the `ServerError` of a refusal."""
        if self._runs is not None:
            return True
        await asyncio.wait({self._starting}, timeout=within)
        if not self._starting.done():
            return False
        if self._starting.cancelled():
            raise self._fail(self.failure or GONE)
        try:
            self._runs = self._starting.result()
        except ServerError as error:
            raise self._fail(error.report) from None
        self.start_ms = (asyncio.get_running_loop().time() - self._opened) * 1000
        if self._generates:
            self._prompts = {number: each.prompt_tokens for number, each in enumerate(self._runs.accepted)}
        self._observer.accepted(self._runs.accepted)
        if self.failure is not None:  # ended in the same turn of the loop
            self._runs.fail(self.failure)
        return True

    async def whole(self, draw: Callable[[list[Completion]], bytes], large: LargeWork) -> bytes:
        """The folded answers, drawn. Raises `ServerError` where a run fails."""
        await self.started()
        assert self._runs is not None
        gathered: list[list[Event]] = [[accepted] for accepted in self._runs.accepted]
        async for request, events in self._batches(self._runs):
            if isinstance(failed := events[-1], Failed):
                raise ServerError.of(failed.error)
            gathered[request] += events

        def whole() -> bytes:
            data = draw([collect(events) for events in gathered])
            gathered.clear()  # to free much takes its time too
            return data

        return await large.do(sum(map(drawn_size.of_events, gathered)), whole)

    async def events(self) -> list[Event]:
        """All events of a single run of any kind. Raises `ServerError` where it fails."""
        await self.started()
        assert self._runs is not None
        collected: list[Event] = []
        async for _, events in self._batches(self._runs):
            collected += events
        if collected and isinstance(failed := collected[-1], Failed):
            raise ServerError.of(failed.error)
        return collected

    async def pieces(
        self,
        encoder: StreamEncoder,
        silence: float,
        large: LargeWork,
        progress: Callable[[], bytes] = lambda: b"",
    ) -> AsyncIterator[bytes]:
        """The stream, with something harmless after each `silence` seconds without a byte; `progress` is a comment
        on a start that lasts."""
        try:
            while not await self.started(within=silence):
                harmless = encoder.keep_alive()
                yield harmless + progress() if harmless.startswith(b":") else harmless
        except ServerError as error:
            yield encoder.failed(error.report) + encoder.end()
            return
        runs = self._runs
        assert runs is not None
        yield encoder.start(runs.accepted)
        clock = asyncio.get_running_loop().time
        sent = clock()
        while True:
            try:
                async with asyncio.timeout_at(sent + silence):
                    request, events = await runs.take()
            except TimeoutError:
                sent = clock()
                yield encoder.keep_alive()
                continue
            if not events:
                break
            self._note(request, events)
            failed = events.pop() if isinstance(events[-1], Failed) else None
            data = await large.do(drawn_size.of_events(events), drawn, encoder, events, request)
            if isinstance(failed, Failed):
                yield data + encoder.failed(failed.error)
                break
            if data:
                sent = clock()
                yield data
        self._presence.stop()  # the server reports its own end of the reply as the client's
        yield encoder.end()

    async def close(self) -> None:
        """Cancel what still runs and let go of everything; once."""
        if self._closed:
            return
        self._closed = True
        self._presence.stop()
        if self._timer is not None:
            self._timer.cancel()
        if self._runs is None:
            self._starting.cancel()
            [outcome] = await asyncio.gather(self._starting, return_exceptions=True)
            self._runs = outcome if isinstance(outcome, Runs) else None
        if self._runs is not None:
            await self._runs.aclose()
        self._observer.closed()
        self._on_close(self)

    async def _batches(self, runs: Runs) -> AsyncIterator[tuple[int, list[Event]]]:
        while True:
            request, events = await runs.take()
            if not events:
                return
            self._note(request, events)
            yield request, events

    def _note(self, request: int, events: list[Event]) -> None:
        self._observer.events(events)
        for event in events:
            if isinstance(event, PartDelta):
                self._completed[request, event.choice] = event.completed
            elif isinstance(event, Finished):
                self._completed[request, event.choice] = event.usage.completion_tokens
                self.timings = event.timings
                if event.choice == 0:
                    self._prompts[request] = event.usage.prompt_tokens
                    self.cached_tokens += event.usage.cached_tokens
            elif isinstance(event, Failed):
                self._fail(event.error)
            elif tokens := tokens_of(event):
                self._prompts[request] = tokens

    def _fail(self, report: ErrorReport) -> ServerError:
        self.failure = self.failure or report
        self._observer.failed(report.kind)
        return ServerError.of(self.failure)
