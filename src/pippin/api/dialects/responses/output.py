"""Builds the output items of a response, and says as stream events how each of them grows."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec

from pippin.api.dialects.responses.tools import Origin, custom_input
from pippin.api.dialects.shared.sealed_text import seal
from pippin.core.decoding import from_json
from pippin.core.events import PartDelta, Token

Json = dict[str, Any]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputItem(ABC):
    """One item while it grows. Events come without their sequence number."""

    def __init__(self, id: str, index: int) -> None:
        self.id = id
        self.index = index  # in the output
        self.status: ItemStatus = "in_progress"
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @abstractmethod
    def item(self) -> Json: ...

    def opened(self) -> Iterable[Json]:
        return ()

    def grown(self, delta: PartDelta) -> Iterable[Json]:
        return ()

    def closed(self) -> Iterable[Json]:
        return ()

    def start(self) -> Iterator[Json]:
        yield {"type": "response.output_item.added", "output_index": self.index, "item": self.item()}
        yield from self.opened()

    def grow(self, delta: PartDelta) -> Iterator[Json]:
        self._pieces.append(delta.text)
        yield from self.grown(delta)

    def close(self, status: ItemStatus) -> Iterator[Json]:
        yield from self.closed()
        self.status = status
        yield {"type": "response.output_item.done", "output_index": self.index, "item": self.item()}

    def _event(self, type: str, **fields: Any) -> Json:
        return {"type": type, "item_id": self.id, "output_index": self.index, **fields}


class MessageItem(OutputItem):
    def __init__(self, id: str, index: int) -> None:
        super().__init__(id, index)
        self.logprobs: list[Json] = []
        self.started = False

    def _part(self) -> Json:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs}

    def item(self) -> Json:
        content = [self._part()] if self.started else []
        return {
            "id": self.id,
            "type": "message",
            "status": self.status,
            "role": "assistant",
            "content": content,
        }

    def opened(self) -> Iterator[Json]:
        self.started = True
        yield self._event("response.content_part.added", content_index=0, part=self._part())

    def grown(self, delta: PartDelta) -> Iterator[Json]:
        logprobs = [logprob_of(token) for token in delta.tokens]
        self.logprobs += logprobs
        if delta.text or logprobs:
            yield self._event(
                "response.output_text.delta", content_index=0, delta=delta.text, logprobs=logprobs
            )

    def closed(self) -> Iterator[Json]:
        yield self._event(
            "response.output_text.done", content_index=0, text=self.text, logprobs=self.logprobs
        )
        yield self._event("response.content_part.done", content_index=0, part=self._part())


class ReasoningItem(OutputItem):
    """What the model thought: as a summary where the client asked for one, else as raw reasoning text.

    A local model's reasoning is there to be read, so its "summary" is the reasoning itself; it is sent in one
    of the two forms, never in both, so that no client shows it twice.
    """

    def __init__(self, id: str, index: int, *, as_summary: bool, sealed: bool) -> None:
        super().__init__(id, index)
        self.as_summary = as_summary
        self.sealed = sealed
        self.started = False

    def _part(self) -> Json:
        return {"type": "summary_text" if self.as_summary else "reasoning_text", "text": self.text}

    def item(self) -> Json:
        parts = [self._part()] if self.started else []
        item: Json = {"id": self.id, "type": "reasoning", "status": self.status}
        item["summary"] = parts if self.as_summary else []
        if not self.as_summary:
            item["content"] = parts
        if self.sealed and self.status != "in_progress":
            item["encrypted_content"] = seal(self.text)
        return item

    def opened(self) -> Iterator[Json]:
        self.started = True
        kind = "reasoning_summary_part" if self.as_summary else "content_part"
        yield self._event(f"response.{kind}.added", **self._place, part=self._part())

    def grown(self, delta: PartDelta) -> Iterator[Json]:
        if delta.text:
            yield self._event(f"response.{self._text_kind}.delta", **self._place, delta=delta.text)

    def closed(self) -> Iterator[Json]:
        yield self._event(f"response.{self._text_kind}.done", **self._place, text=self.text)
        kind = "reasoning_summary_part" if self.as_summary else "content_part"
        yield self._event(f"response.{kind}.done", **self._place, part=self._part())

    @property
    def _place(self) -> dict[str, int]:
        return {"summary_index" if self.as_summary else "content_index": 0}

    @property
    def _text_kind(self) -> str:
        return "reasoning_summary_text" if self.as_summary else "reasoning_text"


class CallItem(OutputItem):
    """A call; `origin` is what the called function stood for in the request."""

    def __init__(self, id: str, index: int, call_id: str, origin: Origin) -> None:
        super().__init__(id, index)
        self.call_id = call_id
        self.origin = origin

    def _named(self, type: str, **fields: Any) -> Json:
        item = {"id": self.id, "type": type, "status": self.status, "call_id": self.call_id}
        item["name"] = self.origin.name
        if self.origin.namespace:
            item["namespace"] = self.origin.namespace
        return item | fields


class FunctionCallItem(CallItem):
    def item(self) -> Json:
        return self._named("function_call", arguments=self.text)

    def grown(self, delta: PartDelta) -> Iterator[Json]:
        if delta.text:
            yield self._event("response.function_call_arguments.delta", delta=delta.text)

    def closed(self) -> Iterator[Json]:
        yield self._event("response.function_call_arguments.done", name=self.origin.name, arguments=self.text)


class CustomCallItem(CallItem):
    """Its input is a string within the function's arguments, so it is sent when these are complete."""

    def item(self) -> Json:
        done = self.status != "in_progress"
        return self._named("custom_tool_call", input=custom_input(self.text) if done else "")

    def closed(self) -> Iterator[Json]:
        text = custom_input(self.text)
        if text:
            yield self._event("response.custom_tool_call_input.delta", delta=text)
        yield self._event("response.custom_tool_call_input.done", input=text)


