"""A loaded model of mlx-vlm that writes token by token, by mlx-vlm's own `generate_step`."""

import inspect
import logging
from collections.abc import Generator
from contextlib import closing
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from pippin.engines.device import require_sound_device
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.kv_cache.agreement import FAILURES
from pippin.engines.language.kv_cache.layout import arrays_of
from pippin.engines.language.vision.media import WholePrompt, text_prompt
from pippin.engines.language.vision.model import ModuleState, on_device, refusal

log = logging.getLogger(__name__)

PROBED = 64
"""Tokens of the text with which the size of the KV cache is measured."""


class AutoregressiveModel:
    """A model of mlx-vlm as mlx-vlm runs it: one prompt at a time, with all its media."""

    def __init__(self, inner: nn.Module, unused: ModuleState) -> None:
        """`unused`: the state of `inner` before any prompt, from which each prompt begins."""
        self.inner = inner
        self._unused = unused
        self._sample = text_prompt(range(1, PROBED + 1))

    def tokens(self, job: LanguageJob, seed: int) -> Generator[int, None, None]:
        """The tokens of an answer to the job's prompt, each after a pass through the model.

        Raises `ServerError` for media that the model does not take.
        """
        prompt: Any = job.media or text_prompt(job.prompt)
        mx.random.seed(seed)
        asked = job.request.sampling
        # `generate_step` takes the checkpoint's values for those that are missing.
        settings = {
            "max_tokens": job.max_tokens,
            "seed": seed,
            "temperature": 1.0 if asked.temperature is None else asked.temperature,
            "top_p": 1.0 if asked.top_p is None else asked.top_p,
            "top_k": asked.top_k or 0,
            "min_p": asked.min_p or 0.0,
        }
        with closing(self._steps(prompt, **settings)) as steps:
            try:
                first, _ = next(steps)
            except FAILURES as error:
                if not prompt.has_media:
                    raise
                raise refusal("medium", error) from error
            yield first
            yield from (token for token, _ in steps)

    def _steps(self, prompt: WholePrompt, **settings: Any) -> Generator[tuple[int, mx.array], None, None]:
        """The tokens of an answer, each with its log-probabilities [vocabulary]."""
        from mlx_vlm.generate.ar import generate_step

        # Phi-4-multimodal notes in its layers whose LoRA weights to use. For text those of pictures are used, which the
        # model has when it is loaded.
        if callable(switch := getattr(self.inner, "set_modality", None)):
            switch(has_image=True)
        self._unused.restore()
        arrays = on_device(prompt.arrays)
        ids = mx.array(prompt.ids)
        pixels, mask = arrays.pop("pixel_values", None), arrays.pop("attention_mask", mx.ones_like(ids))
        if not _takes_chunks(self.inner.language_model):
            settings["prefill_step_size"] = None
        found: Generator[tuple[int, mx.array], None, None] = generate_step(
            ids, self.inner, pixels, mask, **settings, **arrays
        )
        return found

    def logprobs(self, prompt: WholePrompt) -> mx.array:
        """The log-probabilities [vocabulary] after a prompt, in float32. Raises what the model raises.

        The size of the KV cache is measured by the last such prompt with media.
        """
        with closing(self._steps(prompt, max_tokens=1, temperature=0.0)) as steps:
            _, found = next(steps)
        self._sample = prompt if prompt.has_media else self._sample
        return found.astype(mx.float32)

    def computes_text(self) -> bool:
        """Whether the model computes a prompt without media."""
        try:
            self.logprobs(text_prompt((1, 2, 3)))
        except FAILURES as error:
            require_sound_device(error)
            log.info("a prompt of text fails: %s: %s", type(error).__name__, error)
            return False
        return True

    def token_bytes(self) -> int:
        """Bytes of a prompt's token in the KV cache."""
        from mlx_vlm.models.cache import make_prompt_cache

        cache = make_prompt_cache(self.inner.language_model)
        with closing(self._steps(self._sample, max_tokens=1, temperature=0.0, prompt_cache=cache)) as steps:
            next(steps)
        return -(-sum(array.nbytes for array in arrays_of(cache)) // int(self._sample.ids.size))

    def settle(self) -> None:
        """Compute all arrays of the model, so that another thread may use it."""
        modules = self.inner.modules()
        mx.eval([value for module in modules for value in module.values() if isinstance(value, mx.array)])


def _takes_chunks(language: nn.Module) -> bool:
    """Whether mlx-vlm can cut a prompt for the model: it passes the tokens of a chunk as `inputs`."""
    try:
        inspect.signature(type(language).__call__).bind(language, inputs=None)
    except TypeError:
        return False
    return True
