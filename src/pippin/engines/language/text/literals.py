"""Encodes prompts within a length, as what they are: `<|im_end|>` in a client's text never ends the message.

Markers are special tokens, and added tokens that the chat template or an output format is written with. Before a
template sees a client's text, a noncharacter (U+FDEE) is put into each marker in it, so that every whole marker of the
rendered prompt is the template's own. A prompt with such noncharacters is encoded by a copy of the tokenizer in which
markers have other names. Every other prompt is encoded by the tokenizer itself: ordinary text costs nothing and keeps
its tokens.
"""

import json
import re
from collections.abc import Iterable
from threading import Lock
from typing import Any, Final

import tokenizers

# A tokenizer of 50,000 words takes about 100 bytes of memory for each byte of text, and two seconds for each megabyte
# (measured with SmolLM2's on 30 MB of English: 63 s, 2.8 GB). So a text that can hardly fit is tokenized in pieces
# first, until their tokens are more than may be. Only then nothing is known of the rest, which is never looked at.
PIECE: Final = 64 << 10  # characters
LIKELY: Final = (
    6  # characters of a token in an ordinary text, at most: below that a text is tokenized at once
)
AT_A_CUT: Final = 16  # tokens that a cut in the midst of a word may have made more


class TooLong(Exception):
    """A text has more tokens than may be: `least` of them, or more."""

    def __init__(self, least: int) -> None:
        super().__init__(f"the text has {least} tokens or more")
        self.least = least


def check_length(backend: tokenizers.Tokenizer, text: str, most: int | None) -> None:
    """Raises `TooLong` for a long text that has more than `most` tokens; `None` is no limit."""
    if most is None or len(text) <= max(PIECE, most * LIKELY):
        return
    count = 0
    for start in range(0, len(text), PIECE):
        piece = text[start : start + PIECE]
        count += max(0, len(backend.encode_batch_fast([piece], add_special_tokens=False)[0].ids) - AT_A_CUT)
        if count > most:
            raise TooLong(count)


BREAK = "\ufdee"
"""The noncharacter that shielding puts into a marker."""

NAME = "\ufdef"
"""A marker's name in the renamed copy of the tokenizer is its id between two of these noncharacters."""

_RESERVED = str.maketrans({BREAK: "\ufffd", NAME: "\ufffd"})


class Literals:
    """Shields clients' text and encodes rendered prompts. Several threads may use it at once."""

    def __init__(self, backend: tokenizers.Tokenizer, template_text: str) -> None:
        """Added tokens count as markers if they are special or occur in `template_text`: the chat templates and the
        markers of the output formats in use."""
        self._backend = backend
        self._lock = Lock()
        self._renamed_backend: tokenizers.Tokenizer | None = None
        added = backend.get_added_tokens_decoder()
        markers = {id_: str(token.content) for id_, token in added.items() if len(token.content) > 1}
        special = {id_ for id_ in markers if added[id_].special}
        used = {id_ for id_ in markers if markers[id_] in template_text and markers[id_].strip()}
        self._names = {markers[id_]: f"{NAME}{id_}{NAME}" for id_ in special | used}
        self._any = _pattern(self._names)
        self._special = _pattern(markers[id_] for id_ in special)

    def shield(self, text: str, *, trusted: bool = False) -> str:
        """Put a noncharacter into each marker of `text`.

        The text of a trusted author (system, assistant) may hold markers that are no special tokens, such as `<think>`:
        models write them and clients send them back.
        """
        if NAME in text or BREAK in text:
            text = text.translate(_RESERVED)
        pattern = self._special if trusted else self._any
        while pattern is not None and pattern.search(text):
            text = pattern.sub(_broken, text)
        return text

    def shield_value(self, value: Any, *, trusted: bool = True) -> Any:
        """A JSON value with all its strings shielded, keys included."""
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
        """The tokens of a rendered prompt, in which whole markers are special tokens and shielded ones are text.

        Raises `TooLong` for a long prompt of more than `most` tokens.
        """
        check_length(self._backend, rendered, most)
        if BREAK not in rendered or self._any is None:
            return encode_text(self._backend, rendered.replace(BREAK, ""))
        named = self._any.sub(lambda found: self._names[found.group()], rendered)
        return encode_text(self._renamed(), named.replace(BREAK, ""))

    def _renamed(self) -> tokenizers.Tokenizer:
        with self._lock:
            if self._renamed_backend is None:
                self._renamed_backend = with_renamed_tokens(self._backend, self._names)
            return self._renamed_backend


def plain(rendered: str) -> str:
    """A rendered prompt without the noncharacters that shielding put into it."""
    return rendered.replace(BREAK, "")


def _broken(found: re.Match[str]) -> str:
    text = found.group()
    return text[0] + BREAK + text[1:]


def _pattern(markers: Iterable[str]) -> re.Pattern[str] | None:
    ordered = sorted(markers, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


def encode_text(backend: tokenizers.Tokenizer, text: str) -> list[int]:
    """The tokens of a text, without those that the tokenizer puts around it."""
    ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


def with_renamed_tokens(backend: tokenizers.Tokenizer, names: dict[str, str]) -> tokenizers.Tokenizer:
    """A copy of the tokenizer in which these tokens have other names, which text can't spell.

    Raises `ValueError` where a token would get another id.
    """
    state = json.loads(backend.to_str())
    state["post_processor"] = state["truncation"] = state["padding"] = None
    for token in state["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    vocabulary = state["model"]["vocab"]
    if isinstance(vocabulary, dict):
        state["model"]["vocab"] = {names.get(piece, piece): id_ for piece, id_ in vocabulary.items()}
    else:
        state["model"]["vocab"] = [[names.get(piece, piece), score] for piece, score in vocabulary]
    copy = tokenizers.Tokenizer.from_str(json.dumps(state))
    for marker, name in names.items():
        if copy.token_to_id(name) != backend.token_to_id(marker):
            raise ValueError(f"the tokenizer's marker {marker!r} has another id in the renamed copy")
    return copy
