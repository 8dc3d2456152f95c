"""Placeholders of media: how messages name media to a chat template, and the text that replaces them in its output."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pippin.core.conversation import Audio, Image, Message, Part, Text, ToolResult, Video
from pippin.core.errors import ServerError
from pippin.engines.language.template.template import ChatTemplate, TemplateRefusal
from pippin.engines.language.vision.media import MediaPart, Medium, Modality, PromptMedia, modality_of


@dataclass(frozen=True)
class MediaStyle:
    """How a chat template takes media: as parts of these modalities, or else as placeholders in the text."""

    placeholders: dict[Modality, str]
    known: frozenset[Modality]

    def content(self, parts: tuple[Part, ...], shield: Callable[[str], str]) -> Any:
        """The content of a message that holds media, as the chat template takes it. Text goes through `shield`."""
        listed: list[dict[str, Any]] = []
        for part in parts:
            match part:
                case Text(text):
                    listed.append({"type": "text", "text": shield(text)})
                case Image() | Audio() | Video() if (modality := modality_of(part)) in self.known:
                    listed.append({"type": modality})
                case Image() | Audio() | Video():
                    listed.append(
                        {"type": "text", "text": self.placeholders.get(modality_of(part), "") + "\n"}
                    )
                case _:
                    pass
        if self.known:
            return listed
        return "".join(item["text"] for item in listed)


def style_of(template: ChatTemplate, placeholders: dict[Modality, str]) -> MediaStyle:
    """Find out, by rendering a message for each modality, for which of them the template writes a placeholder."""
    known = set()
    for modality, placeholder in placeholders.items():
        content = [{"type": modality}, {"type": "text", "text": "QXA"}]
        try:
            rendered = template.render(
                [{"role": "user", "content": content}], {"add_generation_prompt": False}
            )
        except TemplateRefusal:
            continue
        if rendered.count(placeholder) == 1 and "QXA" in rendered:
            known.add(modality)
    return MediaStyle(placeholders, frozenset(known))


def holds_media(parts: tuple[Part, ...]) -> bool:
    return any(isinstance(part, (Image, Audio, Video)) for part in parts)


def media_parts(messages: tuple[Message, ...]) -> Iterator[tuple[str, MediaPart]]:
    """Yield the field path and part of each medium, in the order in which the converted messages name them."""
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        for number, part in enumerate(message.parts):
            if isinstance(part, ToolResult):
                yield from _of(part.parts, f"{where}.content[{number}]")
        yield from _of(message.parts, where)


def _of(parts: tuple[Part, ...], where: str) -> Iterator[tuple[str, MediaPart]]:
    for number, part in enumerate(parts):
        if isinstance(part, (Image, Audio, Video)):
            yield part.field or f"{where}.content[{number}]", part


def require_text_after(media: PromptMedia | None, length: int) -> PromptMedia:
    """The media of a prompt of `length` tokens. Raises `ServerError` if they have no place, or no text after them."""
    positions = () if media is None else media.placed[-1].positions
    if media is None or not positions or positions[-1] == length - 1:
        raise ServerError(
            "unsupported",
            "The chat template of this model does not write these media so that the model can take them.",
            "messages",
        )
    return media


def expand_placeholders(rendered: str, media: list[Medium], placeholders: dict[Modality, str]) -> str:
    """Replace each placeholder in a rendered prompt by its medium's own text.

    Raises `ServerError` if the template wrote other placeholders than those of `media`, in this order.
    """
    modalities = {name: modality for modality, name in placeholders.items()}
    pattern = "|".join(map(re.escape, sorted(modalities, key=len, reverse=True)))
    found = list(re.finditer(pattern, rendered))
    if [modalities[match.group()] for match in found] != [medium.modality for medium in media]:
        raise ServerError(
            "invalid_request",
            f"The chat template of this model makes {len(found)} of the {len(media)} media in 'messages': send them in "
            "messages of the user.",
            "messages",
        )
    pieces, start = [], 0
    for match, medium in zip(found, media, strict=True):
        pieces += [rendered[start : match.start()], medium.text]
        start = match.end()
    return "".join([*pieces, rendered[start:]])
