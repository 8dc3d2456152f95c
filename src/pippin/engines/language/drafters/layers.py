"""Heads for multi-token prediction that lie behind a model's last layer in its checkpoint, as DeepSeek V3 began it.

Such a head is one decoder layer like the model's own. It starts from the model's state and the embedding of the token
that came next, each normalised, side by side through a projection (DeepSeek-V3 Technical Report, section 2.2). mlx-lm
leaves these weights out of its models, but it has the layer: a model of the same class, one layer deep, is given the
head's weights as those of its first, so that whatever the architecture does to names and numbers is done to these too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import create_attention_mask
from mlx_lm.utils import _get_classes

from pippin.core.safetensors import read_header
from pippin.engines.language.drafters.heads import DraftHead
from pippin.engines.language.kv_cache.layout import leaves, mlx_lm_twin, new_prompt_cache
from pippin.engines.language.kv_cache.slots import PromptCache

Config = Mapping[str, Any]
FIRST = "model.layers.0."


def _one_layer(config: Config) -> dict[str, Any]:
    return {"num_hidden_layers": 1}


def _one_layer_of_experts(config: Config) -> dict[str, Any]:
    return {"num_hidden_layers": 1, "first_k_dense_replace": 0}


def _one_layer_of_lists(config: Config) -> dict[str, Any]:
    """Step has settings of each layer in lists, which go on for the heads behind the last one."""
    place = int(config["num_hidden_layers"])
    per_layer = (
        "layer_types",
        "rope_theta",
        "partial_rotary_factors",
        "swiglu_limits",
        "swiglu_limits_shared",
    )
    cut = {name: config[name][place:] for name in per_layer if isinstance(config.get(name), list)}
    with_experts = str(place) in str(config.get("moe_layers_enum") or "").split(",")
    return {"num_hidden_layers": 1, "moe_layers_enum": "0" if with_experts else None, **cut}


def _a_sliding_layer(config: Config) -> dict[str, Any]:
    """MiMo V2's class of models wants a layer of each sort: the second one is not used."""
    return {"num_hidden_layers": 2, "hybrid_layer_pattern": [1, 0], "moe_layer_freq": [0, 0]}


@dataclass(frozen=True)
class Family:
    """How an architecture names the parts of a head, and what it does otherwise than DeepSeek V3."""

    # Changes of a configuration, whose first layer is then the head's.
    layer: Callable[[Config], dict[str, Any]]
    prefix: str = "model.layers.{layers}."
    token_norm: str = "enorm"
    state_norm: str = "hnorm"
    projection: str = "eh_proj"
    norm: str = "shared_head.norm"
    head: str = "shared_head.head"
    renamed: Mapping[str, str] = field(default_factory=dict)
    states_first: bool = False  # into the projection
    before_norm: bool = False  # it starts from states before the last norm, the model's and its own
    # Weights of norms are stored less one, which mlx-lm sees by other layers' names.
    norms_from_zero: bool = False


FAMILIES: dict[str, Family] = {
    "deepseek_v3": Family(_one_layer_of_experts),
    "deepseek_v32": Family(_one_layer_of_experts),
    "glm_moe_dsa": Family(_one_layer_of_experts),
    "glm4_moe": Family(_one_layer_of_experts),
    "glm4_moe_lite": Family(_one_layer_of_experts),
    "mimo": Family(
        _one_layer,
        prefix="model.mtp_layers.0.",
        token_norm="token_layernorm",
        state_norm="hidden_layernorm",
        projection="input_proj",
        norm="final_layernorm",
        states_first=True,
    ),
    "mimo_v2_flash": Family(
        _a_sliding_layer,
        prefix="model.mtp.layers.0.",
        norm="final_layernorm",
        renamed={"pre_mlp_layernorm.": "post_attention_layernorm."},
    ),
    "step3p5": Family(
        _one_layer_of_lists,
        renamed={"transformer.": "", "shared_head.output.": "shared_head.head."},
        before_norm=True,
        norms_from_zero=True,
    ),
}
"""By the architectures of mlx-lm. Names and order are those of vLLM's `deepseek_mtp`, `glm4_moe_mtp`, `mimo_mtp`,
`step3p5_mtp` and of SGLang's `mimo_v2_flash_nextn`. Of several heads the first drafts all of a chain."""


class Layer(nn.Module):  # type: ignore[misc] # mlx has no types
    """The parts of a head, without those that are its model's."""

    def __init__(self, family: Family, model: nn.Module, size: int) -> None:
        """`model`: as mlx-lm makes it, one whose first layer is the head's."""
        super().__init__()
        norm = model.model.norm
        self.token_norm, self.state_norm, self.norm = (type(norm)(size, eps=norm.eps) for _ in range(3))
        self.projection = nn.Linear(2 * size, size, bias=False)
        self.layer = model.layers[0]
        self._empty = new_prompt_cache(model)[0]
        self._window: int | None = getattr(self._empty, "max_size", None)
        self._states_first = family.states_first

    def make_cache(self) -> PromptCache:
        return [mlx_lm_twin(self._empty)]

    def __call__(self, embedded: mx.array, states: mx.array, cache: Any) -> mx.array:
        """States [sequences, count, size] before the norm."""
        parts = [self.token_norm(embedded), self.state_norm(states)]
        joined = self.projection(mx.concatenate(parts[::-1] if self._states_first else parts, axis=-1))
        first = next(leaves([cache]))
        mask = create_attention_mask(joined, first, window_size=self._window, return_array=True)
        found: mx.array = self.layer(joined, mask, cache)
        return found


