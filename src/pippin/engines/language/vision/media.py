"""The media of a prompt: how messages name them to a chat template, the text that replaces their placeholders in what
it writes, and which tokens of the prompt their features replace."""

import hashlib
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

import numpy as np
from msgspec import Struct

from pippin.core.conversation import Audio, Image, Inline, MediaPart, Part, Text, Video, seamed
from pippin.core.errors import ServerError
from pippin.engines.language.template.template import ChatTemplate
from pippin.engines.language.text.tokenizer import BREAK

if TYPE_CHECKING:
    from pippin.engines.language.vision.video import FrameRate

Modality = Literal["image", "video", "audio"]
MODALITIES: tuple[Modality, ...] = get_args(Modality)

Span = tuple[int, int]
"""A run of tokens of a prompt: the position of the first, and the one after the last."""


class Medium(Struct, frozen=True, kw_only=True, eq=False):
    """A picture, clip or recording as the model's processor returned it."""

    modality: Modality
    digest: bytes  # of its content and of everything that decides how it is processed
    text: str  # its placeholder text in the prompt
    tokens: tuple[int, ...]  # the tokens of that text
    placeholders: tuple[int, ...]  # indices into `tokens` of the tokens that its features replace
    arrays: dict[str, Any]  # numpy arrays by the names of the model's arguments
    # The processor returns `mm_token_type_ids`, by which models choose their mask.
    has_token_types: bool = False
    prompt: tuple[int, ...] | None = None
    """For joint media: the whole prompt, one token for each embedding that the model makes from `tokens`."""

    @property
    def bytes(self) -> int:
        """The size of the arrays."""
        return sum(map(_size, self.arrays.values()))

    def identities(self) -> tuple[int, ...]:
        """A number for each placeholder token, equal only for equal content.

        The prefix cache knows the tokens by these numbers, because there equal tokens must mean equal content. They lie
        above all token ids.
        """
        # All words of the digest take turns: somebody could find two pictures with one word in common.
        words = [int.from_bytes(self.digest[at : at + 8], "big") for at in range(0, len(self.digest), 8)]
        return tuple(
            (1 << 62) | ((words[index % len(words)] + index * 0x9E3779B97F4A7C15) % (1 << 62))
            for index in range(len(self.placeholders))
        )


class PlacedMedium(Struct, frozen=True, eq=False):
    """A medium in a prompt, and the positions in the prompt of the tokens that its features replace."""

    medium: Medium
    positions: tuple[int, ...]


