"""Models that run as mlx-vlm's own `generate` runs them: each prompt at once with all its media, one request at a time.

For families that the engine's batches can't serve: those whose pictures are more than embeddings of prompt tokens
(cross-attention, encoder and decoder, one token for a whole picture), and those whose trial differs. What such models
keep of a prompt beside its KV cache lies on their modules, so the next prompt begins after the last answer, and begins
by forgetting that.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from pippin.engines.language.kv_cache.layout import arrays_of
from pippin.engines.language.kv_cache.slots import PromptCache
from pippin.engines.language.vision.encoder import FeatureCache
from pippin.engines.language.vision.media import Medium, PromptMedia, WholePrompt
from pippin.engines.language.vision.model import FAILURES, ModuleState, on_device, refusal

CHUNK = 2048
"""Tokens of a prompt that go through the layers at once, as in mlx-vlm."""

CARRIED = ("cross_attention_states", "encoder_outputs")
"""What the model gives with the logits of a prompt and is given back with each later token."""


class WholeModel(nn.Module):  # type: ignore[misc]
    """A model of mlx-vlm with the interface of mlx-lm's models, for one sequence at a time."""

    def __init__(self, inner: nn.Module, unused: ModuleState) -> None:
        """`unused`: the state of `inner` before any prompt, from which each prompt begins."""
        super().__init__()
        self.inner = inner
        self._unused = unused
        self._carried: dict[str, Any] = {}
        self.samples: dict[bool, WholePrompt] = {}  # that it computes, with media and without

    @property
    def layers(self) -> Any:
        return self.inner.language_model.layers

    def make_cache(self) -> PromptCache:
        from mlx_vlm.models.cache import make_prompt_cache

        caches: PromptCache = make_prompt_cache(self.inner.language_model)
        return caches

    def __call__(
        self, tokens: mx.array, cache: PromptCache, *, inputs: WholePrompt | None = None, shift: int = 0
    ) -> mx.array:
        """Logits [1, 1, vocabulary] after the last token. Without `inputs`, `tokens` go on from the cache, and there
        are logits after each of them.

        Raises `ServerError` for a prompt whose media the model does not take.
        """
        if inputs is None:
            return self._next(tokens, cache, self._carried)
        try:
            logits = self._prefill(inputs, cache)
            mx.eval(logits)
        except FAILURES as error:
            if not inputs.has_media:
                raise
            raise refusal("medium", error) from error
        return logits

    def _prefill(self, prompt: WholePrompt, cache: PromptCache) -> mx.array:
        """Compute a whole prompt into an empty cache, in the steps of mlx-vlm's `generate_step`."""
        self._carried = {}
        # Phi-4-multimodal has LoRA weights for each modality in its layers, and notes which: text is answered by those
        # for pictures there, which a model has when it is loaded.
        if callable(switch := getattr(self.inner, "set_modality", None)):
            switch(has_image=True)
        self._unused.restore()
        ids, given = mx.array(prompt.ids), embedded(self.inner, prompt)
        embeddings = given.pop("inputs_embeds")
        if self._takes_chunks(ids, embeddings, cache, given):
            while (left := embeddings.shape[1]) > 1:
                count = min(CHUNK, left - 1)
                # By position: mlx-vlm itself says `inputs=`, which some of its models do not call the tokens.
                self.inner.language_model(
                    ids[:, :count],
                    inputs_embeds=embeddings[:, :count],
                    cache=cache,
                    n_to_process=count,
                    logits_to_keep=1,
                    **given,
                )
                mx.eval([part.state for part in cache])
                ids, embeddings = ids[:, count:], embeddings[:, count:]
            ids = ids[:, -1:]
        return self._next(ids, cache, given, embeddings)

    def _next(
        self, tokens: mx.array, cache: PromptCache, given: dict[str, Any], embeddings: mx.array | None = None
    ) -> mx.array:
        language = self.inner.language_model
        count = 1 if embeddings is not None else tokens.shape[1]
        if "decoder_input_ids" in given:
            count = 1
            found = language(cache=cache, logits_to_keep=count, **given)
        else:
            found = language(tokens, inputs_embeds=embeddings, cache=cache, logits_to_keep=count, **given)
        carried = ((name, getattr(found, name, None)) for name in CARRIED)
        self._carried = dict([pair for pair in carried if pair[1] is not None][:1])
        logits: mx.array = found.logits[:, -count:]
        return logits

    def hold_state(self) -> Callable[[], bool]:
        """A function that puts back what is kept beside the caches now (what modules keep of a prompt, and what goes
        from one call to the next), and tells whether that had changed."""
        carried = self._carried
        modules = [_Attributes(module) for module in self.inner.language_model.modules()]

        def put_back() -> bool:
            changed = [module.put_back() for module in modules]
            changed.append(not _are_same(carried, self._carried))
            self._carried = carried
            return any(changed)

        return put_back

    def _takes_chunks(
        self, ids: mx.array, embeddings: mx.array, cache: PromptCache, given: dict[str, Any]
    ) -> bool:
        """Whether the model lets a prompt be cut, by mlx-vlm's two ways to say so."""
        candidates = (self.inner, self.inner.language_model)
        for candidate in candidates:
            policy = getattr(candidate, "chunked_prefill_policy", None)
            if callable(policy):
                allowed = policy(
                    input_ids=ids,
                    inputs_embeds=embeddings,
                    prompt_cache=cache,
                    draft_model=None,
                    draft_kind=None,
                    prefill_kwargs=given,
                )
                return bool(getattr(allowed, "enabled", allowed))
        return not any(getattr(candidate, "no_chunked_prefill", False) for candidate in candidates)


