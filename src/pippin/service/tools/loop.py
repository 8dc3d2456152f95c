"""Answers during which Pippin calls MCP tools itself: it runs the model's calls and lets the model continue. Which
tools a request gets is decided here too.

Clients see one answer. A call of the client's own tool ends it, as usual. Calls of MCP tools and their results are
parts of separate kinds, which dialects that cannot express them leave out.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from pippin.config.options.server import ServerOptions
from pippin.core.conversation import (
    WEB_SEARCH,
    Message,
    Reasoning,
    Text,
    Tool,
    ToolCall,
    ToolChoice,
    ToolResult,
    Toolset,
)
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.events import (
    Accepted,
    Event,
    Failed,
    Finished,
    PartDelta,
    PartEnded,
    PartStarted,
    Progress,
    Timings,
    ToolsListed,
    Usage,
)
from pippin.core.models import summed
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Generate, Task
from pippin.mcp.tools import ALL, OfferedTool, ToolServers
from pippin.service.service import AnyRun, Service, Start
from pippin.service.tools.web_search import WebSearcher

log = logging.getLogger(__name__)


LONGEST_ARGUMENTS: Final = 1 << 20  # characters of one call


@dataclass
class ToolRound:
    """The output of one run of a loop, as the model rereads it and as the client sees it.

    Part numbers continue from the previous round. Calls of MCP tools become parts of their own kind.
    """

    offered: Mapping[str, OfferedTool]
    next_index: int
    first: bool = False
    results: list[Event] = field(default_factory=list)  # the tools' answers before this round, for the client
    finished: Finished | None = None
    client_calls: int = 0
    indexes: dict[int, int] = field(default_factory=dict)
    said: dict[int, tuple[PartStarted, list[str]]] = field(default_factory=dict)

    def seen(self, event: Event) -> Event | None:
        """The event as the client sees it; None if it is hidden."""
        match event:
            case PartStarted(index=index, kind=kind, name=name):
                self.said[index] = (event, [])
                self.indexes[index] = self.next_index
                self.next_index += 1
                shown = msgspec.structs.replace(event, index=self.indexes[index])
                if kind != "tool_call":
                    return shown
                if (tool := self.offered.get(name or "")) is None:
                    self.client_calls += 1
                    return shown
                return msgspec.structs.replace(
                    shown, kind="server_call", name=tool.remote.name, server=tool.server
                )
            case PartDelta(index=index, text=text):
                self.said[index][1].append(text)
                return self._renumbered(event)
            case PartEnded():
                return self._renumbered(event)
            case Progress() if not self.first:
                return None  # the client is not told of later rounds' prompts
            case _:
                return event

    @property
    def calls(self) -> list[ToolCall]:
        """The calls of MCP tools in this round."""
        return [
            ToolCall(started.id or f"call_{index}", started.name or "", "".join(texts)[:LONGEST_ARGUMENTS])
            for index, (started, texts) in self.said.items()
            if started.kind == "tool_call" and started.name in self.offered
        ]

    def shown(self, results: Sequence[ToolResult]) -> list[Event]:
        """The tools' answers, as parts for the client."""
        events: list[Event] = []
        for result in results:
            index = self.next_index
            self.next_index += 1
            text = "".join(part.text for part in result.parts if isinstance(part, Text))
            server = self.offered[result.name or ""].server
            started = PartStarted(
                0, index, "server_result", result.call_id, server=server, is_error=result.is_error
            )
            events += [started, PartDelta(0, index, text), PartEnded(0, index)]
        return events

    def parts(self) -> list[Text | Reasoning | ToolCall]:
        """The assistant's whole turn, for the model to reread."""
        kinds: dict[str, type[Text | Reasoning]] = {"text": Text, "reasoning": Reasoning}
        said = [
            kinds[started.kind]("".join(texts))
            for started, texts in self.said.values()
            if started.kind in kinds and any(texts)
        ]
        return [*said, *self.calls]

    def _renumbered(self, event: PartDelta | PartEnded) -> Event:
        return msgspec.structs.replace(event, index=self.indexes[event.index])


