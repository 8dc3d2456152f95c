"""Media in rendered prompts: how messages speak of them to a chat template, and what takes their place in its text."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pippin.core.conversation import Audio, Image, Message, Part, Text, ToolResult, Video
from pippin.core.errors import ServerError
from pippin.engines.language.template.limits import TemplateRefusal
from pippin.engines.language.template.template import ChatTemplate
from pippin.engines.language.vision.media import MediaKind, MediaPart, Medium, kind_of


@dataclass(frozen=True)
class MediaStyle:
    """What a chat template makes of media. Kinds that it does not know are written into the text."""

    placeholders: dict[MediaKind, str]
    known: frozenset[MediaKind]

    def content(self, parts: tuple[Part, ...], shield: Callable[[str], str]) -> Any:
        """The content of a message that holds media."""
        listed: list[dict[str, Any]] = []
        for part in parts:
            match part:
                case Text(text):
                    listed.append({"type": "text", "text": shield(text)})
                case Image() | Audio() | Video() if (kind := kind_of(part)) in self.known:
                    listed.append({"type": kind})
                case Image() | Audio() | Video():
                    listed.append({"type": "text", "text": self.placeholders.get(kind_of(part), "") + "\n"})
                case _:
                    pass
        if self.known:
            return listed
        return "".join(item["text"] for item in listed)


def style_of(template: ChatTemplate, placeholders: dict[MediaKind, str]) -> MediaStyle:
    known = set()
    for kind, placeholder in placeholders.items():
        content = [{"type": kind}, {"type": "text", "text": "QXA"}]
        try:
            rendered = template.render(
                [{"role": "user", "content": content}], {"add_generation_prompt": False}
            )
        except TemplateRefusal:
            continue
        if rendered.count(placeholder) == 1 and "QXA" in rendered:
            known.add(kind)
    return MediaStyle(placeholders, frozenset(known))


def holds_media(parts: tuple[Part, ...]) -> bool:
    return any(isinstance(part, (Image, Audio, Video)) for part in parts)


def media_parts(messages: tuple[Message, ...]) -> Iterator[tuple[str, MediaPart]]:
    """All media in the order in which the converted messages speak of them, with the paths of their fields."""
    for place, message in enumerate(messages):
        where = f"messages[{place}]"
        for number, part in enumerate(message.parts):
            if isinstance(part, ToolResult):
                yield from _of(part.parts, f"{where}.content[{number}]")
        yield from _of(message.parts, where)


def _of(parts: tuple[Part, ...], where: str) -> Iterator[tuple[str, MediaPart]]:
    for number, part in enumerate(parts):
        if isinstance(part, (Image, Audio, Video)):
            yield f"{where}.content[{number}]", part


def written_out(rendered: str, media: list[Medium], placeholders: dict[MediaKind, str]) -> str:
    """The rendered prompt with each medium's own text. Raises `ServerError` if the template has left some out."""
    kinds = {name: kind for kind, name in placeholders.items()}
    pattern = "|".join(map(re.escape, sorted(kinds, key=len, reverse=True)))
    found = list(re.finditer(pattern, rendered))
    if [kinds[match.group()] for match in found] != [medium.kind for medium in media]:
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
