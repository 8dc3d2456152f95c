"""Text of users that spells a marker stays text: `<|im_end|>` in a message never ends the message.

A marker in such text gets a noncharacter (U+FDEE) put into it before the template sees it, so that every marker which
then stands in the rendered prompt is the template's own. A twin of the tokenizer, in which markers are called by other
names, reads prompts that hold such a noncharacter; all others are read as they are, so ordinary text costs nothing and
is encoded exactly as it always is.
"""

import json
import re
from collections.abc import Iterable
from threading import Lock
from typing import Any

import tokenizers

from pippin.engines.language.text.length import check_length

BREAK = "\ufdee"
NAME = "\ufdef"  # U+FDEF: with a token's number between two of them, a marker's name in the twin
_RESERVED = str.maketrans({BREAK: "\ufffd", NAME: "\ufffd"})


class Literals:
    """Safe for use from several threads at once."""

    def __init__(self, backend: tokenizers.Tokenizer, template_text: str) -> None:
        """`template_text` holds the chat template and the markers of the formats in use: other added tokens that are
        found in it count as markers where users write them."""
        self._backend = backend
        self._lock = Lock()
        self._twin: tokenizers.Tokenizer | None = None
        added = backend.get_added_tokens_decoder()
        markers = {id_: str(token.content) for id_, token in added.items() if len(token.content) > 1}
        special = {id_ for id_ in markers if added[id_].special}
        used = {id_ for id_ in markers if markers[id_] in template_text and markers[id_].strip()}
        self._names = {markers[id_]: f"{NAME}{id_}{NAME}" for id_ in special | used}
        self._any = _pattern(self._names)
        self._special = _pattern(markers[id_] for id_ in special)

    def shield(self, text: str, *, trusted: bool = False) -> str:
        """`text` with its markers broken. Text of a trusted author (system, assistant) may hold markers that are no
        special tokens, such as `<think>`, which models write and clients send back."""
        if NAME in text or BREAK in text:
            text = text.translate(_RESERVED)
        pattern = self._special if trusted else self._any
        while pattern is not None and pattern.search(text):
            text = pattern.sub(_broken, text)
        return text

    def shield_value(self, value: Any, *, trusted: bool = True) -> Any:
        """JSON with all its texts shielded."""
        match value:
            case str():
                return self.shield(value, trusted=trusted)
            case dict():
                return {
                    self.shield_value(key, trusted=trusted): self.shield_value(held, trusted=trusted)
                    for key, held in value.items()
                }
            case list() | tuple():
                return [self.shield_value(held, trusted=trusted) for held in value]
            case _:
                return value

    def encode(self, rendered: str, most: int | None = None) -> list[int]:
        """The tokens of a rendered prompt. Raises `TooLong` for a long one of more than `most`."""
        check_length(self._backend, rendered, most)
        if BREAK not in rendered or self._any is None:
            return encode_text(self._backend, rendered.replace(BREAK, ""))
        named = self._any.sub(lambda found: self._names[found.group()], rendered)
        return encode_text(self._renamed(), named.replace(BREAK, ""))

    def _renamed(self) -> tokenizers.Tokenizer:
        with self._lock:
            if self._twin is None:
                self._twin = renamed_twin(self._backend, self._names)
            return self._twin


def plain(rendered: str) -> str:
    """The text without what shielding put into it."""
    return rendered.replace(BREAK, "")


def _broken(found: re.Match[str]) -> str:
    text = found.group()
    return text[0] + BREAK + text[1:]


def _pattern(markers: Iterable[str]) -> re.Pattern[str] | None:
    ordered = sorted(markers, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


def encode_text(backend: tokenizers.Tokenizer, text: str) -> list[int]:
    ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


def renamed_twin(backend: tokenizers.Tokenizer, names: dict[str, str]) -> tokenizers.Tokenizer:
    """The tokenizer with other names for its markers, so that text can't spell them."""
    state = json.loads(backend.to_str())
    state["post_processor"] = state["truncation"] = state["padding"] = None
    for token in state["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    vocabulary = state["model"]["vocab"]
    if isinstance(vocabulary, dict):
        state["model"]["vocab"] = {names.get(piece, piece): id_ for piece, id_ in vocabulary.items()}
    else:
        state["model"]["vocab"] = [[names.get(piece, piece), score] for piece, score in vocabulary]
    twin = tokenizers.Tokenizer.from_str(json.dumps(state))
    for marker, name in names.items():
        if twin.token_to_id(name) != backend.token_to_id(marker):
            raise ValueError(f"the tokenizer's marker {marker!r} has another number in its twin")
    return twin
