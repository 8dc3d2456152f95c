"""The texts that a folder's chat template writes around those that sentence-transformers gives it as messages."""

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from msgspec import Struct

from pippin.core.published import broken, chat_templates, fields_in, object_in, sentence_file, table
from pippin.engines.language.template.template import ChatTemplate, TemplateRefusal

MARKS = ("\ue000a\ue000", "\ue000b\ue000", "\ue000c\ue000")
"""What stands for texts, of characters that no template has."""

NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


class Frame(Struct, frozen=True):
    """A prompt of which some texts are left open: the pieces before, between and behind them, and which comes when."""

    pieces: tuple[str, ...]
    order: tuple[int, ...]

    def sorted(self, *texts: str) -> list[str]:
        return [texts[index] for index in self.order]


class Messages:
    """Several threads may use it at once."""

    def __init__(self, folder: Path, template: ChatTemplate, settings: dict[str, Any], *, flat: bool) -> None:
        self._file, self._template, self._flat = folder / sentence_file(folder), template, flat
        self._settings = {"add_generation_prompt": False, **settings}
        self.frame = lru_cache(self._frame)

    def _frame(self, roles: tuple[str, ...]) -> Frame:
        """The prompt of messages with these roles. Raises `ServerError("load_failed")` where the template leaves one
        out."""
        marks = MARKS[: len(roles)]
        messages = [
            {"role": role, "content": self._content(mark)} for role, mark in zip(roles, marks, strict=True)
        ]
        try:
            written = self._template.render(messages, self._settings)
        except TemplateRefusal as error:
            raise broken(self._file, f"names messages, which its chat template refuses ({error})") from error
        if lost := [role for role, mark in zip(roles, marks, strict=True) if written.count(mark) != 1]:
            raise broken(self._file, f"names messages, and its chat template does not write {lost[0]} once")
        order = sorted(range(len(marks)), key=lambda index: written.index(marks[index]))
        return Frame(tuple(re.split("|".join(marks), written)), tuple(order))

    def _content(self, text: str) -> object:
        return text if self._flat else [{"type": "text", "text": text}]


def messages_of(folder: Path) -> Messages | None:
    """None where the folder's texts are no messages. Raises `ServerError("load_failed")` where they are and it has no
    template."""
    kinds: dict[str, Any] = dict.fromkeys(("modality_config", "processing_kwargs"), dict[str, Any])
    said = fields_in(folder, file := sentence_file(folder), **kinds)
    asked = (said["modality_config"] or {}).get("message")
    if asked is None:
        return None
    settings = object_in(folder / "tokenizer_config.json")
    source = chat_templates(folder, settings.get("chat_template")).get("default")
    if source is None:
        raise broken(folder / file, "names messages, and the folder has no chat template")
    words = {name: table(settings.get(name)).get("content", settings.get(name)) for name in NAMES}
    try:
        template = ChatTemplate(source, {name: word for name, word in words.items() if isinstance(word, str)})
    except jinja2.TemplateSyntaxError as error:
        raise broken(folder / file, f"names messages, and its chat template is wrong ({error})") from error
    told = table((said["processing_kwargs"] or {}).get("chat_template"))
    told = {name: value for name, value in told.items() if name != "restore_suffix"}
    return Messages(folder, template, told, flat=table(asked).get("format") != "structured")
