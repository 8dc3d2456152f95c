"""Inkling's attention for sequences of different length: mlx-vlm 0.7.10 counts the positions of all sequences of a
batch from the end of the longest.

Positions are told apart by how far tokens are from each other, which a projection of each query turns into a bias.
"""

from typing import Any

import mlx.core as mx
from mlx_vlm.models.base import scaled_dot_product_attention
from mlx_vlm.models.inkling.language import InklingAttention

from pippin.engines.language.upstream.mends import Mend, to

UNSEEN = -1e30


class Attention(InklingAttention):  # type: ignore[misc] # mlx-vlm has no types
    first = 0
    """The first place whose key is a token's: those before it are not seen."""

    def __call__(self, x: mx.array, cache: Any = None, conv_mask: mx.array | None = None) -> mx.array:
        """`conv_mask` [sequences, tokens]: which of them there are for the convolutions."""
        if not self.first and (cache is None or isinstance(cache[0].offset, int)):  # all are equally long
            alike: mx.array = super().__call__(x, cache, conv_mask)
            return alike
        keys_and_values, state = cache
        starts = mx.array(keys_and_values.offset).reshape(-1, 1)
        batch, count, _ = x.shape
        sizes = self.qkvr_dims
        queries, keys, values, relative = mx.split(
            self.qkvr_proj(x), [sizes[0], sum(sizes[:2]), sum(sizes[:3])], axis=-1
        )
        keys = self.k_sconv(keys, cache=state, mask=conv_mask)
        keys = self.k_norm(keys.reshape(batch, count, self.n_kv, self.head_dim))
        values = self.v_sconv(values, cache=state, mask=conv_mask)
        values = values.reshape(batch, count, self.n_kv, self.head_dim)
        keys, values = keys_and_values.update_and_fetch(
            keys.transpose(0, 2, 1, 3), values.transpose(0, 2, 1, 3)
        )
        queries = self.q_norm(queries.reshape(batch, count, self.n_heads, self.head_dim)).transpose(
            0, 2, 1, 3
        )
        places = starts + mx.arange(count)  # of the queries, [batch, count]
        seen, bias = self._bias(
            relative.reshape(batch, count, self.n_heads, self.d_rel), places, keys.shape[2]
        )
        if self.log_floor is not None:
            stretch = mx.log(mx.maximum((places + 1 - self.first).astype(mx.float32) / self.log_floor, 1.0))
            stretch = (1.0 + self.log_alpha * stretch).astype(x.dtype)[:, None, :, None]
            queries, bias = queries * stretch, bias * stretch
        mask = mx.where(seen, bias, mx.array(UNSEEN, x.dtype))
        attended = scaled_dot_product_attention(
            queries, keys, values, cache=keys_and_values, scale=self.scale, mask=mask
        )
        projected: mx.array = self.o_proj(attended.transpose(0, 2, 1, 3).reshape(batch, count, -1))
        return projected

    def _bias(self, relative: mx.array, places: mx.array, reach: int) -> tuple[mx.array, mx.array]:
        """Which of `reach` keys each query sees [batch, 1, queries, keys], and what is added to its scores, [batch,
        heads, queries, keys]."""
        keys = mx.arange(reach)
        distances = (places[..., None] - keys)[:, None]
        seen = (distances >= 0) & (keys >= self.first)
        if self.sliding > 0:
            seen = seen & (distances < self.sliding)
        by_distance = (relative @ self.rel_proj.astype(relative.dtype)).transpose(0, 2, 1, 3)
        index = mx.clip(distances, 0, self.rel_extent - 1)
        bias = mx.take_along_axis(by_distance, index, axis=-1)
        return seen, mx.where(distances < self.rel_extent, bias, mx.array(0.0, relative.dtype))


MENDS = (
    Mend(
        original=InklingAttention,
        kind="batching",
        why="positions of all sequences are counted from the end of the longest",
        loaded=to(Attention),
    ),
)