class ActionCallItem(CallItem):
    """A shell command or a patch. It has no events for its parts, so it appears when it is complete."""

    def start(self) -> Iterator[Json]:
        return iter(())

    def close(self, status: ItemStatus) -> Iterator[Json]:
        yield {"type": "response.output_item.added", "output_index": self.index, "item": self.item()}
        yield from super().close(status)

    def item(self) -> Json:
        arguments = self._arguments()
        call: Json = {"id": self.id, "call_id": self.call_id, "status": self.status}
        match self.origin.kind:
            case "local_shell":
                action: Json = {"type": "exec", "env": {}, "command": _texts(arguments.pop("command", []))}
                return call | {"type": "local_shell_call", "action": action | arguments}
            case "shell":
                action = {"commands": _texts(arguments.pop("commands", [])), "max_output_length": None}
                return call | {"type": "shell_call", "action": action | {"timeout_ms": None} | arguments}
            case _:
                # Nothing knows of an incomplete patch: the status is the only word for "not to be applied".
                call["status"] = "in_progress" if self.status == "incomplete" else self.status
                return call | {"type": "apply_patch_call", "operation": arguments}

    def _arguments(self) -> Json:
        try:
            return from_json(self.text, dict[str, Any])
        except msgspec.DecodeError:
            return {}


def _texts(given: Any) -> list[str]:
    return [str(text) for text in given] if isinstance(given, list) else [str(given)]


def logprob_of(token: Token) -> Json:
    return _logprob(token.raw, token.logprob) | {
        "top_logprobs": [_logprob(top.raw, top.logprob) for top in token.top]
    }


def _logprob(raw: bytes, logprob: float | None) -> Json:
    text = raw.decode("utf-8", errors="replace")
    return {"token": text, "bytes": list(raw), "logprob": 0.0 if logprob is None else logprob}
