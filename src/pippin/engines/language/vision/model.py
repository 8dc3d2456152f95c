"""A model of mlx-vlm as the engine calls language models: tokens in, logits out, and all state in the caches."""

import logging
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_map
from mlx_lm.models.cache import KVCache
from msgspec import Struct

from pippin.core.errors import ServerError, is_of_device
from pippin.engines.language.kv_cache.agreement import FAILURES
from pippin.engines.language.kv_cache.kinds.base import PromptCache
from pippin.engines.language.kv_cache.layout import leaves, mlx_lm_twin
from pippin.engines.language.upstream.caches import counts_tokens, mutual
from pippin.engines.language.vision.media import Medium, Modality, PromptMedia, Span, WholePrompt

log = logging.getLogger(__name__)

SAME_TEXT = 0.02
"""The most that the embedding of a text token beside joint media may differ, as a fraction of the largest embedding:
far above rounding."""


SECONDS = "second_per_grid_ts"
"""How many seconds a step of a film's grid lasts, for a model whose positions count time."""


class OtherTokensError(ValueError):
    """Media replace other tokens than those of the trial at load; the message tells which."""


def refusal(modality: str, error: Exception) -> ServerError:
    """The refusal of a medium that the model's processor accepted and the model itself rejects. Raises the error itself
    where the device failed, for which the medium is not to blame."""
    if is_of_device(error):
        raise error
    why = f"{error}" if isinstance(error, OtherTokensError) else "its code fails on it"
    log.warning("A model can't take this %s: %s: %s", modality, type(error).__name__, error)
    return ServerError(
        "invalid_request",
        f"The model can't take this {modality}: {why}. Send one of another size or length.",
        "messages",
    )


class ChunkInputs(Struct, frozen=True, kw_only=True):
    """The arguments of the model, besides tokens and caches, for a chunk of a prompt with media."""

    embeddings: mx.array  # [1, tokens, hidden]
    positions: mx.array | None  # [3, 1, tokens]
    extra: dict[str, Any]
    spans: tuple[Span, ...] = ()  # tokens with bidirectional attention among each other


class MediaFeatures(Struct, frozen=True, kw_only=True):
    """The features of one medium, for each of its n placeholder tokens."""

    embeddings: mx.array  # [n, hidden], in place of the embeddings of the tokens
    layered: mx.array | None  # [layers, n, hidden], added after the first layers (Qwen3-VL's DeepStack)
    per_layer: mx.array | None  # [n, ...], the per-layer inputs of Gemma 3n and similar models

    @property
    def arrays(self) -> list[mx.array]:
        return [array for array in (self.embeddings, self.layered, self.per_layer) if array is not None]

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)


class RotaryPositions(Struct, frozen=True, kw_only=True):
    """Rotary positions of a prompt with media (mlx-vlm's `get_rope_index`).

    `shift` is the position of a later token less its index (mlx-vlm's `rope_deltas`).
    """

    table: mx.array | None  # [3, 1, tokens]; None for a model whose positions are the indices of tokens
    shift: int = 0

    def of(self, start: int, stop: int) -> mx.array | None:
        """The positions [3, 1, stop - start] of these tokens; some may come after the prompt."""
        if self.table is None:
            return None
        known = self.table.shape[-1]
        parts = [self.table[..., start : min(stop, known)]] if start < known else []
        if stop > known:
            later = mx.arange(max(start, known), stop) + self.shift
            parts.append(mx.broadcast_to(later, (3, 1, later.size)).astype(self.table.dtype))
        return mx.concatenate(parts, axis=-1)


class ModuleState:
    """A snapshot of what the modules of a model hold besides weights.

    Some models of mlx-vlm leave state of a prompt on their modules (positions of its pictures, masks), and use it for
    the next prompt.
    """

    def __init__(self, model: nn.Module) -> None:
        self._held = [(module, dict(vars(module)), frozenset(module)) for module in model.modules()]

    def restore(self) -> None:
        for module, attributes, arrays in self._held:
            for name in [name for name in module if name not in arrays]:
                del module[name]
            vars(module).update(attributes)


