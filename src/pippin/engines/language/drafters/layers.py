"""Heads for multi-token prediction that lie behind a model's last layer in its checkpoint, as DeepSeek V3 began it.

Such a head is one decoder layer like the model's own. Its input is the model's state at a token and the embedding of
the next token, each normalised, joined and projected (DeepSeek-V3 Technical Report, section 2.2). mlx-lm leaves these
weights out of its models, but it has the layer: a model of the same class with one layer is given the head's weights
as those of its first layer, so that what the architecture does to names and numbers (`sanitize`) is done to them too.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import create_attention_mask

from pippin.core.safetensors import find_header
from pippin.engines.language.drafters.heads import DraftHead
from pippin.engines.language.kv_cache.kinds.base import PromptCache
from pippin.engines.language.kv_cache.layout import leaves, new_prompt_cache
from pippin.engines.language.upstream.mends import classes_of

Config = Mapping[str, Any]
Weights = dict[str, mx.array]
FIRST: Final = "model.layers.0."
PARTS: Final = {
    "enorm": "token_norm",
    "hnorm": "state_norm",
    "eh_proj": "projection",
    "shared_head.norm": "norm",
    "shared_head.head": "head",
}
"""The parts around the layer: by DeepSeek V3's names, to which `Names` lead, those of `Layer`."""

FAMILIES: Final = ("deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe", "glm4_moe_lite")
"""The `model_type` of checkpoints with such heads. Names and order are those of vLLM's `deepseek_mtp` and
`glm4_moe_mtp`. Of several heads the first drafts all of a chain."""


class Layer(nn.Module):  # type: ignore[misc] # mlx has no types
    """The parts of a head, without those that it shares with its model."""

    def __init__(self, model: nn.Module, size: int) -> None:
        """`model`: one of mlx-lm whose only layer is the head's."""
        super().__init__()
        norm = model.model.norm
        self.token_norm, self.state_norm, self.norm = (type(norm)(size, eps=norm.eps) for _ in range(3))
        self.projection = nn.Linear(2 * size, size, bias=False)
        self.layer = model.layers[0]
        self._empty = new_prompt_cache(model)[0]

    def make_cache(self) -> PromptCache:
        return [self._empty]

    def __call__(self, embedded: mx.array, states: mx.array, cache: Any) -> mx.array:
        """Its own states [sequences, count, size] before the norm."""
        parts = [self.token_norm(embedded), self.state_norm(states)]
        joined = self.projection(mx.concatenate(parts, axis=-1))
        mask = create_attention_mask(joined, next(leaves([cache])), return_array=True)
        found: mx.array = self.layer(joined, mask, cache)
        return found


class LayerHead(DraftHead):
    """A layer behind the model's last one. It uses the model's embeddings, and its projection if it has none itself."""

    def __init__(self, inner: Layer, size: int) -> None:
        super().__init__(inner, size)
        self._embed: Any = None
        self._project: Any = None

    def share(self, model: nn.Module) -> None:
        self.share_parts(model.model.embed_tokens, getattr(model, "lm_head", None))

    def share_parts(self, embed: Any, project: Any) -> None:
        own = self.inner.get("head")
        self._embed, self._project = embed, own or project or embed.as_linear

    def _states(self, tokens: mx.array, cache: PromptCache, states: mx.array) -> mx.array:
        own: mx.array = self.inner.norm(self.inner(self._embed(tokens), states, cache[0]))
        return own

    def logits(self, states: mx.array) -> mx.array:
        found: mx.array = self._project(states)
        return found


def has_layer_head(folder: Path, config: Config) -> bool:
    """Whether a folder of one of the `FAMILIES` has the head. Raises `OSError`."""
    stored = _stored(folder, config)
    return any(ours.startswith("eh_proj.") for _, names in stored for ours in names.values())


def open_layer_head(folder: Path, config: Config) -> LayerHead:
    """The head in a folder for which `has_layer_head`, no array of it evaluated. Raises `ValueError`, `KeyError`,
    `TypeError` or `OSError` for what does not fit together."""
    changed = {**config, "num_hidden_layers": 1, "first_k_dense_replace": 0, "mlp_layer_types": None}
    made, arguments = classes_of(changed)
    model = made(arguments.from_dict(changed))
    size = int(config["hidden_size"])
    stored: Weights = {}
    for path, names in _stored(folder, config):
        arrays: Any = mx.load(str(path))
        stored |= {FIRST + ours: arrays[theirs] for theirs, ours in names.items()}
    # Under the names of `Layer`, without the embeddings, which are the model's.
    weights: Weights = {}
    for name, array in model.sanitize(stored).items():
        rest = name.removeprefix(FIRST)
        part, _, kind = rest.rpartition(".")
        if part in PARTS:
            weights[f"{PARTS[part]}.{kind}"] = array
        elif part != "embed_tokens":
            weights[f"layer.{rest}"] = array
    inner = Layer(model, size)
    if any(name.startswith("head.") for name in weights):
        inner.head = nn.Linear(size, int(config["vocab_size"]), bias=False)
    inner.load_weights(list(weights.items()))
    return LayerHead(inner, size)


def prefix_of(config: Config) -> str:
    """How the names of a head's weights begin in a checkpoint."""
    return f"model.layers.{config.get('num_hidden_layers')}."


def _stored(folder: Path, config: Config) -> Iterator[tuple[Path, dict[str, str]]]:
    """The files that have weights of a head, and the names there, each with DeepSeek V3's name without the number of
    the layer."""
    prefix = prefix_of(config)
    for path in sorted(folder.glob("*.safetensors")):
        header = find_header(path)
        names = header.arrays if header else ()
        found = {name: name.removeprefix(prefix) for name in names if name.startswith(prefix)}
        if found:
            yield path, found