class _Attributes:
    """What a module holds, itself and by name. Lists are known by what is in them."""

    def __init__(self, module: nn.Module) -> None:
        self._held: list[tuple[dict[str, Any], dict[str, Any]]] = [
            (own, {name: list(value) if isinstance(value, list) else value for name, value in own.items()})
            for own in (vars(module), module)
        ]

    def put_back(self) -> bool:
        """Have it hold that again; whether it had changed."""
        changed = [(own, before) for own, before in self._held if not _are_same(before, own)]
        for own, before in changed:
            dict.clear(own)
            dict.update(own, before)  # a module's own method of this name sets parameters
        return bool(changed)


def _are_same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    def same(one: Any, other: Any) -> bool:
        if isinstance(one, list) and isinstance(other, list):
            return len(one) == len(other) and all(map(same, one, other))
        return one is other or (isinstance(one, int | float | str) and one == other)

    return first.keys() == second.keys() and all(same(value, second[name]) for name, value in first.items())


def embedded(inner: nn.Module, prompt: WholePrompt) -> dict[str, Any]:
    """What the language model of mlx-vlm is given for a whole prompt: `inputs_embeds` and what it takes beside them."""
    ids = mx.array(prompt.ids)
    arrays = {name: on_device(value) for name, value in prompt.arrays.items()}
    pixels, mask = arrays.pop("pixel_values", None), arrays.pop("attention_mask", None)
    mask = mx.ones_like(ids) if mask is None else mask
    found = inner.get_input_embeddings(ids, pixels, mask=mask, **arrays)
    return {**arrays, **{name: value for name, value in found.to_dict().items() if value is not None}}


def text_prompt(tokens: Iterable[int]) -> WholePrompt:
    """A prompt without media."""
    return WholePrompt(np.array([list(tokens)], np.int32), {})


class WholeEncoder:
    """In the place of a `VisionEncoder`, for a model that computes prompts whole. It keeps no features."""

    def __init__(self) -> None:
        self.cache = FeatureCache(0, 0)
        self.encoded = 0  # prompts with media
        self.reused = 0

    def open(self, tokens: tuple[int, ...], media: PromptMedia | WholePrompt | None) -> "WholeInputs":
        """The inputs of a prompt of these tokens, with media or without."""
        assert not isinstance(media, PromptMedia)
        self.encoded += media is not None
        return WholeInputs(len(tokens), media)


@dataclass(eq=False)
class WholeInputs:
    """The inputs of one request's prompt, which is computed in one piece."""

    length: int
    prompt: WholePrompt | None
    shift: int = field(default=0, init=False)

    def chunk_end(self, position: int, least: int = 0) -> int:
        """Where a chunk ends that was to end at `position`: at the end of the prompt."""
        return max(position, self.length)

    def missing(self, start: int, stop: int) -> Medium | None:
        """Nothing is computed before the prompt itself."""
        return None

    def encode(self, medium: Medium, *, wait: bool) -> None:
        raise AssertionError("no medium of a whole prompt is ever missing")

    def inputs(self, tokens: tuple[int, ...], start: int) -> WholePrompt:
        return self.prompt or text_prompt(tokens)

    def release(self) -> None:
        """Drop the arrays of the media."""
        self.prompt = None


def computed_whole(model: WholeModel, prompt: WholePrompt) -> tuple[PromptCache, mx.array]:
    """The caches of a prompt, and the logits [1, 1, vocabulary] after it."""
    cache = model.make_cache()
    logits = model(mx.array(prompt.ids), cache, inputs=prompt)
    mx.eval(logits, arrays_of(cache))
    return cache, logits


def evaluated(model: WholeModel, prompt: WholePrompt) -> mx.array:
    """The logits [vocabulary] after a prompt, in float32; it is one of the model's samples from then on.

    Raises what the model raises.
    """
    _, logits = computed_whole(model, prompt)
    model.samples[prompt.has_media] = prompt
    return logits[0, -1].astype(mx.float32)