class LayerHead(DraftHead):
    """A layer behind the model's last one. It shares the model's embeddings, and its projection where it has none."""

    def __init__(self, inner: Layer, family: Family, size: int, layers: int) -> None:
        super().__init__(inner, size, (layers - 1,) if family.before_norm else None)
        self._before_norm = family.before_norm
        self._embed: Any = None
        self._project: Any = None

    def share(self, model: nn.Module) -> None:
        self.share_parts(model.model.embed_tokens, getattr(model, "lm_head", None))

    def share_parts(self, embed: Any, project: Any) -> None:
        own = self.inner.get("head")
        self._embed, self._project = embed, own or project or embed.as_linear

    def make_cache(self) -> PromptCache:
        inner: Layer = self.inner
        return inner.make_cache()

    def __call__(self, tokens: mx.array, cache: PromptCache, states: mx.array | None = None) -> mx.array:
        if states is None:
            states = mx.zeros((*tokens.shape, self.state_size), self.dtype)
        own: mx.array = self.inner(self._embed(tokens), states, cache[0])
        return own if self._before_norm else self.inner.norm(own)

    def logits(self, states: mx.array) -> mx.array:
        found: mx.array = self._project(self.inner.norm(states) if self._before_norm else states)
        return found


def has_layer_head(folder: Path, config: Config) -> bool:
    """Whether a checkpoint of one of the `FAMILIES` has its head. Raises `OSError`."""
    family = FAMILIES[config["model_type"]]
    return any(
        family.projection in name for names in _stored(folder, family, config).values() for name in names
    )


def open_layer_head(folder: Path, config: Config) -> LayerHead:
    """The head of a checkpoint of one of the `FAMILIES`, no array of it evaluated. Raises `ValueError`, `KeyError`,
    `TypeError` or `OSError` for what does not fit together."""
    family = FAMILIES[config["model_type"]]
    made, arguments = _get_classes({**config, **family.layer(config)})
    model = made(arguments.from_dict({**config, **family.layer(config)}))
    size = int(config["hidden_size"])
    stored, mode = _read(folder, family, config)
    weights = _by_parts(model.sanitize(stored), family)
    inner = Layer(family, model, size)
    if any(name.startswith("head.") for name in weights):
        inner.head = nn.Linear(size, int(config["vocab_size"]), bias=False)
    _quantize(inner, weights, mode)
    inner.load_weights(list(weights.items()))
    return LayerHead(inner, family, size, int(config["num_hidden_layers"]))


def _stored(folder: Path, family: Family, config: Config) -> dict[Path, list[str]]:
    """The names of a head's weights, by the files that have them, of which `pippin convert` writes one for heads."""
    prefix, found = family.prefix.format(layers=config["num_hidden_layers"]), {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            header = read_header(file)
        names = [name for name in (header.arrays if header else ()) if name.startswith(prefix)]
        if names:
            found[path] = names
    return found


def _read(folder: Path, family: Family, config: Config) -> tuple[dict[str, mx.array], str]:
    """A head's weights under names of the first layer, each as it is stored but for norms; and how those are quantised
    that are."""
    prefix = family.prefix.format(layers=config["num_hidden_layers"])
    weights: dict[str, mx.array] = {}
    mode = "affine"
    for path, names in _stored(folder, family, config).items():
        loaded: Any = mx.load(str(path), return_metadata=True)
        arrays, metadata = loaded
        mode = metadata.get("mode", mode)
        for name in names:
            rest = name.removeprefix(prefix)
            for theirs, ours in family.renamed.items():
                rest = rest.replace(theirs, ours)
            weights[FIRST + rest] = arrays[name]
    sees_names = any(".moe." in name or ".share_expert." in name for name in weights)
    if family.norms_from_zero and not sees_names:
        for name in weights:
            if "norm" in name and name.endswith(".weight"):
                weights[name] = weights[name] + 1
    return weights, mode


def _by_parts(weights: Mapping[str, mx.array], family: Family) -> dict[str, mx.array]:
    """Under the names of `Layer`, without the embeddings, which are the model's."""
    own = {
        family.token_norm: "token_norm",
        family.state_norm: "state_norm",
        family.projection: "projection",
        family.norm: "norm",
        family.head: "head",
    }
    found: dict[str, mx.array] = {}
    for name, array in weights.items():
        rest = name.removeprefix(FIRST)
        part, _, kind = rest.rpartition(".")
        if part in own:
            found[f"{own[part]}.{kind}"] = array
        elif part != "embed_tokens":
            found[f"layer.{rest}"] = array
    return found


def _quantize(module: nn.Module, weights: Mapping[str, mx.array], mode: str) -> None:
    """Make those layers quantised whose weights are, with as many bits and in such groups as the shapes tell."""

    def settings(path: str, layer: nn.Module) -> dict[str, int | str] | bool:
        scales = weights.get(f"{path}.scales")
        if scales is None or not hasattr(layer, "to_quantized"):
            return False
        columns = layer.weight.shape[-1]
        bits = weights[f"{path}.weight"].shape[-1] * 32 // columns
        return {"group_size": columns // scales.shape[-1], "bits": bits, "mode": mode}

    nn.quantize(module, class_predicate=settings)
