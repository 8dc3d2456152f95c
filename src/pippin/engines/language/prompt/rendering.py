"""A request's prompt: rendered and tokenized."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from pippin.core.conversation import Message, Text, Tool, ToolCall
from pippin.core.errors import ServerError
from pippin.core.requests import RESERVED_VARIABLES, GenerationRequest
from pippin.engines.language.prompt import infill, limits
from pippin.engines.language.prompt.messages import Converter
from pippin.engines.language.template.limits import TemplateRefusal, TemplateTooCostly
from pippin.engines.language.template.template import ChatTemplate
from pippin.engines.language.template.traits import probe
from pippin.engines.language.text.length import check_length
from pippin.engines.language.text.literals import plain
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.language.vision.media import Medium, PromptMedia
from pippin.engines.language.vision.writing import media_parts, style_of, written_out
from pippin.output.tool_format import History

if TYPE_CHECKING:
    from pippin.engines.language.vision.processing import MediaProcessor

CONTINUED = "\ufded"
"""Stands where an assistant's last words break off, while the template is rendered."""

MOST_MEDIA_BYTES = 1 << 31  # of one request, as arrays


@dataclass(frozen=True)
class Prompt:
    tokens: tuple[int, ...]
    text: str = ""
    raw: bool = False
    continued: str = ""  # the assistant's words that the answer goes on from
    pins: tuple[int, ...] = ()
    dropped: int = 0
    media: PromptMedia | None = None


