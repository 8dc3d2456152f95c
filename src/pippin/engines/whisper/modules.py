"""Whisper's modules that compute what depends on the sound alone once, where mlx-audio's compute it again."""

from typing import Any

import mlx.core as mx
from mlx_audio.stt.models.whisper.whisper import AudioEncoder, MultiHeadAttention

from pippin.engines.language.upstream.classes import become


class CrossAttention(MultiHeadAttention):  # type: ignore[misc]  # untyped in mlx-audio
    """Attention over the sound. mlx-audio scales and copies the keys and values of a window for each token; here they
    are laid out when they are made, as [batch, heads, size, frames] and [batch, heads, frames, size]."""

    def __call__(self, x: mx.array, xa: mx.array, mask: None = None, kv_cache: Any = None) -> Any:
        """The output, keys with values, and the scores [batch, heads, tokens, frames] of tokens `x`
        [batch, tokens, width]; the sound `xa` [batch, frames, width] is read where `kv_cache` is None."""
        scale = (x.shape[-1] // self.n_head) ** -0.25

        def by_head(array: mx.array) -> mx.array:
            return array.reshape(*array.shape[:2], self.n_head, -1).swapaxes(1, 2)

        if kv_cache is None:
            keys = by_head(self.key(xa) * scale).swapaxes(-1, -2)
            kv_cache = mx.contiguous(keys), mx.contiguous(by_head(self.value(xa)))
        keys, values = kv_cache
        scores = by_head(self.query(x) * scale) @ keys
        found = mx.softmax(scores, axis=-1, precise=True) @ values
        return self.out(found.swapaxes(1, 2).reshape(x.shape)), kv_cache, scores


class Encoder(AudioEncoder):  # type: ignore[misc]  # untyped in mlx-audio
    """Remembers the last window, which is heard again to find its language, at each temperature, and for words."""

    def __call__(self, x: mx.array) -> mx.array:
        """The features [batch, frames, width] of sound [batch, 2 * frames, bands]."""
        last: tuple[mx.array, mx.array] | None = getattr(self, "_last", None)
        if last is None or last[0].dtype != x.dtype or not mx.array_equal(last[0], x):
            last = self._last = x, super().__call__(x)
        return last[1]


def compute_once(model: Any) -> None:
    """Give a model of mlx-audio these modules."""
    become(model.encoder, Encoder)
    for block in model.decoder.blocks:
        become(block.cross_attn, CrossAttention)
