"""The vision encoder: computes features of media once, keeps them for follow-ups, and merges them into prompts."""

import math
from operator import attrgetter

import mlx.core as mx
import mlx.nn as nn
from msgspec import Struct, field

from pippin.core.errors import ServerError
from pippin.engines.language.kv_cache.agreement import FAILURES
from pippin.engines.language.vision.media import Medium, PromptMedia, Span
from pippin.engines.language.vision.model import (
    ChunkInputs,
    MediaFeatures,
    RotaryPositions,
    VisionModel,
    refusal,
)
from pippin.engines.language.vision.pacing import Paced, Pacing
from pippin.engines.recent import Recent


class VisionEncoder:
    """A model's media encoders, on the step thread. `encoded` counts media that were encoded, `reused` those whose
    features were in the cache."""

    def __init__(
        self, model: VisionModel, limit: int, limit_bytes: int = 1 << 30, *, rests: bool = False
    ) -> None:
        """The features of the last used media are kept, by content: at most `limit` of them, and `limit_bytes` in
        all. `rests`: media can be encoded in parts."""
        self.model = model
        self.pacing = Pacing(model.inner) if rests else None
        self.cache: Recent[bytes, MediaFeatures] = Recent(limit, limit_bytes, attrgetter("bytes"))
        self.encoded = 0
        self.reused = 0

    def open(self, tokens: tuple[int, ...], media: PromptMedia) -> "MediaInputs":
        """The media of a prompt of these tokens, the last one included."""
        return MediaInputs(
            self, media, self.model.positions(tokens, media), media.spans(self.model.bidirectional)
        )

    def clear(self) -> None:
        """Forget the features of all media."""
        self.cache.clear()


class NoEncoder:
    """Stands where a model takes text alone."""

    encoded = reused = 0

    def open(self, tokens: tuple[int, ...], media: PromptMedia) -> "MediaInputs":
        """Raises `ServerError`: nothing that is prepared for such a model has media."""
        message = "This model was loaded for text only, and 'messages' holds more: leave it out."
        raise ServerError("unsupported", message, "messages")

    def clear(self) -> None:
        pass


Vision = VisionEncoder | NoEncoder
"""What an engine has for media in prompts."""


FEATURES_SHARE = 32
"""The features of media take at most the model's memory divided by this."""


def open_encoder(model: nn.Module, limit: int, memory: int, *, rests: bool) -> Vision:
    """The encoder of a model. One that takes media keeps the features of `limit` media; `memory` is
    the bytes of the model and all that it keeps. `rests` is as in `VisionEncoder`."""
    if not isinstance(model, VisionModel):
        return NoEncoder()
    return VisionEncoder(model, limit, memory // FEATURES_SHARE, rests=rests)


class MediaInputs(Struct, eq=False):
    """The media of one request as inputs of the model, while its prompt is computed."""

    encoder: VisionEncoder
    media: PromptMedia
    positions: RotaryPositions
    spans: tuple[Span, ...]  # tokens that attend to each other
    _features: dict[bytes, MediaFeatures] = field(default_factory=dict)
    _under_way: Paced | None = None  # the encoding of the next missing medium

    def chunk_end(self, position: int, least: int = 0) -> int:
        """Where a chunk that should end at `position` ends instead: not within a span, and after `least`."""
        for start, stop in self.spans:
            if start < position < stop:
                return start if start > least else stop
        return position

    def missing(self, start: int, stop: int) -> Medium | None:
        """The first medium within these tokens of the prompt whose features are still to be computed."""
        for item in self.media.placed:
            medium = item.medium
            if item.positions[-1] < start or item.positions[0] >= stop or medium.digest in self._features:
                continue
            kept = self.encoder.cache.get(medium.digest)
            if kept is None:
                return medium
            self.encoder.reused += 1
            self._features[medium.digest] = kept
        return None

    def encode(self, medium: Medium, *, wait: bool, until: float | None = None) -> bool:
        """Compute the features of a medium; whether they are computed. `wait`: block until the device is done. `until`:
        when to rest (monotonic seconds), where the encoder can.

        Raises `ServerError` for a medium that the model does not take.
        """
        pacing, paced = self.encoder.pacing, None
        if self._under_way is None and until is not None and pacing is not None:
            self._under_way = pacing.begin(lambda: self._encoded(medium, wait=True))
        if self._under_way is not None:
            if not self._under_way.advance(math.inf if until is None else until):
                return False
            paced, self._under_way = self._under_way, None
        # An encoder that fails on a thread of its own may need what its thread does not have.
        features = self._encoded(medium, wait=wait) if paced is None or paced.error else paced.result
        self.encoder.encoded += 1
        self._features[medium.digest] = features
        self.encoder.cache.put(medium.digest, features)
        return True

    def _encoded(self, medium: Medium, *, wait: bool) -> MediaFeatures:
        try:
            features = self.encoder.model.encode(medium)
            if wait:
                mx.eval(features.arrays)
            else:
                mx.async_eval(*features.arrays)  # type: ignore[no-untyped-call]
        except FAILURES as error:
            raise refusal(medium.modality, error) from error
        return features

    def inputs(self, tokens: tuple[int, ...], start: int) -> ChunkInputs:
        """The model's inputs for `tokens` of the prompt, from position `start` on. None of their media may be
        missing."""
        stop = start + len(tokens)
        placed = []
        for item in self.media.placed:
            inside = [n for n, position in enumerate(item.positions) if start <= position < stop]
            if inside:
                places = [item.positions[n] - start for n in inside]
                placed.append((places, inside, self._features[item.medium.digest]))
        # If a cache has the first tokens of a span, the others still attend to all of it.
        spans = tuple(
            (max(first, start) - start, last - start) for first, last in self.spans if start < last <= stop
        )
        return self.encoder.model.assemble(tokens, placed, self.positions.of(start, stop), spans)

    def release(self) -> None:
        """Drop the features; the encoder's cache may still have them."""
        self.give_up()
        self._features.clear()

    def give_up(self) -> None:
        """Encode no further what is under way: another call would begin anew."""
        if self._under_way is not None:
            self._under_way.give_up()
            self._under_way = None
