"""A model of mlx-vlm as the engine runs language models: tokens in, logits out, all state in the caches."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import KVCache

from pippin.engines.language.kv_cache.layout import leaves, mlx_lm_twin
from pippin.engines.language.kv_cache.slots import PromptCache
from pippin.engines.language.vision.media import MediaKind, Medium, PromptMedia, Span


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a chunk of a prompt with media gives to the model beside its tokens."""

    embeddings: mx.array  # [1, tokens, hidden]
    positions: mx.array | None  # [3, 1, tokens]
    extra: dict[str, Any]
    spans: tuple[Span, ...] = ()  # of tokens that see each other, in both directions


@dataclass(frozen=True, kw_only=True)
class Features:
    """What takes the place of a medium's tokens, a row for each."""

    embeddings: mx.array  # [places, hidden]
    layered: mx.array | None  # [layers, places, hidden], added after the first layers
    per_layer: mx.array | None  # [places, ...], as `embeddings`, for every layer of its own

    @property
    def arrays(self) -> list[mx.array]:
        return [array for array in (self.embeddings, self.layered, self.per_layer) if array is not None]

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)


@dataclass(frozen=True, kw_only=True)
class Positions:
    """Rotary positions of a prompt with media, and by how much those of the tokens after it differ from their index."""

    table: mx.array | None  # [3, 1, tokens]; None where positions are indexes
    shift: int = 0

    def of(self, start: int, stop: int) -> mx.array | None:
        if self.table is None:
            return None
        known = self.table.shape[-1]
        parts = [self.table[..., start : min(stop, known)]] if start < known else []
        if stop > known:
            later = mx.arange(max(start, known), stop) + self.shift
            parts.append(mx.broadcast_to(later, (3, 1, later.size)).astype(self.table.dtype))
        return mx.concatenate(parts, axis=-1)


class _MutualView:
    """A layer's cache whose mask lets the tokens of each span see each other.

    The library makes such masks itself, but only for prompts that it computes at once.
    """

    def __init__(self, held: Any, spans: tuple[Span, ...]) -> None:
        self._held = held
        self._spans = spans

    def __getattr__(self, name: str) -> Any:
        return getattr(self._held, name)

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        mask: mx.array = self._held.make_mask(N, return_array=True, window_size=window_size)
        earlier = mask.shape[-1] - N
        for start, stop in self._spans:
            mask[..., start:stop, earlier + start : earlier + stop] = True
        return mask


def _counts_tokens(layer: Any) -> bool:
    """Whether a layer's cache knows how many tokens are before the next: caches of attention do, states do not."""
    return hasattr(layer, "offset")