class PromptMedia(Struct, frozen=True, eq=False):
    """All media of a prompt, in order."""

    placed: tuple[PlacedMedium, ...]
    joint: bool = False  # they are one medium, made from the whole prompt

    def identify(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """The tokens of the prompt with each placeholder replaced by the identity of its medium."""
        named = list(tokens)
        for item in self.placed:
            for position, identity in zip(item.positions, item.medium.identities(), strict=True):
                if position < len(named):
                    named[position] = identity
        return tuple(named)

    def spans(self, modalities: Container[Modality]) -> tuple[Span, ...]:
        """The runs of adjacent tokens that features of these modalities replace."""
        positions = (
            position
            for item in self.placed
            if item.medium.modality in modalities
            for position in item.positions
        )
        found: list[Span] = []
        for position in positions:
            if found and found[-1][1] == position:
                found[-1] = (found[-1][0], position + 1)
            else:
                found.append((position, position + 1))
        return tuple(found)

    def gathered(self, name: str) -> np.ndarray[Any, Any] | None:
        """The arrays of this name, of all media that have one, concatenated."""
        found = [item.medium.arrays[name] for item in self.placed if name in item.medium.arrays]
        return np.concatenate(found) if found else None


class WholePrompt(Struct, frozen=True, eq=False):
    """A prompt with all its media as the processor of the model returned it."""

    ids: np.ndarray[Any, Any]  # [1, tokens]; some families number media with negative ids
    arrays: dict[str, Any]  # numpy arrays by the names of the model's arguments

    @property
    def has_media(self) -> bool:
        return not self.arrays.keys() <= {"attention_mask"}

    def identify(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """The tokens unchanged: the prefix cache does not keep such prompts."""
        return tuple(tokens)


class JointTokens(Struct, frozen=True):
    """The tokens of prompts that features replace: their ids, and how many features there are for each token."""

    ids: frozenset[int]
    features: int = 1

    def place(self, prompt: WholePrompt, modality: Modality, digest: bytes) -> tuple[list[int], PromptMedia]:
        """The tokens of a prompt, one for each embedding, and its media among them.

        `digest` covers the media's content and how they are prepared. The joint medium's digest also covers the tokens
        that its features replace, because text may contain one. Ids below 0, with which some processors number media,
        become 0. Raises `ServerError` for media for which the processor makes no tokens.
        """
        tokens: list[int] = []
        positions: list[int] = []
        ids = prompt.ids[0].tolist()
        for each in ids:
            is_medium = each in self.ids
            count = self.features if is_medium else 1
            if is_medium:
                positions += range(len(tokens), len(tokens) + count)
            tokens += [max(each, 0)] * count
        if not positions:
            raise ServerError(
                "invalid_request",
                f"The model can't take this {modality}: its processor makes no tokens of it. Send one of another size "
                "or length.",
                "messages",
            )
        replaced = np.array([each for each in ids if each in self.ids], np.int64)
        medium = Medium(
            modality=modality,
            digest=hashlib.blake2b(digest + replaced.tobytes()).digest(),
            text="",
            tokens=tuple(ids),
            placeholders=tuple(positions),
            arrays={name: value for name, value in prompt.arrays.items() if name != "attention_mask"},
            prompt=tuple(tokens),
        )
        return tokens, PromptMedia((PlacedMedium(medium, medium.placeholders),), joint=True)


def text_prompt(tokens: Iterable[int]) -> WholePrompt:
    """A prompt without media."""
    return WholePrompt(np.array([list(tokens)], np.int32), {})


Parts = Sequence[tuple[str, MediaPart]]
"""Media of a conversation, each with its field."""

PlacedPrompt = tuple[Sequence[int], PromptMedia | WholePrompt | None]
"""The tokens of a prompt, and its media."""


class SampleRenderer(Protocol):
    """Renders a message with media and a word. Raises `ServerError`."""

    def sample(self, modality: Modality, count: int = 1) -> str: ...


class TextOnly:
    """How prompts are made for a model that takes text only. Processors of media override what they do otherwise."""

    modalities: frozenset[Modality] = frozenset()
    """The modalities that the model takes."""
    templates: Mapping[str, str] = MappingProxyType({})
    """Chat templates by name, for a model whose tokenizer has none."""

    @property
    def frames(self) -> "FrameRate | None":
        """The rate at which videos are shown as pictures; None if they are not."""
        return None

    def style(self, template: ChatTemplate) -> Any:
        """How messages with media are given to a chat template, or None."""
        return None

    def expanded(self, render: Callable[[], str], parts: Parts, most: int | None) -> tuple[str, list[Medium]]:
        """The rendered text of a prompt with media: with their text in it, and the media that were processed for that.
        Raises `ServerError`, and `TooLong` once the media have more than `most` tokens."""
        return render(), []

    def placed(
        self, text: str, media: list[Medium], parts: Parts, encode: Callable[[str], list[int]]
    ) -> PlacedPrompt:
        """The prompt of an expanded text. Raises `ServerError` if the media have no place in it."""
        return encode(text), None

    def tested(self, is_faithful: Callable[[Medium], bool]) -> "TextOnly":
        """This without the modalities that the loaded model gets wrong, as `is_faithful` finds for a sample."""
        return self

    def joined(
        self, renderer: "SampleRenderer", find: Callable[[Sequence[WholePrompt]], JointTokens | None]
    ) -> "TextOnly":
        """This with all media of a prompt as one, for the engine's batches, as far as `find` finds the tokens that
        features replace in samples; else `TEXT_ONLY`."""
        return TEXT_ONLY


TEXT_ONLY = TextOnly()


def place(media: Sequence[Medium], tokens: Sequence[int], placeholders: Container[int]) -> PromptMedia | None:
    """Find the media among the tokens of a prompt, or None if it does not hold exactly their placeholder tokens.

    `placeholders` are the ids of the tokens that features replace.
    """
    found = [position for position, token in enumerate(tokens) if token in placeholders]
    if len(found) != sum(len(medium.placeholders) for medium in media):
        return None
    places = iter(found)
    return PromptMedia(
        tuple(PlacedMedium(each, tuple(islice(places, len(each.placeholders)))) for each in media)
    )


KINDS: dict[type[MediaPart], Modality] = {Image: "image", Audio: "audio", Video: "video"}


def modality_of(part: MediaPart) -> Modality:
    return KINDS[type(part)]


def inline_bytes(part: MediaPart) -> bytes:
    """The file of a medium, which the API has fetched."""
    assert isinstance(part.source, Inline)
    return part.source.data


def _size(value: Any) -> int:
    return sum(map(_size, value)) if isinstance(value, list) else int(getattr(value, "nbytes", 0))


def listed(parts: Sequence[Part], shield: Callable[[str], str]) -> list[dict[str, Any]]:
    """The texts and media of a message as objects with their type. Text goes through `shield`.

    Texts that stand apart, or before and behind a call or a thought, are one text of several lines.
    """
    kept: list[Part] = []
    apart = False
    for part in parts:
        if isinstance(part, Text | MediaPart):
            given = part if isinstance(part, Text) else Text("")
            last = len(kept) - (apart or given.apart)
            kept[last:] = seamed(tuple(kept[last:]), (part,), "\n")
            apart = given.apart
        else:
            apart = True
    texts = iter(_shielded([part.text for part in kept if isinstance(part, Text)], shield))
    return [
        {"type": modality_of(part)} if isinstance(part, MediaPart) else {"type": "text", "text": next(texts)}
        for part in kept
    ]


def _shielded(texts: list[str], shield: Callable[[str], str]) -> list[str]:
    """Texts through `shield`, for a template that may write them without anything between them, and without the white
    space around each: a marker whose pieces stand in several texts is broken too."""
    shielded = list(map(shield, texts))
    for cut in (str, str.strip):
        if shield("".join(map(cut, texts))) != "".join(map(cut, shielded)):
            return [shielded[0], *(re.sub(r"(?=\S)", BREAK, text, count=1) for text in shielded[1:])]
    return shielded


class MediaStyle(Struct, frozen=True):
    """How a chat template takes media: as parts of these modalities, or else as placeholders in the text."""

    placeholders: dict[Modality, str]
    known: frozenset[Modality]  # for a message with one of them, the template writes its placeholder
    lines: frozenset[Modality] = frozenset()  # whose text ends a line

    def content(self, parts: tuple[Part, ...], shield: Callable[[str], str]) -> Any:
        """The content of a message that holds media, as the chat template takes it. Text goes through `shield`."""
        shown = [
            each
            if each["type"] in ("text", *self.known)
            else {
                "type": "text",
                "text": self.placeholders.get(each["type"], "") + "\n" * (each["type"] not in self.lines),
            }
            for each in listed(parts, shield)
        ]
        return shown if self.known else "".join(each["text"] for each in shown)


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
    pattern = "|".join(map(re.escape, sorted(placeholders.values(), key=len, reverse=True)))
    found = re.findall(pattern, rendered)
    if found != [placeholders[medium.modality] for medium in media]:
        raise ServerError(
            "invalid_request",
            f"The chat template of this model makes {len(found)} of the {len(media)} media in 'messages': send them in "
            "messages of the user.",
            "messages",
        )
    texts = (medium.text for medium in media)
    return re.sub(pattern, lambda _: next(texts), rendered)
