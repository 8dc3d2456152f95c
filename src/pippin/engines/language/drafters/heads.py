"""Draft heads: a decoder layer or two that say the token after next, given the model's state and the next token.

mlx-vlm's modules are made for rounds of speculation over rows that go on together, and keep the caches and positions of
these. Here each call brings its own, so that each sequence of a batch goes on by itself.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import create_attention_mask

from pippin.engines.language.kv_cache.kinds.base import PromptCache
from pippin.engines.language.kv_cache.layout import leaves, mlx_lm_twin
from pippin.engines.language.upstream.mends import apply


class DraftHead(nn.Module):  # type: ignore[misc] # mlx has no types
    """A head of mlx-vlm, called as a model of tokens that takes states beside them."""

    def __init__(self, inner: nn.Module, state_size: int, layers_read: tuple[int, ...] | None = None) -> None:
        """`layers_read`: the model's layers whose states it starts from, side by side; None for the states after the
        last norm. These have `state_size` numbers."""
        super().__init__()
        self.inner = inner
        self.layers_read = layers_read
        self.state_size = state_size
        self.dtype = mx.float32  # of states
        self.own_bytes = 0  # of weights that are not the model's
        self.most: int | None = None  # tokens that it drafts at once; None for any number

    def share(self, model: nn.Module) -> None:
        """Use the embeddings of the model that it is for, and its projection."""
        self.inner.bind(model)

    def share_parts(self, embed: Any, project: Any) -> None:
        """Share the parts of a model that has them by themselves; see `share`."""
        self.inner.embed_tokens = self.inner._input_embed = embed
        self.inner._lm_head_fn = project

    def make_cache(self) -> PromptCache:
        return [mlx_lm_twin(cache) for cache in self.inner.make_cache()]

    def __call__(self, tokens: mx.array, cache: PromptCache, states: mx.array | None = None) -> mx.array:
        """Its own states [sequences, count, size], from tokens [sequences, count] and the states before them: those of
        the model [sequences, count, state_size], or its own of the last call. None stands for zeros."""
        if states is None:
            states = mx.zeros((*tokens.shape, self.state_size), self.dtype)
        return self._states(tokens, cache, states)

    def _states(self, tokens: mx.array, cache: PromptCache, states: mx.array) -> mx.array:
        """The states that the module computes."""
        self.inner._cache = cache
        self.inner._next_position = next(leaves(cache)).offset
        found: mx.array = self.inner._forward_tokens(tokens, states, mx.int32)
        return found

    def draft_ahead(
        self, forward: Callable[[mx.array, Any], mx.array], last: mx.array, own: mx.array, most: int
    ) -> mx.array:
        """Up to `most` tokens [sequences, count] after the `last` [sequences, 1]; its `own` states [sequences, 1, size]
        are those of the last call. `forward` calls it with the sequences' caches, which then forget what it adds."""
        tokens = [self.draft(own)]
        for _ in range(1, most):
            own = forward(tokens[-1], own)
            tokens.append(self.draft(own))
        return mx.concatenate(tokens, axis=1)

    def draft(self, states: mx.array) -> mx.array:
        """The likeliest next tokens [sequences, count] by its own states."""
        return mx.argmax(self.logits(states), axis=-1)

    def logits(self, states: mx.array) -> mx.array:
        """Logits [sequences, count, vocabulary] of the next tokens by its own states."""
        raise NotImplementedError


class Eagle3Head(DraftHead):
    """EAGLE-3: from the states after three layers. It may know only a part of the vocabulary."""

    def __init__(self, inner: Any) -> None:
        # Its configuration counts layers by what goes into them, this by what comes out.
        super().__init__(inner, 3 * inner.target_hidden_size, tuple(inner.config.capture_layer_ids))

    def share(self, model: nn.Module) -> None:
        # Its own method keeps a copy beside quantised embeddings, and fails where the checkpoint has none.
        text = getattr(model, "language_model", model)
        text = getattr(text, "model", text)
        if hasattr(text, "embed_tokens") or self.inner.embed_tokens is None:
            self.share_parts(text.embed_tokens, self.inner.lm_head)

    def share_parts(self, embed: Any, project: Any) -> None:
        # A head of another width than the model's has embeddings of its own.
        if self.inner.hidden_size == self.inner.target_hidden_size:
            self.inner.embed_tokens = embed
        if self.inner.lm_head is None:
            self.inner.lm_head = project

    def draft(self, states: mx.array) -> mx.array:
        words = mx.argmax(self.inner._logits(states), axis=-1)
        found: mx.array = self.inner._draft_to_target(words, mx.int32)
        return found


