"""In place of the Metal kernels of `mlx_vlm.kernels`, which only a Mac runs: their formulas in plain MLX operations."""

from typing import Any

import mlx.core as mx


def _normed(x: mx.array, eps: float) -> mx.array:
    """x / rms(x) over the last axis, in float32."""
    return mx.fast.rms_norm(x.astype(mx.float32), None, eps)


def qk_norm(
    qkvg: mx.array, *, n_heads: int, n_kv_heads: int, head_dim: int, eps: float, query_scale: float
) -> tuple[mx.array, mx.array]:
    """Queries and keys [batch, tokens, heads, head_dim], the first two parts of each row."""
    heads = qkvg[..., : (n_heads + n_kv_heads) * head_dim].reshape(*qkvg.shape[:-1], -1, head_dim)
    normed = _normed(heads, eps).astype(qkvg.dtype)
    queries, keys = mx.split(normed, [n_heads], axis=-2)
    return (queries.astype(mx.float32) * query_scale).astype(qkvg.dtype), keys


def qk_norm_rope(
    qkvg: mx.array, *, rope_base: float, offset: int | mx.array, **given: Any
) -> tuple[mx.array, mx.array]:
    """As `qk_norm`, rotated at the positions from `offset` on: one number, or one for each row of the batch."""

    def rotated(x: mx.array) -> mx.array:
        across = x.transpose(0, 2, 1, 3)
        return mx.fast.rope(
            across, x.shape[-1], traditional=True, base=rope_base, scale=1.0, offset=offset
        ).transpose(0, 2, 1, 3)

    queries, keys = qk_norm(qkvg, **given)
    return rotated(queries), rotated(keys)


def rms_norm_sigmoid_gate(x: mx.array, gate: mx.array, *, eps: float) -> mx.array:
    """rms_norm(x) * sigmoid(gate) of x [batch, heads, tokens, head_dim], gate [batch, tokens, heads * head_dim]."""
    joined = _normed(x, eps).transpose(0, 2, 1, 3).reshape(gate.shape)
    return (joined * mx.sigmoid(gate.astype(mx.float32))).astype(x.dtype)


def expert_routing(
    logits: mx.array,
    expert_bias: mx.array,
    *,
    top_k: int,
    multiplier: float,
    score_eps: float,
    route_scale: float,
) -> tuple[mx.array, mx.array]:
    """The chosen experts of each token, the best first, and their weights in float32."""
    scores = mx.sigmoid(logits * multiplier)
    chosen = mx.argsort(-(scores + expert_bias), axis=-1)[..., :top_k].astype(mx.uint32)
    weights = mx.take_along_axis(scores, chosen, axis=-1)
    return chosen, weights / (weights.sum(axis=-1, keepdims=True) + score_eps) * route_scale


def post_expert_norm_combine(
    experts: mx.array, weights: mx.array, *, norm_weight: mx.array, eps: float
) -> mx.array:
    """The sum of the normed outputs [..., chosen, width] of the experts with their weights [..., chosen]."""
    normed = _normed(experts.astype(mx.float32) * norm_weight, eps)
    return (normed * weights.astype(experts.dtype)[..., None]).sum(axis=-2).astype(experts.dtype)


def norm_add_norm(
    branch: mx.array,
    stream: mx.array,
    *,
    alpha: mx.array,
    beta: mx.array,
    post_weight: mx.array | None,
    post_eps: float,
    next_norm: Any,
) -> tuple[mx.array, mx.array | None]:
    """The stream in float32 with the normed branch added, and that sum after the next norm."""
    scaled = branch if post_weight is None else (branch * post_weight).astype(branch.dtype)
    added = alpha * stream + beta * _normed(scaled, post_eps).astype(branch.dtype).astype(mx.float32)
    return added, None if next_norm is None else next_norm(added).astype(branch.dtype)


MUSE_SPARK: dict[str, Any] = {
    f"muse_spark.language.{each.__name__}": each
    for each in (
        qk_norm,
        qk_norm_rope,
        rms_norm_sigmoid_gate,
        expert_routing,
        post_expert_norm_combine,
        norm_add_norm,
    )
}
"""What a checkpoint of Muse Spark has in place of kernels, as `Family.instead`."""
