"""What training a draft head computes most of, with a gradient each: MLX differentiates the rest.

MLX on the CPU of Linux computes one exponential at a time, NumPy as many as fit in a register: in these three functions
that is most of the time.
"""

from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def _arrays(given: Any) -> list[Floats]:
    return [np.asarray(each) for each in given]


@mx.custom_function  # type: ignore[untyped-decorator] # mlx has no types
def gated(gate: mx.array, up: mx.array) -> mx.array:
    """silu(gate) * up."""
    gates, ups = _arrays((gate, up))
    return mx.array(gates / (1 + np.exp(-gates)) * ups)


@gated.vjp  # type: ignore[untyped-decorator]
def _(primals: Any, cotangent: mx.array, _: Any) -> tuple[mx.array, mx.array]:
    gates, ups, above = _arrays((*primals, cotangent))
    opened = 1 / (1 + np.exp(-gates))
    return mx.array(above * ups * opened * (1 + gates * (1 - opened))), mx.array(above * gates * opened)


def _softmax(scores: Floats) -> Floats:
    """In place, over the last axis."""
    scores -= scores.max(-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(-1, keepdims=True)
    return scores


def _weights(queries: Floats, keys: Floats, own: Floats) -> Floats:
    """[texts, heads, group, tokens, tokens + ahead]: of the places up to a query's own, then of its own drafts."""
    count, scale = queries.shape[-2], queries.shape[-1] ** -0.5
    later = np.triu(np.full((count, count), -np.inf, np.float32), 1)
    read = queries @ keys[:, :, None].swapaxes(-1, -2) * scale + later
    drafted = np.einsum("bhgtd,bhtad->bhgta", queries, own) * scale
    return _softmax(np.concatenate([read, drafted], axis=-1))


@mx.custom_function  # type: ignore[untyped-decorator]
def attended(
    queries: mx.array, keys: mx.array, values: mx.array, own_keys: mx.array, own_values: mx.array
) -> tuple[mx.array, mx.array]:
    """Causal attention [texts, heads, group, tokens, size] of queries of that shape to keys and values [texts, heads,
    tokens, size], and for each place to what was drafted from it so far [texts, heads, tokens, ahead, size]. Beside it
    the weights."""
    query, key, value, own_key, own_value = _arrays((queries, keys, values, own_keys, own_values))
    weights, count = _weights(query, key, own_key), query.shape[-2]
    mixed = weights[..., :count] @ value[:, :, None]
    if own_key.shape[3]:
        mixed += np.einsum("bhgta,bhtad->bhgtd", weights[..., count:], own_value)
    return mx.array(mixed), mx.array(weights)


@attended.vjp  # type: ignore[untyped-decorator]
def _(primals: Any, cotangents: Any, outputs: Any) -> tuple[mx.array, ...]:
    query, key, value, own_key, own_value, above, weights = _arrays((*primals, cotangents[0], outputs[1]))
    count, scale = query.shape[-2], query.shape[-1] ** -0.5
    read, drafted = weights[..., :count], weights[..., count:]
    values_above = (read.swapaxes(-1, -2) @ above).sum(2)
    own_values_above = np.einsum("bhgta,bhgtd->bhtad", drafted, above)
    to_weights = np.concatenate(
        [above @ value[:, :, None].swapaxes(-1, -2), np.einsum("bhgtd,bhtad->bhgta", above, own_value)],
        axis=-1,
    )
    scores = weights * (to_weights - (weights * to_weights).sum(-1, keepdims=True)) * scale
    read, drafted = scores[..., :count], scores[..., count:]
    queries_above = read @ key[:, :, None] + np.einsum("bhgta,bhtad->bhgtd", drafted, own_key)
    keys_above = (read.swapaxes(-1, -2) @ query).sum(2)
    own_keys_above = np.einsum("bhgta,bhgtd->bhtad", drafted, query)
    found = (queries_above, keys_above, values_above, own_keys_above, own_values_above)
    return tuple(mx.array(each) for each in found)


@mx.custom_function  # type: ignore[untyped-decorator]
def distilled(
    states: mx.array, projection: mx.array, labels: mx.array, theirs: mx.array
) -> tuple[mx.array, mx.array]:
    """The cross entropy, summed over the tokens, between what states [tokens, size] predict by a projection
    [vocabulary, size] that is not learnt, and what should be: half of it the label, half what `theirs` [tokens, size]
    predict. Beside it its gradient by the states."""
    own, rows, label, their = _arrays((states, projection, labels, theirs))
    places = np.arange(len(label))
    wanted = _softmax(their @ rows.T)
    wanted *= 0.5
    wanted[places, label] += 0.5
    scores = own @ rows.T
    scores -= scores.max(-1, keepdims=True)
    loss = -np.vdot(wanted, scores)
    predicted = np.exp(scores, out=scores)
    sums = predicted.sum(-1, keepdims=True)
    loss += float(np.log(sums).sum())
    predicted /= sums
    predicted -= wanted
    return mx.array(loss, mx.float32), mx.array(predicted @ rows)


@distilled.vjp  # type: ignore[untyped-decorator]
def _(primals: Any, cotangents: Any, outputs: Any) -> tuple[mx.array, ...]:
    return cotangents[0] * outputs[1], *(mx.zeros_like(each) for each in primals[1:])