class ToolLoop:
    """One answer made of several runs with tool calls between them. Single reader, like a run."""

    def __init__(
        self,
        service: Service,
        servers: ToolServers,
        offered: Mapping[str, OfferedTool],
        request: GenerationRequest,
        model: str,
        id: str,
        account: str,
    ) -> None:
        """`request` already includes the tools of `offered`."""
        self.accepted: Accepted | None = None
        self._service, self._servers = service, servers
        self._offered = offered
        self._request = request
        self._most_calls = min(filter(None, (servers.most_calls, request.max_tool_calls)))
        self._model, self._id, self._account = model, id, account
        self._run: AnyRun | None = None
        self._round = ToolRound(self._offered, 0, first=True)
        self._tools: asyncio.Task[None] | None = None  # calls the tools and starts the next run
        tools: dict[str, list[Tool]] = {}
        for each in offered.values():
            if each.server != WEB_SEARCH:
                named = msgspec.structs.replace(each.tool, name=each.remote.name)
                tools.setdefault(each.server, []).append(named)
        self._listing: list[Event] = [ToolsListed(server, tuple(named)) for server, named in tools.items()]
        self._calls = self._rounds = 0
        self._usage, self._timings = Usage(), Timings()
        self._failed: asyncio.Future[ErrorReport] = asyncio.get_running_loop().create_future()
        self._ended = False

    async def begin(self) -> None:
        self._run = await self._start(self._id)
        self.accepted = self._run.accepted

    async def take(self) -> list[Event]:
        """See `Run.take`. Waits while tools run; a reader that cancels the wait and takes again does not disturb
        them."""
        if listing := self._listing:
            self._listing = []
            return listing
        while not self._ended:
            # The tools may have been called, and the next round be there, while nobody waited.
            if self._round.finished is not None or self._tools is not None:
                if failed := await self._go_on():
                    self._ended = True
                    return [Failed(failed)]
                return self._round.results
            assert self._run is not None
            if shown := self._seen(await self._run.take()):
                return shown
        return []

    def hold_back(self) -> None:
        """Does nothing: tool calls have effects and cannot be repeated."""

    def fail(self, error: ErrorReport) -> None:
        if not self._failed.done():
            self._failed.set_result(error)
        if self._run is not None:
            self._run.fail(error)

    async def aclose(self) -> None:
        self._ended = True
        await self._stop_tools()
        if self._run is not None:
            await self._run.aclose()

    async def _start(self, id: str) -> AnyRun:
        return await self._service.start(
            Generate(self._request), model=self._model, id=id, account=self._account
        )

    def _seen(self, events: list[Event]) -> list[Event]:
        """The events for the client. The end is withheld while the loop goes on."""
        shown: list[Event] = []
        if not events:
            self._ended = True
        for event in events:
            if isinstance(event, Finished):
                self._usage = Usage(**summed(Usage, [self._usage, event.usage]))
                self._timings = Timings(**summed(Timings, [self._timings, event.timings]))
                self._round.finished = event
                calls_here = self._round.calls and not self._round.client_calls
                if event.reason == "tool_calls" and calls_here:
                    continue
                self._ended = True
                # Usage and timings are those of all rounds. If a turn has calls of both kinds, the client answers its
                # own and the model repeats the MCP calls if it still wants them.
                no_calls = event.reason == "tool_calls" and not self._round.client_calls
                shown.append(
                    msgspec.structs.replace(
                        event,
                        reason="stop" if no_calls else event.reason,
                        usage=self._usage,
                        timings=self._timings,
                    )
                )
            elif isinstance(event, Failed):
                self._ended = True
                shown.append(event)
            elif (seen := self._round.seen(event)) is not None:
                shown.append(seen)
        return shown

    async def _go_on(self) -> ErrorReport | None:
        """Call the requested tools and start the run that reads the results; returns the error if that fails."""
        if self._tools is None:
            self._tools = asyncio.create_task(self._next_round(), name=f"tools of {self._id}")
        waiting: set[asyncio.Future[Any]] = {self._tools, self._failed}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if self._failed.done():
            await self._stop_tools()
            return self._failed.result()
        tools, self._tools = self._tools, None
        try:
            await tools
        except ServerError as error:
            return error.report
        return None

    async def _stop_tools(self) -> None:
        if self._tools is not None:
            self._tools.cancel()
            await asyncio.gather(self._tools, return_exceptions=True)

    async def _next_round(self) -> None:
        """Call the tools and start the run that reads their results. Raises the `ServerError` of that start."""
        answers = await self._results()
        self._request = self._continued(answers)
        self._rounds += 1
        run = await self._start(f"{self._id}.{self._rounds}")
        before, self._run = self._run, run  # no await between the start and this line
        results = self._round.shown(answers)
        self._round = ToolRound(self._offered, self._round.next_index, results=results)
        if before is not None:
            await before.aclose()

    async def _results(self) -> list[ToolResult]:
        calls = self._round.calls
        allowed = self._most_calls - self._calls
        self._calls += len(calls)
        answers = await asyncio.gather(
            *(
                self._servers.call_with_text(self._offered[call.name], call.arguments)
                for call in calls[: max(0, allowed)]
            )
        )
        log.info("Request %s: %d MCP tools were called.", self._id, len(answers))
        results = [
            ToolResult(call.id, (Text(answer.text),), call.name, answer.is_error)
            for call, answer in zip(calls, answers, strict=False)
        ]
        refused = (Text("The limit of tool calls is reached; answer with what is known."),)
        return results + [ToolResult(call.id, refused, call.name, True) for call in calls[len(results) :]]

    def _continued(self, results: list[ToolResult]) -> GenerationRequest:
        request = self._request
        said = Message("assistant", tuple(self._round.parts()))
        read = tuple(Message("tool", (result,)) for result in results)
        tools = request.tools
        if self._calls >= self._most_calls:
            tools = tuple(tool for tool in tools if tool.name not in self._offered)
        names = {tool.name for tool in tools}
        chosen = tuple(name for name in request.tool_choice.names if name in names)
        # The required call was made; requiring it again would keep the model from ever answering.
        choice = ToolChoice("auto", chosen if request.tool_choice.mode == "auto" else ())
        left = (
            None if request.max_tokens is None else max(1, request.max_tokens - self._usage.completion_tokens)
        )
        return msgspec.structs.replace(
            request,
            messages=(request.messages or ()) + (said, *read),
            tools=tools,
            tool_choice=choice,
            max_tokens=left,
            continue_final=False,
        )


