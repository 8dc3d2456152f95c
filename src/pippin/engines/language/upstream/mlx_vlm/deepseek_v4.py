"""DeepSeek V4's index as its report defines it: of all pooled keys that a query sees, those of highest scores.

From 1,024 pooled keys on, mlx-vlm 0.7.10 scores means of blocks first and then the keys of the best blocks alone (HISA,
[arXiv:2603.28458](https://arxiv.org/abs/2603.28458)). A pass of several tokens does so for all of its queries, by means
that hold keys which a query does not see yet, and never looks at the keys behind the last whole block; a batch does not
do so at all. An answer would depend on how its prompt was cut, on proposals and on its neighbours.
"""

from typing import Any

import mlx.core as mx
from mlx_vlm.models.deepseek_v4.language import Indexer

from pippin.engines.language.upstream.mends import exchanged

SCORES = 2**26
"""Numbers that are scored at once: heads times queries times pooled keys. 256 MiB."""


class ExactIndexer(Indexer):  # type: ignore[misc] # mlx-vlm has no types
    def __call__(
        self, x: mx.array, q_residual: mx.array, position_rope: Any, pool_cache: Any, offset: Any
    ) -> mx.array | None:
        """The places of the chosen pooled keys [sequences, tokens, at most `index_topk`], in no order."""
        sequences, tokens, _ = x.shape
        pooled = self.compressor(x, pool_cache, offset)
        if pooled.shape[1] == 0:
            return None
        queries = self.wq_b(q_residual).reshape(sequences, tokens, self.n_heads, self.head_dim)
        queries = position_rope(queries.transpose(0, 2, 1, 3), offset).astype(mx.float32)
        weights = self.weights_proj(x).astype(mx.float32) * (self.n_heads**-0.5 * self.scale)
        seen = None if pool_cache is None else pool_cache.make_mask(tokens, offset)
        keys = pooled[:, None].swapaxes(-1, -2).astype(mx.float32)
        count = min(self.index_topk, pooled.shape[1])
        tile = max(SCORES // (sequences * self.n_heads * pooled.shape[1]), 1)
        found = []
        for start in range(0, tokens, tile):
            part = slice(start, start + tile)
            heads = mx.maximum(queries[:, :, part] @ keys, 0)
            scores = (heads * weights[:, part].swapaxes(-1, -2)[..., None]).sum(axis=1)
            if seen is not None:
                scores = mx.where(seen[..., part, :], scores, mx.finfo(scores.dtype).min)
            found.append(mx.argpartition(-scores, kth=count - 1, axis=-1)[..., :count])
            if tile < tokens:
                mx.eval(found[-1])  # so that the scores of one part are held at a time
        return mx.concatenate(found, axis=1)


MENDS = (
    exchanged(
        ExactIndexer,
        "from 1,024 pooled keys on, what is chosen depends on how a prompt is cut and on the other sequences",
        issue="https://github.com/Blaizzy/mlx-vlm/pull/1434",
    ),
)