class PredictionHead(DraftHead):
    """Multi-token prediction as Qwen 3.5 and Next have it: a layer more in the checkpoint, which shares the model's
    embeddings and projection."""

    def __init__(self, inner: Any, streams: int | None = None) -> None:
        """`streams`: that the model's last layer leaves, where the head goes on with these; None for the last norm."""
        text = inner.config.text_config
        layers = None if streams is None else (text.num_hidden_layers - 1,)
        super().__init__(inner, (streams or 1) * text.hidden_size, layers)

    def logits(self, states: mx.array) -> mx.array:
        found: mx.array = self.inner._lm_head_fn(states)
        return found


class HiddenHead(PredictionHead):
    """One whose module computes with the caches that it is given."""

    part = 0  # of what the module gives: its states after the last norm, or the streams before it

    def _states(self, tokens: mx.array, cache: PromptCache, states: mx.array) -> mx.array:
        self.inner._next_position = getattr(next(leaves(cache), None), "offset", 0)
        embedded = self.inner._input_embed(tokens)
        found: mx.array = self.inner._forward_hidden(embedded, states, tokens, cache)[self.part]
        return found.flatten(2)


class NemotronHead(HiddenHead):
    """The head of Nemotron-H: attention and experts, which share the model's embeddings and projection."""

    def share(self, model: nn.Module) -> None:
        # Its own method asks for mlx-vlm's class of the model.
        whole = getattr(model, "language_model", model)
        self.inner._input_embed, self.inner._lm_head_fn = whole.backbone.embeddings, whole.lm_head


class IndexedHead(PredictionHead):
    """The head of GLM 5, split off: latent attention that takes tokens by an index."""

    def _states(self, tokens: mx.array, cache: PromptCache, states: mx.array) -> mx.array:
        embedded = self.inner._input_embed(tokens)
        # Its own method has no mask for single tokens, which sequences of different lengths need.
        mask = create_attention_mask(embedded, cache[0][0], return_array=True)
        found: mx.array = self.inner.mtp(states, embedded, mask, cache[0])
        return found


class PooledHead(HiddenHead):
    """The head of GLM 5 Next: attention that takes tokens by an index of pooled keys."""

    def __init__(self, inner: Any) -> None:
        from pippin.engines.language.upstream.mlx_vlm import glm5_next

        super().__init__(inner)
        apply(glm5_next.MENDS, inner)
        self._new_cache = glm5_next.attention_cache

    def make_cache(self) -> PromptCache:
        return [mlx_lm_twin(self._new_cache(self.inner.mtp_block.self_attn))]


class HyperHead(HiddenHead):
    """The head of DeepSeek V4, which goes on with the streams that the model's last layer leaves, several for each
    token."""

    part = 1

    def __init__(self, inner: Any) -> None:
        super().__init__(inner, inner.config.text_config.hc_mult)

    def logits(self, states: mx.array) -> mx.array:
        return super().logits(self.inner.norm(self.inner.hc_head(self.inner._target_hidden(states))))


class StreamsHead(PredictionHead):
    """The head of Qwen 4, which goes on with the streams that the model's last layer leaves, as DeepSeek V4's does, and
    has attention that takes blocks of tokens by an index."""

    def __init__(self, inner: Any) -> None:
        from pippin.engines.language.upstream.mlx_vlm import qwen4_exp

        super().__init__(inner, inner.config.text_config.hc_count)
        apply(qwen4_exp.MENDS, inner)
        self._new_cache = qwen4_exp.attention_cache

    def make_cache(self) -> PromptCache:
        return [mlx_lm_twin(self._new_cache(layer.self_attn)) for layer in self.inner.layers]

    def _states(self, tokens: mx.array, cache: PromptCache, states: mx.array) -> mx.array:
        found: mx.array = self.inner.fuse_inputs(self.inner._input_embed(tokens), states)
        for layer, own in zip(self.inner.layers, cache, strict=True):
            found = layer(found, tokens, mask=None, cache=own, position_ids=None)
        return found

    def logits(self, states: mx.array) -> mx.array:
        return super().logits(self.inner.hyper_connection_mixer(states))