NOT_ALLOWED: Final = (
    "MCP tools are for those who may manage this server; the operator gives a key `role: admin` or "
    "`mcp_tools: true` in the file of --api-key-file, or sets keys where there are none."
)


@dataclass(frozen=True, slots=True)
class Equipped:
    request: GenerationRequest
    offered: Mapping[str, OfferedTool] = field(default_factory=dict)


class ToolOffers:
    """Offers the operator's tool servers to the requests that ask for them, or to all, as configured."""

    def __init__(self, servers: ToolServers, options: ServerOptions, searcher: WebSearcher) -> None:
        self.servers = servers
        self._searcher = searcher
        self.adopt(options)

    def adopt(self, options: ServerOptions) -> None:
        """Apply changed options to new requests."""
        self.unasked = options.mcp_offer != "asked" and bool(self.servers)
        """Whether requests that ask for no tools get some."""

    async def equip(
        self, request: GenerationRequest, named: Sequence[str] = (), *, allowed: bool
    ) -> Equipped:
        """The request with the tools that it or the operator asks for.

        `named`: servers that the client names outside the request, or `*` for all. `allowed`: whether this client may
        use MCP tools. A client that may not is refused if it asks for them, and is not given those that the operator
        offers to everybody. Whoever may ask the model may have it search the web. Raises `ServerError` for that refusal
        and for an unknown server.
        """
        wanted, search = self._wanted(request, named), request.web_search
        if wanted and not allowed:
            if request.toolsets or named:
                raise ServerError("permission", NOT_ALLOWED, "tools")
            wanted = ()
        found = await self.servers.offered(wanted)
        if search is not None:
            found[WEB_SEARCH] = self._searcher.tool(search)
        # A client's tool wins over another of the same name.
        own = {tool.name for tool in request.tools}
        offered = {name: tool for name, tool in found.items() if name not in own}
        if offered and request.n > 1:
            raise ServerError(
                "unsupported", "MCP tools can be used with one choice only; leave out `n`.", "n"
            )
        tools = (*request.tools, *(tool.tool for tool in offered.values()))
        changed = msgspec.structs.replace(request, tools=tools, toolsets=(), web_search=None)
        return Equipped(changed, offered)

    def start(self, service: Service, offered: Mapping[str, OfferedTool]) -> Start:
        """What starts the task of a request that is offered these tools: a `ToolLoop` around the service."""

        async def start(task: Task, *, model: str, id: str, account: str = "") -> AnyRun:
            assert isinstance(task, Generate)  # nothing else is equipped
            loop = ToolLoop(service, self.servers, offered, task.request, model, id, account)
            await loop.begin()
            return loop

        return start

    def _wanted(self, request: GenerationRequest, named: Sequence[str]) -> tuple[Toolset, ...]:
        if request.messages is None:
            return ()
        wanted = request.toolsets + tuple(map(Toolset, named))
        if wanted or not self.unasked:
            return wanted
        plain = request.n == 1 and request.tool_choice.mode != "none"
        return (Toolset(ALL),) if plain else ()
