"""Turns tasks into scripted jobs: finds the rule, counts tokens, refuses what does not fit."""

import json
import time
from dataclasses import dataclass, field

import msgspec

from pippin.config.options.model import ModelOptions
from pippin.core.conversation import Image, Message, Reasoning, Text, ToolCall, ToolResult
from pippin.core.decoding import convert
from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Counted, Detokenized, Event, Rendered, Tokenized
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import CountTokens, Detokenize, Generate, RenderTemplate, Task, Tokenize
from pippin.engines.attachments.reading import AttachmentReader, Readable
from pippin.engines.scripted import tokenizer
from pippin.engines.scripted.other_tasks import answer
from pippin.engines.scripted.performance import Performance, perform
from pippin.engines.scripted.script import Rule, holds, load_script
from pippin.output.checking import repeated_calls
from pippin.output.formats import reasoning_format, tool_format


@dataclass(frozen=True)
class ScriptedJob:
    id: str
    accepted: Accepted
    request: GenerationRequest
    rule: Rule
    prompt: str
    choices: tuple[Performance, ...]
    created: float = field(default_factory=time.monotonic)


class ScriptedPreparer:
    """Safe for use from several threads at once."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.script = load_script(spec.info.path)
        self.options = convert(spec.options, ModelOptions)
        self.tool_format = tool_format(self.options.tool_call_parser or self.script.tool_format)
        self.reasoning_format = reasoning_format(
            self.options.reasoning_parser or self.script.reasoning_format
        )
        window = spec.info.context_window or self.script.context_window
        self.window = min(window, self.options.context_length or window)
        self._attachments = AttachmentReader(self.options.unreadable_media)
        self.info: ModelInfo = msgspec.structs.replace(
            spec.info,
            context_window=self.window,
            capabilities=self.script.capabilities,
            architecture="scripted",
            tool_format=self.tool_format.name,
            reasoning_format=self.reasoning_format.name,
            dimensions=self.script.dimensions,
        )

    def prepare(self, id: str, task: Task) -> ScriptedJob | tuple[Event, ...]:
        match task:
            case Generate(request):
                return self._job(id, request)
            case CountTokens(request):
                return (Counted(len(tokenizer.pieces(render(self._readable(request).request)))),)
            case RenderTemplate(request):
                prompt = render(self._readable(request).request)
                return (Rendered(prompt, tokenizer.encode(prompt)),)
            case Tokenize(text, _, with_pieces):
                tokens = tokenizer.encode(text)
                pieces = tuple(map(tokenizer.token_bytes, tokens)) if with_pieces else ()
                return (Tokenized(tokens, pieces),)
            case Detokenize(tokens):
                return (Detokenized(tokenizer.decode(tokens)),)
            case _:
                return answer(task, self.info, self.window)

    def _job(self, id: str, request: GenerationRequest) -> ScriptedJob:
        readable = self._readable(request)
        rule = next((each for each in self.script.rules if holds(each.when, readable.request)), Rule())
        if rule.error is not None:
            raise ServerError.of(rule.error)
        window = min(self.window, request.context_limit or self.window)
        request, dropped = self._fitted(readable.request, window)
        prompt = render(request)
        used = len(tokenizer.pieces(prompt))
        room = window - used
        limit = room if request.max_tokens is None else min(request.max_tokens, room)
        choices = tuple(
            perform(request, rule, limit, choice, self.tool_format, self.reasoning_format)
            for choice in range(request.n)
        )
        warnings = readable.warnings + repeated_calls(request)
        return ScriptedJob(id, Accepted(used, dropped, warnings), request, rule, prompt, choices)

    def _readable(self, request: GenerationRequest) -> Readable:
        can = self.script.capabilities
        modalities = (("image", can.images), ("audio", can.audio), ("video", can.video))
        return self._attachments.read(request, {modality for modality, taken in modalities if taken})

    def _fitted(self, request: GenerationRequest, window: int) -> tuple[GenerationRequest, int]:
        """The request with what the overflow policy leaves of it, and how many messages that took."""
        dropped = 0
        while (used := tokenizer.count(render(request), window)) >= window:
            messages = request.messages or ()
            # The first that may be dropped: no instructions, and not the last.
            free = (n for n, each in enumerate(messages[:-1]) if each.role not in ("system", "developer"))
            oldest = next(free, None) if request.overflow == "truncate" else None
            if oldest is None:
                raise ServerError(
                    "context_length_exceeded",
                    f"The prompt has {used} tokens or more, but the context window of {self.info.id!r} holds "
                    f"{window}. Shorten the messages.",
                    "messages" if request.messages is not None else "prompt",
                )
            request = msgspec.structs.replace(request, messages=messages[:oldest] + messages[oldest + 1 :])
            dropped += 1
        return request, dropped


def render(request: GenerationRequest) -> str:
    """The prompt's text: a plain template of a line for each message."""
    if request.messages is None:
        prompt = request.prompt or ""
        return prompt if isinstance(prompt, str) else tokenizer.decode(prompt)
    tools = [f"<|tool|>{json.dumps([tool.name, tool.parameters])}\n" for tool in request.tools]
    turns = [f"<|{message.role}|>{_shown(message)}\n" for message in request.messages]
    opening = "" if request.continue_final else "<|assistant|>"
    return "".join(tools + turns) + opening


def _shown(message: Message) -> str:
    shown = []
    for part in message.parts:
        match part:
            case Text(text) | Reasoning(text):
                shown.append(text)
            case ToolCall(_, name, arguments):
                shown.append(f"{name}({arguments})")
            case ToolResult(_, parts):
                shown += [inner.text for inner in parts if isinstance(inner, Text)]
            case Image():
                shown.append("<image>")
            case _:
                shown.append("<media>")
    return "".join(shown)


def open_preparer(spec: WorkerSpec) -> ScriptedPreparer:
    preparer = ScriptedPreparer(spec)
    time.sleep(preparer.script.start_seconds)
    return preparer
