"""A client of a Realtime connection that holds every event to the types of OpenAI's package."""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter
from websockets.sync.client import ClientConnection, connect

from tests.api.live_server import MODEL

EVENTS: TypeAdapter[RealtimeServerEvent] = TypeAdapter(RealtimeServerEvent)
Event = dict[str, Any]


class Client:
    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.session: Event = {}

    def send(self, type: str, **fields: Any) -> None:
        self.socket.send(json.dumps({"type": type, **fields}))

    def next(self, timeout: float = 60) -> Event:
        event: Event = json.loads(self.socket.recv(timeout=timeout))
        EVENTS.validate_python(event)
        assert event["event_id"].startswith("event_")
        return event

    def until(self, *types: str) -> list[Event]:
        """All events up to the first of these types."""
        events = [self.next()]
        while events[-1]["type"] not in types:
            events.append(self.next())
        return events

    def says(self, text: str, **fields: Any) -> Event:
        """Add a message of the user's; the item."""
        content = [{"type": "input_text", "text": text}]
        item = {"type": "message", "role": "user", "content": content}
        self.send("conversation.item.create", item=item, **fields)
        [*_, done] = self.until("conversation.item.done", "error")
        assert done["type"] == "conversation.item.done", done
        found: Event = done["item"]
        return found

    def respond(self, **fields: Any) -> list[Event]:
        """The events of one response."""
        self.send("response.create", **({"response": fields} if fields else {}))
        return self.until("response.done", "error")

    def sets(self, **fields: Any) -> Event:
        """Change the session; what it is then, or the error."""
        self.send("session.update", session={"type": "realtime", **fields})
        answer = self.until("session.updated", "error")[-1]
        found: Event = answer.get("session") or answer["error"]
        return found

    def speaks(self, sound: bytes, piece: int = 9600) -> None:
        for start in range(0, len(sound), piece):
            audio = base64.b64encode(sound[start : start + piece]).decode()
            self.send("input_audio_buffer.append", audio=audio)

    def refused(self, type: str, **fields: Any) -> Event:
        """Send what is refused; the error."""
        self.send(type, event_id="mine", **fields)
        error: Event = self.until("error")[-1]["error"]
        assert error["event_id"] == "mine"
        return error


@contextmanager
def client_of(address: str, query: str = f"model={MODEL}", **fields: Any) -> Iterator[Client]:
    url = address.replace("http", "ws") + f"/v1/realtime?{query}"
    with connect(url, **fields) as socket:
        client = Client(socket)
        created = client.next()
        assert created["type"] == "session.created"
        client.session = created["session"]
        yield client


def of(events: list[Event], type: str) -> list[Event]:
    return [event for event in events if event["type"] == type]


def joined(
    events: list[Event], type: str, take: Callable[[Event], str] = lambda event: event["delta"]
) -> str:
    return "".join(take(event) for event in of(events, type))


def said(events: list[Event]) -> str:
    return joined(events, "response.output_text.delta")
