"""What a tool is: structs of its arguments and its result, and the function that runs a call."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct
from starlette.requests import Request

from pippin.api.access.exchange import Exchange, exchange_of
from pippin.api.answers.answer import load_words
from pippin.api.dialects.shared.fields import check_depth, convert
from pippin.api.routing import Api
from pippin.core.errors import ServerError
from pippin.core.events import Event
from pippin.core.models import ModelKind
from pippin.core.tasks import Task
from pippin.mcp.toolbox import ServedTool, Sound, Tell

TELL_SECONDS: Final = 1.0  # between two reports of a call's progress

Arguments = TypeVar("Arguments", bound=Struct)


class Done(Struct, frozen=True, kw_only=True):
    """The result of a call. `text` is for a model to read; if it is None, the result is shown as JSON."""

    result: Struct
    text: str | None = None
    sound: Sound | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """What a tool may know of a call beside its arguments."""

    api: Api
    request: Request  # with the rights of the caller; its body was read
    tell: Tell

    @property
    def exchange(self) -> Exchange:
        return exchange_of(self.request.scope)

    @contextlib.asynccontextmanager
    async def telling(self, model: str, words: Callable[[], str]) -> AsyncIterator[None]:
        """While this is open, tell the client how far the load of `model` is, or else what `words` returns."""
        telling = asyncio.create_task(self._tell_on(model, words), name="progress of a tool")
        try:
            yield
        finally:
            telling.cancel()
            # An error in telling, such as that the client left, must not fail the call.
            await asyncio.gather(telling, return_exceptions=True)

    async def perform(self, task: Task, model: str, operation: str, doing: str) -> "Performed":
        """All events of a task other than generation; the client is told `doing` meanwhile. Raises `ServerError`."""
        try:
            info = await self.api.service.find(model, task.model_kind)
            name = info.id
        except ServerError:
            name = model  # performing the task raises the reason, or downloads the model
        async with self.telling(name, lambda: doing):
            events = await self.api.handler.task(self.request, task, model=model, operation=operation)
        return Performed(events, (await self.api.service.find(model, task.model_kind)).id)

    async def _tell_on(self, model: str, words: Callable[[], str]) -> None:
        while True:
            await asyncio.sleep(TELL_SECONDS)
            loading = load_words(self.api.service.pool.states(), model)
            await self.tell(f"The model {loading}." if loading else words())


@dataclass(frozen=True, slots=True)
class Performed:
    """The events of a task, and the name of the model that ran it."""

    events: list[Event]
    model: str

    @property
    def ending(self) -> Event:
        return self.events[-1]


@dataclass(frozen=True)
class Tool(Generic[Arguments]):
    """One tool. `kind`: the kind of models it asks; without such a model it isn't listed, except for `language`."""

    name: str
    title: str
    description: str
    arguments: type[Arguments]
    result: type[Struct]
    run: Callable[[Call, Arguments], Awaitable[Done]]
    kind: ModelKind | None = None
    manages: bool = False  # only for callers who may manage the server
    destructive: bool = False

    @cached_property
    def served(self) -> ServedTool:
        return ServedTool(
            name=self.name,
            title=self.title,
            description=self.description,
            arguments=schema_of(self.arguments),
            result=schema_of(self.result),
            read_only=not self.manages,
            destructive=self.destructive,
        )

    def arguments_of(self, given: dict[str, Any]) -> Arguments:
        """The arguments of a call. Raises `ServerError` that names the one that can't be honoured."""
        known = [field.encode_name for field in msgspec.structs.fields(self.arguments)]
        if strangers := sorted(given.keys() - set(known)):
            takes = f"takes {', '.join(f'`{name}`' for name in known)}" if known else "takes none"
            message = f"There is no argument `{strangers[0][:64]}`: `{self.name}` {takes}."
            raise ServerError("invalid_request", message, strangers[0])
        check_depth(given, "arguments")
        return convert(given, self.arguments, "")


def schema_of(struct: type[Struct]) -> dict[str, Any]:
    """The JSON schema of a struct, with its own definitions and no `$ref` at its root, which clients can't read."""
    _, components = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    whole: dict[str, Any] = components.pop(struct.__name__)
    return whole | ({"$defs": components} if components else {})
