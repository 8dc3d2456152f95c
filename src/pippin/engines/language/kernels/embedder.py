"""Embedding models of mlx-vlm that are decoders: the kernels run them like mlx-lm's model of the same layers."""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import qwen3

from pippin.config.options.model import CpuActivations
from pippin.engines.language.kernels import architectures
from pippin.engines.language.kernels.decoder import KernelDecoder

QWEN3 = "mlx_vlm.models.qwen3_embedding.qwen3_embedding"


def why_not(model: nn.Module) -> str | None:
    """Why the kernels cannot run this embedding model, or None. Looks at no weight."""
    if type(model).__module__ != QWEN3:
        return f"the architecture {getattr(model, 'model_type', type(model).__name__)!r} is not one that they know"
    try:
        return architectures.why_not(_twin(model))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return f"mlx-vlm's 'qwen3_embedding' has changed: {error}"


class KernelEmbedder(nn.Module):  # type: ignore[misc] # mlx has no types
    """Called like mlx-vlm's embedding models, with the same pooling."""

    def __init__(self, model: nn.Module, threads: int, *, activations: CpuActivations = "float32") -> None:
        """Takes over the layers of `model`, to which `why_not` must have no objection. Raises `ValueError` for damaged
        weights, and `OtherAnswer` if a layer computes something else than mlx-vlm's."""
        super().__init__()
        twin = _twin(model)
        model.model.layers = []  # so that the weights are not in memory twice
        self.config, self.model_type = model.config, model.model_type
        self._decoder = KernelDecoder(twin, threads, activations=activations)
        self.instruction_set = self._decoder.instruction_set
        self.weight_bytes = self._decoder.weight_bytes

    def __call__(self, input_ids: mx.array, attention_mask: mx.array, **_: Any) -> Any:
        """Tokens and mask [sequences, length], with padding on the right."""
        from mlx_vlm.models.pooling import EmbeddingOutput, normalize_embeddings, pool_by_config

        states = self._decoder.states(input_ids, attention_mask.sum(axis=1))
        config = getattr(self, "pooling_config", None) or {"pooling_mode": "lasttoken"}
        pooled = pool_by_config(states, attention_mask, config)
        return EmbeddingOutput(last_hidden_state=states, text_embeds=normalize_embeddings(pooled))


def _twin(model: nn.Module) -> nn.Module:
    """mlx-lm's model with the layers of mlx-vlm's."""
    twin = qwen3.Model(qwen3.ModelArgs.from_dict({**vars(model.config), "tie_word_embeddings": True}))
    twin.model.update_modules(model.model.leaf_modules())
    return twin