class VisionModel(nn.Module):  # type: ignore[misc]
    """Families with rotary positions in three axes keep the last prompt's on their module; they are always told the
    positions here, so that rows of different requests can run together."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self._three_axes = hasattr(inner.language_model, "get_rope_index")
        self.mutual: frozenset[MediaKind] = (
            frozenset()
        )  # kinds whose tokens see each other; the trial finds them

    @property
    def layers(self) -> Any:
        return self.inner.language_model.layers

    @property
    def cast_predicate(self) -> Any:
        return getattr(self.inner, "cast_predicate", lambda _: True)

    def make_cache(self) -> PromptCache:
        language = self.inner.language_model
        if not hasattr(language, "make_cache"):
            return [KVCache() for _ in language.layers]
        return [mlx_lm_twin(layer) for layer in language.make_cache()]

    def __call__(
        self, tokens: mx.array, cache: PromptCache, *, inputs: Inputs | None = None, shift: int | mx.array = 0
    ) -> mx.array:
        """Logits [rows, tokens, vocabulary]. `shift`, as in `Positions`, is one number or [rows, 1]."""
        given: dict[str, Any] = {}
        if inputs is not None:
            given = {"inputs_embeds": inputs.embeddings, **inputs.extra}
        if self._three_axes:
            positions = inputs.positions if inputs is not None else None
            given["position_ids"] = self._following(cache, tokens, shift) if positions is None else positions
        if inputs is not None and inputs.spans:
            cache = [_MutualView(layer, inputs.spans) if _counts_tokens(layer) else layer for layer in cache]
        logits: mx.array = self.inner.language_model(tokens, cache=cache, **given).logits
        return logits

    def without_head(self) -> Callable[[mx.array], mx.array]:
        """From texts to states after the last norm, [rows, tokens, hidden]. It may leave the model without logits."""
        language = self.inner.language_model
        if "model" not in language:
            language.lm_head = nn.Identity()

        def states(tokens: mx.array) -> mx.array:
            given: dict[str, Any] = {}
            if self._three_axes:
                given["position_ids"] = mx.broadcast_to(mx.arange(tokens.shape[1]), (3, *tokens.shape))
            found: mx.array = (
                language.model(tokens, **given) if "model" in language else language(tokens, **given).logits
            )
            return found

        return states

    def _following(self, cache: PromptCache, tokens: mx.array, shift: int | mx.array) -> mx.array:
        """Positions of tokens that come after what the caches hold."""
        layer = next(layer for layer in leaves(cache) if _counts_tokens(layer))
        starts = mx.array(layer.offset).reshape(-1, 1)  # of all rows, or of each
        positions = mx.arange(tokens.shape[1]) + starts + shift
        return mx.broadcast_to(positions, (3, *tokens.shape))

    def positions(self, tokens: tuple[int, ...], media: PromptMedia) -> Positions:
        if not self._three_axes:
            return Positions(table=None)
        images, videos = media.gathered("image_grid_thw"), media.gathered("video_grid_thw")
        table, deltas = self.inner.language_model.get_rope_index(
            mx.array([tokens]), *(None if grid is None else mx.array(grid) for grid in (images, videos))
        )
        if table.ndim == 2:
            table = mx.broadcast_to(table, (3, *table.shape))
        mx.eval(table)
        return Positions(table=table, shift=int(np.array(deltas).reshape(-1)[0]))

    def encode(self, medium: Medium) -> Features:
        """Run a medium through its tower, by itself."""
        tokens = mx.array([medium.tokens])
        arrays = {name: on_device(value) for name, value in medium.arrays.items()}
        found = self.inner.get_input_embeddings(
            tokens, arrays.pop("pixel_values", None), mask=mx.ones_like(tokens), **arrays
        )
        places = mx.array(medium.places)
        layered = found.deepstack_visual_embeds
        if layered is not None and not isinstance(layered, mx.array):
            layered = mx.stack(list(layered))
        return Features(
            embeddings=found.inputs_embeds[0, places],
            layered=layered,
            per_layer=None if found.per_layer_inputs is None else found.per_layer_inputs[0, places],
        )

    def assemble(
        self,
        tokens: tuple[int, ...],
        placed: list[tuple[list[int], list[int], Features]],
        positions: mx.array | None,
        spans: tuple[Span, ...] = (),
    ) -> Inputs:
        """Of a chunk: its tokens, and for each medium in it the places, the rows of its features, and these."""
        found = self.inner.get_input_embeddings(mx.array([tokens]), None)
        embeddings, per_layer = found.inputs_embeds, found.per_layer_inputs
        seen = np.zeros((1, len(tokens)), np.bool_)
        layered = []
        for places, rows, features in placed:
            picked = mx.array(rows)
            embeddings[:, mx.array(places)] = features.embeddings[picked].astype(embeddings.dtype)
            if per_layer is not None and features.per_layer is not None:
                per_layer[:, mx.array(places)] = features.per_layer[picked].astype(per_layer.dtype)
            if features.layered is not None:
                layered.append(features.layered[:, picked])
                seen[0, places] = True
        extra: dict[str, Any] = {}
        if per_layer is not None:
            extra["per_layer_inputs"] = per_layer
        if layered:
            extra["deepstack_visual_embeds"] = mx.concatenate(layered, axis=1)
            extra["visual_pos_masks"] = mx.array(seen)
        return Inputs(embeddings=embeddings, positions=positions, extra=extra, spans=spans)


def on_device(value: Any) -> Any:
    """A processor's array, or list of such, as MLX's."""
    match value:
        case np.ndarray():
            return mx.array(value)
        case list():
            return [on_device(item) for item in value]
        case _:
            return value