class VisionModel(nn.Module):  # type: ignore[misc]
    """A model of mlx-vlm with the interface of mlx-lm's models, and the functions that media need.

    Families with rotary positions in three axes keep those of the last prompt on their module. Here each call is given
    its positions, so that sequences of different requests can run in one batch.
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.unused = ModuleState(inner)  # before any prompt
        self._three_axes = hasattr(inner.language_model, "get_rope_index")
        # The modalities whose tokens have bidirectional attention among each other, as the trial found.
        self.bidirectional: frozenset[Modality] = frozenset()

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
        self,
        tokens: mx.array,
        cache: PromptCache,
        *,
        inputs: ChunkInputs | None = None,
        shift: int | mx.array = 0,
    ) -> mx.array:
        """Logits [batch, tokens, vocabulary]. `shift`, as in `RotaryPositions`, is one number or [batch, 1]."""
        given: dict[str, Any] = {}
        if inputs is not None:
            given = {"inputs_embeds": inputs.embeddings, **inputs.extra}
        if self._three_axes:
            positions = inputs.positions if inputs is not None else None
            given["position_ids"] = self._following(cache, tokens, shift) if positions is None else positions
        if inputs is not None and inputs.spans:
            cache = mutual(cache, inputs.spans)
        logits: mx.array = self.inner.language_model(tokens, cache=cache, **given).logits
        return logits

    def without_head(self) -> Callable[[mx.array], mx.array]:
        """A function that maps tokens [batch, length] to states after the last norm [batch, length, hidden].

        Afterwards the model may have no head, and return states instead of logits.
        """
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
        """The positions [3, batch, tokens] of tokens that come after those in the caches."""
        layer = next(layer for layer in leaves(cache) if counts_tokens(layer))
        # One offset for the whole batch, or one for each of its sequences.
        starts = mx.array(layer.offset).reshape(-1, 1)
        positions = mx.arange(tokens.shape[1]) + starts + shift
        return mx.broadcast_to(positions, (3, *tokens.shape))

    def positions(self, tokens: tuple[int, ...], media: PromptMedia) -> RotaryPositions:
        """The rotary positions of a whole prompt. Raises `ServerError` for media whose model has none."""
        if not self._three_axes:
            return RotaryPositions(table=None)
        found = {name: media.gathered(name) for name in ("image_grid_thw", "video_grid_thw", SECONDS)}
        given = {name: mx.array(each) for name, each in found.items() if each is not None}
        try:
            table, deltas = self.inner.language_model.get_rope_index(mx.array([tokens]), **given)
        except FAILURES as error:  # such as GLM-OCR's, for several pictures
            raise refusal("set of media", error) from error
        if table.ndim == 2:
            table = mx.broadcast_to(table, (3, *table.shape))
        mx.eval(table)
        return RotaryPositions(table=table, shift=int(np.array(deltas).reshape(-1)[0]))

    def encode(self, medium: Medium) -> MediaFeatures:
        """Run one medium through the model's encoder for it. Raises `FAILURES` for one that the model does not take."""
        found = embedded(self.inner, WholePrompt(np.array([medium.tokens], np.int32), medium.arrays))
        embeddings, per_layer = found["inputs_embeds"][0], found.get("per_layer_inputs")
        if medium.prompt is not None:
            self._check_text(embeddings, medium.prompt, medium.placeholders)
        placeholders = mx.array(medium.placeholders)
        layered = found.get("deepstack_visual_embeds")
        if layered is not None and not isinstance(layered, mx.array):
            layered = mx.stack(list(layered))
        return MediaFeatures(
            embeddings=embeddings[placeholders],
            layered=layered,
            per_layer=None if per_layer is None else per_layer[0, placeholders],
        )

    def _check_text(self, found: mx.array, prompt: tuple[int, ...], placeholders: tuple[int, ...]) -> None:
        """Raises `ValueError` unless `found` [tokens, hidden] has an embedding for each token of the prompt, which is
        that of text for each token that is no placeholder.

        The trial at load uses small pictures only: for a large one, a processor may write tokens that these do not
        have.
        """
        if len(found) != len(prompt):
            raise OtherTokensError(f"it makes {len(found)} embeddings of {len(prompt)} tokens")
        plain = self.inner.get_input_embeddings(mx.array([prompt]), None).inputs_embeds[0]
        text = mx.array(sorted(set(range(len(prompt))).difference(placeholders)))
        difference = mx.abs(found[text] - plain[text]).max()
        if difference > SAME_TEXT * mx.abs(plain[text]).max():
            raise OtherTokensError("its features replace tokens that no other picture has")

    def assemble(
        self,
        tokens: tuple[int, ...],
        placed: list[tuple[list[int], list[int], MediaFeatures]],
        positions: mx.array | None,
        spans: tuple[Span, ...] = (),
    ) -> ChunkInputs:
        """Embed a chunk of a prompt, with features in place of the placeholder tokens of media.

        `placed` has for each medium in the chunk the indices of its tokens in the chunk, the indices of their features,
        and the features of the whole medium.
        """
        found = self.inner.get_input_embeddings(mx.array([tokens]), None)
        embeddings, per_layer = found.inputs_embeds, found.per_layer_inputs
        with_layers = np.zeros((1, len(tokens)), np.bool_)
        layered = []
        for indices, chosen, features in placed:
            picked = mx.array(chosen)
            embeddings[:, mx.array(indices)] = features.embeddings[picked].astype(embeddings.dtype)
            if per_layer is not None and features.per_layer is not None:
                per_layer[:, mx.array(indices)] = features.per_layer[picked].astype(per_layer.dtype)
            if features.layered is not None:
                layered.append(features.layered[:, picked])
                with_layers[0, indices] = True
        extra: dict[str, Any] = {}
        if per_layer is not None:
            extra["per_layer_inputs"] = per_layer
        if layered:
            extra["deepstack_visual_embeds"] = mx.concatenate(layered, axis=1)
            extra["visual_pos_masks"] = mx.array(with_layers)
        return ChunkInputs(embeddings=embeddings, positions=positions, extra=extra, spans=spans)


def inner_of(model: nn.Module) -> nn.Module:
    """The library's own model of a loaded one."""
    return model.inner if isinstance(model, VisionModel) else model


def embedded(inner: nn.Module, prompt: WholePrompt) -> dict[str, Any]:
    """What the language model of mlx-vlm is given for a whole prompt: `inputs_embeds` and what it takes beside them."""
    ids = mx.array(prompt.ids)
    arrays = on_device(prompt.arrays)
    pixels, mask = arrays.pop("pixel_values", None), arrays.pop("attention_mask", mx.ones_like(ids))
    found = inner.get_input_embeddings(ids, pixels, mask=mask, **arrays)
    return {**arrays, **{name: value for name, value in found.to_dict().items() if value is not None}}


def on_device(arrays: dict[str, Any]) -> dict[str, Any]:
    """numpy arrays of a processor, and lists of them, as MLX arrays."""
    found: dict[str, Any] = tree_map(
        lambda each: mx.array(each) if isinstance(each, np.ndarray) else each, arrays
    )
    return found
