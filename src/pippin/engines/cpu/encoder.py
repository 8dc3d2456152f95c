"""The layers of BERT and XLM-RoBERTa as the kernels compute them, in place of mlx-vlm's: without padding, and without
an array for each operation."""

import logging
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

from pippin.engines.cpu.kernels import why_missing

log = logging.getLogger(__name__)

MODULES = ("mlx_vlm.models.bert.bert", "mlx_vlm.models.xlm_roberta.xlm_roberta")


def use_kernels(model: nn.Module, threads: int) -> bool:
    """Put the kernels in place of the model's layers where they know them; says whether they did. Raises `ValueError`
    for weights that are damaged."""
    reason = why_missing()
    if reason is None:
        reason = _why_not(model)
    if reason is not None:
        log.info("the model runs in MLX, without the kernels for CPUs: %s", reason)
        return False
    model.encoder = KernelEncoder(model, threads)
    return True


def _why_not(model: nn.Module) -> str | None:
    from pippin.engines.cpu.matrices import why_no_matrix

    if type(model).__module__ not in MODULES:
        return f"the architecture {getattr(model, 'model_type', type(model).__name__)!r} is not one that they know"
    for layer in model.encoder.layer:
        for module in _projections(layer).values():
            if (reason := why_no_matrix(module)) is not None:
                return reason
    return None


def _projections(layer: Any) -> dict[str, nn.Module]:
    attention = layer.attention
    return {
        "query": attention.self.query,
        "key": attention.self.key,
        "value": attention.self.value,
        "output": attention.output.dense,
        "up": layer.intermediate.dense,
        "down": layer.output.dense,
    }


class KernelEncoder(nn.Module):  # type: ignore[misc] # mlx has no types
    """Called as mlx-vlm's encoders are, on states [batch, length, hidden] and a mask [batch, 1, 1, length] that is 0
    for tokens and negative for the padding on their right, whose states become 0."""

    def __init__(self, model: nn.Module, threads: int) -> None:
        from pippin_kernels import Encoder, EncoderLayer, Kernels

        from pippin.engines.cpu.matrices import floats, matrix_of

        super().__init__()
        layers = []
        for index, layer in enumerate(model.encoder.layer):
            norms = {"attention_norm": layer.attention.output.LayerNorm, "mlp_norm": layer.output.LayerNorm}
            layers.append(
                EncoderLayer(
                    **{name: matrix_of(module) for name, module in _projections(layer).items()},
                    **{name: floats(norm.weight) for name, norm in norms.items()},
                    **{f"{name}_bias": floats(norm.bias) for name, norm in norms.items()},
                )
            )
            model.encoder.layer[index] = nn.Identity()  # so that the weights do not lie there twice
        heads, eps = model.config.num_attention_heads, model.config.layer_norm_eps
        self._encoder = Encoder(Kernels(threads), tuple(layers), heads=heads, norm_eps=float(eps))

    @property
    def layer(self) -> list[None]:
        """As many as there are."""
        return [None] * len(self._encoder.layers)

    def __call__(self, states: mx.array, mask: mx.array) -> mx.array:
        given: NDArray[np.float32] = np.array(states.astype(mx.float32))
        lengths = (np.array(mask.astype(mx.float32))[:, 0, 0] == 0).sum(-1)
        tokens = np.arange(given.shape[1]) < lengths[:, None]
        packed = given[tokens]
        self._encoder.run(packed, lengths.tolist())
        given[tokens] = packed
        given[~tokens] = 0
        return mx.array(given)
