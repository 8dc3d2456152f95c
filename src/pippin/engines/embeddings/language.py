"""Language models that embed: their states after the last norm, of the last token or the mean of all."""

from collections.abc import Callable, Sequence
from typing import Literal

import mlx.core as mx
import mlx.nn as nn

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo
from pippin.engines.base import LoadProgress
from pippin.engines.device import configure, decide, find_facts
from pippin.engines.embeddings.pooling import Pooling
from pippin.engines.encoding import Floats, TokenRow, floats, padded
from pippin.engines.language.model.weights import load_weights
from pippin.engines.language.vision.model import VisionModel

Mode = Literal["last", "mean"]

MODES: dict[str, Mode] = {"lasttoken": "last", "mean_tokens": "mean", "mean": "mean"}
"""Of sentence-transformers' files, those that mean something in a model that sees to the left only."""


def language_forward(
    info: ModelInfo, options: ModelOptions, pooling: Pooling | None, pad: int, progress: LoadProgress
) -> Callable[[Sequence[TokenRow]], Floats]:
    mode = _mode(info, options, pooling)
    normalize = pooling is None or pooling.normalize
    plan = decide(find_facts(), options)
    configure(plan)
    model, _ = load_weights(info, plan, progress, trust_remote_code=options.trust_remote_code)
    states_of = _states(info, model)

    def forward(batch: Sequence[TokenRow]) -> Floats:
        tokens, mask, _ = padded(batch, pad)
        states = states_of(tokens)  # causal: padding on the right is seen by nobody
        lengths = mask.sum(axis=1)
        if mode == "mean":
            pooled = (states * mask[..., None]).sum(axis=1) / lengths[:, None]
        else:
            pooled = states[mx.arange(len(batch)), lengths - 1]
        if normalize:
            pooled = pooled / mx.maximum(mx.linalg.norm(pooled, axis=1, keepdims=True), 1e-12)
        return floats(pooled)

    return forward


def _mode(info: ModelInfo, options: ModelOptions, pooling: Pooling | None) -> Mode:
    """By the option, by the folder, or of the last token, which has seen all the others."""
    if options.embedding_pooling is not None:
        return options.embedding_pooling
    if pooling is None:
        return "last"
    if pooling.mode not in MODES:
        raise ServerError(
            "load_failed",
            f"{info.id} asks for the pooling {pooling.mode!r}, which no language model here has; "
            "choose one with --embedding-pooling last or mean.",
            "embedding_pooling",
        )
    return MODES[pooling.mode]


def _states(info: ModelInfo, model: nn.Module) -> Callable[[mx.array], mx.array]:
    if isinstance(model, VisionModel):
        return model.without_head()
    language = model.language_model if "language_model" in model else model
    if "model" not in language:
        raise ServerError(
            "load_failed", f"{info.id} gives no states that could be embedded; choose another model."
        )
    body: Callable[[mx.array], mx.array] = language.model
    return body
