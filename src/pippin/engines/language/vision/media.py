"""What a prompt holds beside text: media made ready for the model, and where in the prompt they stand."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pippin.core.conversation import Audio, Image, Video

MediaKind = Literal["image", "video", "audio"]
Span = tuple[int, int]
"""From a token of the prompt up to another, not included."""
MediaPart = Image | Audio | Video


@dataclass(frozen=True, kw_only=True, eq=False)
class Medium:
    """A picture, clip or recording as the model's processor made it."""

    kind: MediaKind
    digest: bytes  # of its content and of all that decides how it is prepared
    text: str  # what stands for it in the prompt
    tokens: tuple[int, ...]  # of that text
    places: tuple[int, ...]  # of the tokens that its features take the place of
    arrays: dict[str, Any]  # numpy arrays by the names that the model knows
    typed: bool = False  # the library tells the model which tokens are of what kind

    @property
    def bytes(self) -> int:
        """Of its arrays."""
        return sum(map(_size, self.arrays.values()))

    def identities(self) -> tuple[int, ...]:
        """What its tokens are called in the prefix cache, where equal tokens must mean equal content."""
        seed = int.from_bytes(self.digest[:8], "big")
        return tuple(
            (1 << 62) | ((seed + place * 0x9E3779B97F4A7C15) % (1 << 62)) for place in range(len(self.places))
        )


@dataclass(frozen=True, eq=False)
class Placed:
    medium: Medium
    positions: tuple[int, ...]  # in the prompt, of the tokens that its features take the place of


@dataclass(frozen=True, eq=False)
class PromptMedia:
    """All media of a prompt, in order."""

    placed: tuple[Placed, ...]

    def identify(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """The tokens with those of media called by their content."""
        named = list(tokens)
        for item in self.placed:
            for position, identity in zip(item.positions, item.medium.identities(), strict=True):
                if position < len(named):
                    named[position] = identity
        return tuple(named)

    def spans(self, kinds: Container[MediaKind]) -> tuple[Span, ...]:
        """Runs of tokens next to each other that features of these kinds take the place of."""
        positions = (place for item in self.placed if item.medium.kind in kinds for place in item.positions)
        found: list[Span] = []
        for position in positions:
            if found and found[-1][1] == position:
                found[-1] = (found[-1][0], position + 1)
            else:
                found.append((position, position + 1))
        return tuple(found)

    def gathered(self, name: str) -> np.ndarray[Any, Any] | None:
        """An array of all media that have it, one after the other."""
        found = [item.medium.arrays[name] for item in self.placed if name in item.medium.arrays]
        return np.concatenate(found) if found else None


def place(media: Sequence[Medium], tokens: Sequence[int], marks: Iterable[int]) -> PromptMedia | None:
    """Where the media stand in the prompt; None if its tokens are not those of the media. `marks` are the tokens that
    features take the place of."""
    wanted = frozenset(marks)
    found = [position for position, token in enumerate(tokens) if token in wanted]
    if len(found) != sum(len(medium.places) for medium in media):
        return None
    placed, start = [], 0
    for medium in media:
        stop = start + len(medium.places)
        placed.append(Placed(medium, tuple(found[start:stop])))
        start = stop
    return PromptMedia(tuple(placed))


def kind_of(part: MediaPart) -> MediaKind:
    match part:
        case Image():
            return "image"
        case Audio():
            return "audio"
        case Video():
            return "video"


def _size(value: Any) -> int:
    match value:
        case np.ndarray():
            return int(value.nbytes)
        case list():
            return sum(map(_size, value))
        case _:
            return 0