class PromptRenderer:
    """Safe for use from several threads at once."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        sources: dict[str, str],
        history: History,
        defaults: dict[str, Any],
        media: "MediaProcessor | None" = None,
    ) -> None:
        """`sources` are the chat templates by name; `defaults` the variables that the model's options set; `media` is
        there for models that take more than text."""
        self._tokenizer = tokenizer
        self._media = media
        self._defaults = defaults
        self._templates: dict[str, tuple[ChatTemplate, Converter]] = {}
        for name, source in sources.items():
            template = ChatTemplate(source, tokenizer.special_names)
            style = None if media is None else style_of(template, media.placeholders)
            converter = Converter(probe(template, history), history, tokenizer.literals, style)
            self._templates[name] = (template, converter)

    @property
    def offers_tools(self) -> bool:
        """Whether a template tells the model of tools in its own way."""
        return any(converter.traits.tools for _, converter in self._templates.values())

    @property
    def turn_end(self) -> str:
        """What the default template writes after an assistant's words."""
        found = self._templates.get("default")
        return found[1].traits.turn_end if found else ""

    def prompt(self, request: GenerationRequest, tools: tuple[Tool, ...], most: int | None = None) -> Prompt:
        """The whole prompt, whether it fits or not; but a long one of more than `most` tokens raises `TooLong`."""
        match request.prompt:
            case None:
                return self._chat(request, request.messages or (), tools, most)
            case str(text) if request.suffix is not None:
                return Prompt(
                    tuple(infill.infill_prompt(self._tokenizer, text, request.suffix, most)), text, raw=True
                )
            case str(text):
                tokens = tuple(self._tokenizer.encode(text, add_special_tokens=True, most=most))
            case ids:
                limits.check_prompt(ids, self._tokenizer.size)
                tokens, text = ids, self._tokenizer.decode(ids) if request.echo else ""
        if not tokens:
            raise ServerError("invalid_request", "'prompt' is empty; give at least one token.", "prompt")
        return Prompt(tokens, text, raw=True)

    def begun(
        self, request: GenerationRequest, messages: tuple[Message, ...], tools: tuple[Tool, ...]
    ) -> list[int]:
        """The tokens of a conversation so far, without a turn for the answer."""
        text, _ = self._written(request, messages, tools, generation=False)
        return self._tokenizer.literals.encode(text)

    def _chat(
        self,
        request: GenerationRequest,
        messages: tuple[Message, ...],
        tools: tuple[Tool, ...],
        most: int | None,
    ) -> Prompt:
        if not messages:
            raise ServerError(
                "invalid_request", "'messages' is empty; give at least one message.", "messages"
            )
        # Rendering takes long, too; and what users say is in the prompt, whatever the template makes of the rest.
        for text in _texts_of_users(messages):
            check_length(self._tokenizer.backend, text, most)
        continued = _continued(request, messages)
        if continued is not None:
            messages = (*messages[:-1], _marked(messages[-1]))
        text, media = self._written(request, messages, tools, generation=continued is None)
        if continued is not None:
            text = text[: text.rfind(CONTINUED)] if CONTINUED in text else text
        tokens = self._tokenizer.literals.encode(text, most)
        placed = self._placed(media, tokens)
        return Prompt(tuple(tokens), plain(text), continued=continued or "", media=placed)

    def _written(
        self,
        request: GenerationRequest,
        messages: tuple[Message, ...],
        tools: tuple[Tool, ...],
        *,
        generation: bool,
    ) -> tuple[str, list[Medium]]:
        """The rendered text with what stands for its media, and these."""
        if self._media is None:
            return self._render(request, messages, tools, generation=generation), []
        media, size = [], 0
        for where, part in media_parts(messages):
            media.append(self._media.process(part, where))
            size += media[-1].bytes
            if size > MOST_MEDIA_BYTES:
                raise ServerError(
                    "invalid_request",
                    f"The media up to '{where}' are too large together; send fewer, or smaller ones ('max_pixels').",
                    where,
                )
        text = self._render(request, messages, tools, generation=generation)
        return written_out(text, media, self._media.placeholders) if media else text, media

    def _placed(self, media: list[Medium], tokens: list[int]) -> PromptMedia | None:
        if self._media is None or not media:
            return None
        placed = self._media.place(media, tokens)
        if placed is None or placed.placed[-1].positions[-1] == len(tokens) - 1:
            raise ServerError(
                "unsupported",
                "The chat template of this model does not write these media so that the model can take them.",
                "messages",
            )
        return placed

    def _render(
        self,
        request: GenerationRequest,
        messages: tuple[Message, ...],
        tools: tuple[Tool, ...],
        *,
        generation: bool,
    ) -> str:
        template, converter = self._template_for(tools)
        variables = {**self._variables(request), "add_generation_prompt": generation}
        if tools and converter.traits.tools:
            variables["tools"] = converter.offer(tools)
        elif converter.traits.no_tools:
            variables["tools"] = None
        converted = converter.convert(messages, tools)
        try:
            return template.render(converted, variables)
        except TemplateTooCostly as error:
            raise ServerError(
                "invalid_request", f"The chat template gave up on these messages: {error}.", "messages"
            ) from error
        except TemplateRefusal as error:
            raise ServerError(
                "invalid_request",
                f"The model's chat template can't render these messages: {error}",
                "messages",
            ) from error

    def _template_for(self, tools: tuple[Tool, ...]) -> tuple[ChatTemplate, Converter]:
        found = self._templates.get("tool_use") if tools else None
        found = found or self._templates.get("default")
        if found is None:
            raise ServerError(
                "unsupported",
                "This model has no chat template, so it takes no messages. Send a raw prompt to /v1/completions, or "
                "start the server with --chat-template-file.",
                "messages",
            )
        return found

    def _variables(self, request: GenerationRequest) -> dict[str, Any]:
        forbidden = sorted(
            request.template_kwargs.keys() & (RESERVED_VARIABLES | self._tokenizer.special_names.keys())
        )
        if forbidden:
            raise ServerError(
                "invalid_request",
                f"'chat_template_kwargs' can't set {', '.join(forbidden)}. Leave them out.",
                f"chat_template_kwargs.{forbidden[0]}",
            )
        asked: dict[str, Any] = self._tokenizer.literals.shield_value(request.template_kwargs)
        variables = {**self._defaults, **asked}
        if request.thinking.enabled is not None:
            variables |= {"enable_thinking": request.thinking.enabled, "thinking": request.thinking.enabled}
        if request.thinking.effort is not None:
            variables["reasoning_effort"] = self._tokenizer.literals.shield(request.thinking.effort)
        return variables


def _texts_of_users(messages: tuple[Message, ...]) -> Iterator[str]:
    return (
        part.text
        for message in messages
        if message.role == "user"
        for part in message.parts
        if isinstance(part, Text)
    )


def _continued(request: GenerationRequest, messages: tuple[Message, ...]) -> str | None:
    """The words of the assistant that the answer goes on from, where the request asks for that."""
    if not request.continue_final:
        return None
    last = messages[-1]
    if last.role != "assistant" or any(isinstance(part, ToolCall) for part in last.parts):
        raise ServerError(
            "invalid_request",
            "To continue the last message it must be one of the assistant, without tool calls.",
            f"messages[{len(messages) - 1}]",
        )
    return "\n".join(part.text for part in last.parts if isinstance(part, Text))


def _marked(message: Message) -> Message:
    """The message with `CONTINUED` after its last words."""
    texts = [place for place, part in enumerate(message.parts) if isinstance(part, Text)]
    if not texts:
        return msgspec.structs.replace(message, parts=(*message.parts, Text(CONTINUED)))
    parts = list(message.parts)
    last = parts[texts[-1]]
    assert isinstance(last, Text)
    parts[texts[-1]] = Text(last.text + CONTINUED)
    return msgspec.structs.replace(message, parts=tuple(parts))
