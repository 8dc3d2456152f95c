"""A loaded diffusion language model, and mlx-vlm's loop that writes with it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import msgspec
from mlx.utils import tree_flatten

from pippin.engines.language.library.engine import Writing
from pippin.engines.language.vision.media import WholePrompt
from pippin.engines.language.vision.model import on_device

PROBED = 64
"""Tokens of the prompt with which the size of the KV cache is measured."""
COPIES = 2
"""KV caches at once: a block is computed beside a copy of what precedes it."""
STEPS, BLOCK = 32, 32
"""mlx-vlm's denoising steps of a block, and its tokens, if neither request nor checkpoint sets them."""
SCORES = 3
"""Arrays of all attention scores that exist at once when a model computes prompts in one piece."""


class Watched(nn.Module):  # type: ignore[misc]
    """A layer of a model that calls `check` before each pass; what `check` raises ends the loop of the library."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.check: Callable[[], None] = lambda: None

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.check()
        return self.layer(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        if name in self or "layer" not in self:
            return super().__getattr__(name)
        return getattr(self["layer"], name)


@dataclass
class Record:
    """Stands in for the library's processor, tokenizer and detokenizer: makes no text, and keeps the tokens that it is
    given."""

    ends: frozenset[int]
    tokens: list[int] = field(default_factory=list)
    last_segment: str = ""

    @property
    def detokenizer(self) -> "Record":
        return self

    @property
    def stopping_criteria(self) -> "Record":
        return self

    def __copy__(self) -> "Record":
        return self

    def __call__(self, token: int) -> bool:
        """Whether the token ends the answer."""
        return token in self.ends

    def add_eos_token_ids(self, tokens: Any) -> None:
        """Do nothing: the request says what ends an answer."""

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        """Keep all tokens so far, which the loop passes after each block."""
        self.tokens[:] = tokens
        return ""

    def reset(self) -> None:
        """Do nothing: a record serves one answer."""

    def add_token(self, token: int, **_: Any) -> None:
        """Keep one token; the loop passes one after the other when a block is done."""
        self.tokens.append(token)

    def finalize(self) -> None:
        """Do nothing: no text is held back."""


class DiffusionModel:
    """A model of mlx-vlm. To be used on the thread that loaded it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        layers = inner.layers
        self._watched = layers[0] = Watched(layers[0])

    def write(
        self, writing: Writing, tell: Callable[[Sequence[int]], bool], check: Callable[[], None]
    ) -> None:
        """Write an answer. `tell` takes the tokens of each block, and returns whether to go on; `check` may raise, and
        is called before each pass through the model."""
        from mlx_vlm.generate.diffusion import stream_diffusion_generate_from_kwargs

        record = Record(writing.ends)
        told = 0

        def on_result(result: Any) -> bool:
            nonlocal told
            if not (result.diffusion_block_complete or result.finish_reason):
                return True
            news, told = record.tokens[told:], len(record.tokens)
            if result.finish_reason == "stop" and result.token in writing.ends and not _ended(record):
                news.append(int(result.token))
            return tell(news)

        arrays = {name: on_device(value) for name, value in writing.prompt.arrays.items()}
        pixels, mask = arrays.pop("pixel_values", None), arrays.pop("attention_mask", None)
        self._watched.check = check
        try:
            for _ in stream_diffusion_generate_from_kwargs(
                self.inner,
                record,
                record,
                mx.array(writing.prompt.ids),
                pixels,
                None if pixels is None else mask,
                set(),
                {**self._settings(writing), **arrays},
                on_result=on_result,
            ):
                pass
        finally:
            self._watched.check = lambda: None

    def _settings(self, writing: Writing) -> dict[str, Any]:
        asked = {
            name: value
            for name, value in msgspec.structs.asdict(writing.settings).items()
            if value is not None
        }
        least = 1
        if self.inner.model_type == "llada2_moe":
            # Its loop takes at most as many steps as tokens are asked for, and leaves the rest of the block masked.
            # Each step reveals at least one token.
            least = min(asked.get("max_denoising_steps", STEPS), asked.get("block_length", BLOCK))
        return {
            "max_tokens": max(writing.max_tokens, least),
            "temperature": writing.sampling.temperature or 0.0,
            "top_p": writing.sampling.top_p,
            "top_k": writing.sampling.top_k,
            "seed": writing.seed,
            "eos_id": sorted(writing.ends),
            **asked,
        }

    def logits(self, prompt: WholePrompt) -> mx.array:
        """The logits [vocabulary] at the first place after a prompt with media, in float32. Raises what the model
        raises."""
        arrays = {name: on_device(value) for name, value in prompt.arrays.items()}
        canvas = mx.zeros((1, 4), mx.int32)
        found = self.inner(mx.array(prompt.ids), cache=self.inner.make_cache(), canvas_ids=canvas, **arrays)
        logits: mx.array = found.logits[0, 0].astype(mx.float32)
        mx.eval(logits)
        return logits

    def token_bytes(self) -> int:
        """Bytes of a token in the KV cache."""
        cache = self.inner.make_cache()
        prompt = mx.zeros((1, PROBED), mx.int32)
        mx.eval(self.inner(prompt, cache=cache).logits)
        held: int = sum(array.nbytes for _, array in tree_flatten([each.state for each in cache]))
        return -(-held // PROBED)

    def score_bytes(self) -> int:
        """Bytes of attention scores for each pair of prompt tokens: 0 unless the model computes a prompt in one piece,
        by the whole matrix of scores."""
        attention = getattr(self._watched.layer, "self_attn", None)
        if not hasattr(attention, "use_transformers_eager_attention"):
            return 0
        heads: int = self.inner.config.num_attention_heads
        return SCORES * 4 * heads


def _ended(record: Record) -> bool:
    return bool(record.tokens) and record.tokens[-1] in record.ends
