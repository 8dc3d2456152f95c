"""The gated delta rule over a prompt in blocks of tokens. mlx-lm has a kernel for Metal, and goes token by token
elsewhere.

With decays g, keys k, values v, strengths b, G_i = g_1 ... g_i and the state S before a block, token i adds the row u_i
to the state, for u_i + sum over j < i of b_i G_i / G_j (k_i k_j) u_j = b_i (v_i - G_i S k_i), and all rows of a block
are solved for at once (Yang et al. 2024, "Gated Delta Networks").
"""

from functools import wraps
from typing import Any

import mlx.core as mx
from mlx_lm.models import gated_delta

BLOCK = 64  # tokens
LEAST = 1e-30  # of a decay, whose logarithm is taken


def compute_in_blocks() -> None:
    """Have mlx-lm's models of this process compute long runs of tokens in blocks. A second call does nothing."""
    own = gated_delta.gated_delta_ops
    if hasattr(own, "__wrapped__"):
        return

    @wraps(own)
    def computed(
        q: mx.array, k: mx.array, v: mx.array, g: mx.array, beta: mx.array, state: mx.array, mask: Any = None
    ) -> tuple[mx.array, mx.array]:
        # Few tokens, as in a step that checks proposals, are computed as single ones are.
        if g.ndim > 3 or q.shape[1] < BLOCK:
            found: tuple[mx.array, mx.array] = own(q, k, v, g, beta, state, mask)
            return found
        if mask is not None:
            g, beta = mx.where(mask[..., None], g, 1), mx.where(mask[..., None], beta, 0)
        many = v.shape[2] // k.shape[2]
        given = mx.repeat(q, many, -2), mx.repeat(k, many, -2), v, g[..., None], beta[..., None]
        tokens = [each.astype(mx.float32).swapaxes(1, 2) for each in given]
        outputs = []
        for start in range(0, q.shape[1], BLOCK):
            output, state = _block([each[:, :, start : start + BLOCK] for each in tokens], state)
            outputs.append(output)
        return mx.concatenate(outputs, axis=2).swapaxes(1, 2).astype(q.dtype), state

    gated_delta.gated_delta_ops = computed


def _block(tokens: list[mx.array], state: mx.array) -> tuple[mx.array, mx.array]:
    """Outputs [B, H, C, Dv] and the state [B, H, Dv, Dk] behind a block: of queries and keys [B, H, C, Dk], values [B,
    H, C, Dv], decays and strengths [B, H, C, 1]."""
    q, k, v, g, beta = tokens
    place = mx.arange(k.shape[2])
    decayed = mx.cumsum(mx.log(mx.maximum(g, LEAST)), axis=2)
    between = mx.where(place[:, None] >= place, decayed - decayed.swapaxes(2, 3), -mx.inf)
    share, left = mx.exp(between), mx.exp(decayed)
    lower = mx.where(place[:, None] > place, beta * share * (k @ k.swapaxes(2, 3)), 0)
    rows = _inverse(lower) @ (beta * (v - left * (k @ state.swapaxes(2, 3))))
    outputs = left * (q @ state.swapaxes(2, 3)) + (share * (q @ k.swapaxes(2, 3))) @ rows
    last = decayed[:, :, -1:]
    return outputs, mx.exp(last) * state + (mx.exp(last - decayed) * rows).swapaxes(2, 3) @ k


def _inverse(lower: mx.array) -> mx.array:
    """The inverse of 1 + `lower` [..., C, C], which has nothing on and above its diagonal: of blocks twice as large as
    those before, each time."""
    place, size = mx.arange(lower.shape[-1]), 1
    found = mx.eye(lower.shape[-1])
    while size < lower.shape[-1]:
        rows, columns = place[:, None] // size, place // size
        found = found - found @ mx.where((rows == columns + 1) & (columns % 2 == 0), lower, 0) @ found
        size *= 2
    return found
