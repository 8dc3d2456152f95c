"""Heads for multi-token prediction that lie behind a model's last layer in its checkpoint, as DeepSeek V3 began it.

Such a head is one decoder layer like the model's own. Its input is the model's state at a token and the embedding of
the next token, each normalised, joined and projected (DeepSeek-V3 Technical Report, section 2.2). mlx-lm leaves these
weights out of its models, but it has the layer: a model of the same class with one layer is given the head's weights
as those of its first layer, so that what the architecture does to names and numbers (`sanitize`) is done to them too.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import create_attention_mask

from pippin.core.safetensors import read_header
from pippin.engines.language.drafters.heads import DraftHead
from pippin.engines.language.kv_cache.layout import leaves, mlx_lm_twin, new_prompt_cache
from pippin.engines.language.kv_cache.slots import PromptCache
from pippin.engines.language.upstream.mends import classes_of
from pippin.engines.language.upstream.mlx_lm.bailing_moe_v3 import LIMITS

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
"""The parts around the layer: by DeepSeek V3's names, to which `Family.names` leads, those of `Layer`."""


def _one_layer(config: Config) -> dict[str, Any]:
    return {"num_hidden_layers": 1}


def _one_layer_of_experts(config: Config) -> dict[str, Any]:
    """In hybrids of Ling it has full attention, as layers behind the last whole group of linear ones have. Limits of
    its activations are listed behind those of the last layer."""
    last = int(config["num_hidden_layers"])
    limits = {name: config[name][last:] for name in LIMITS if config.get(name)}
    return {"num_hidden_layers": 1, "first_k_dense_replace": 0, **limits}


def _one_layer_of_lists(config: Config) -> dict[str, Any]:
    """Step's configuration lists settings of each layer, and behind those of the last layer the settings of the
    heads."""
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
    """mlx-lm's class for MiMo V2 needs a layer of each type: the second one is not used."""
    return {"num_hidden_layers": 2, "hybrid_layer_pattern": [1, 0], "moe_layer_freq": [0, 0]}


def _one_layer_of_exaone(config: Config) -> dict[str, Any]:
    """EXAONE's configuration names the attention of the head apart from that of the layers; where it does not, the head
    has full attention. In models with sliding layers, layers of full attention have no rotary embeddings: the second
    layer, which is not used, is a sliding one if the model has any."""
    own = (config.get("mtp_layer_types") or ["full_attention"])[0]
    others = "sliding_attention" if "sliding_attention" in config["layer_types"] else "full_attention"
    window = (config.get("mtp_sliding_windows") or [0])[0] or config["sliding_window"]
    return {
        "num_hidden_layers": 2,
        "layer_types": [own, others],
        "is_moe_layer": [False, False],
        "sliding_window": window,
    }


def _one_dense_layer(config: Config) -> dict[str, Any]:
    return {"num_hidden_layers": 1, "moe_layer_start_index": 1}


def _one_dense_layer_of_deepseek(config: Config) -> dict[str, Any]:
    """LongCat's layers have two attentions each, and experts; its head is a layer of DeepSeek V3 without experts."""
    return {
        "model_type": "deepseek_v3",
        "architectures": [],
        "num_hidden_layers": 1,
        "num_key_value_heads": config["num_attention_heads"],
        "intermediate_size": config["ffn_hidden_size"],
        "n_routed_experts": None,
    }


def _as_stored(weights: Weights, config: Config) -> Weights:
    return weights


def _with_norms_from_one(weights: Weights, config: Config) -> Weights:
    """Step stores the weights of norms less one. mlx-lm detects that by names of other layers, which a head lacks."""
    if any(".moe." in name or ".share_expert." in name for name in weights):
        return weights
    return {
        name: array + 1 if "norm" in name and name.endswith(".weight") else array
        for name, array in weights.items()
    }


def _with_scaled_latents(weights: Weights, config: Config) -> Weights:
    """LongCat scales the latent vectors of its attention after their norms, which DeepSeek V3's layer does not. So the
    weights of these norms are scaled."""
    found = dict(weights)
    for kind in ("q", "kv"):
        name = f"{FIRST}self_attn.{kind}_a_layernorm.weight"
        if config[f"mla_scale_{kind}_lora"] and name in found:
            found[name] = found[name] * float((config["hidden_size"] / config[f"{kind}_lora_rank"]) ** 0.5)
    return found


def _under(prefix: str, parts: Mapping[str, str] | None = None) -> dict[str, str]:
    return {prefix: "", **{prefix + theirs: ours for theirs, ours in (parts or {}).items()}}


BEHIND: Final = "model.layers.{layers}."


@dataclass(frozen=True)
class Family:
    """How an architecture stores a head, and what it does otherwise than DeepSeek V3."""

    # Changes of the configuration, so that the first layer of a model is that of the head.
    layer: Callable[[Config], dict[str, Any]]
    # Prefixes of names in the checkpoint, and what DeepSeek V3 has in their place behind the number of the layer. The
    # longest that fits counts; weights without any are not the head's.
    names: Mapping[str, str]
    # Changes of the weights, under DeepSeek V3's names, before mlx-lm's `sanitize`.
    mended: Callable[[Weights, Config], Weights] = _as_stored
    embeddings: str = "embed_tokens"  # their name in the model
    states_first: bool = False  # the projection takes the state before the embedding
    before_norm: bool = False  # it reads states before the last norm, the model's and its own


DEEPSEEK: Final = Family(_one_layer_of_experts, _under(BEHIND))
LING: Final = Family(
    _one_layer_of_experts,
    _under(BEHIND, {"final_layernorm.": "shared_head.norm."}),
    embeddings="word_embeddings",
)
LONGCAT: Final = Family(
    _one_dense_layer_of_deepseek,
    {
        **_under(
            "model.mtp.layers.0.",
            {"enorm.m.": "enorm.", "hnorm.m.": "hnorm.", "transformer_layer.": ""},
        ),
        "model.mtp.norm.": "shared_head.norm.",
    },
    mended=_with_scaled_latents,
)

FAMILIES: dict[str, Family] = {
    "deepseek_v3": DEEPSEEK,
    "deepseek_v32": DEEPSEEK,
    "glm_moe_dsa": DEEPSEEK,
    "glm4_moe": DEEPSEEK,
    "glm4_moe_lite": DEEPSEEK,
    "mimo": Family(
        _one_layer,
        _under(
            "model.mtp_layers.0.",
            {
                "token_layernorm.": "enorm.",
                "hidden_layernorm.": "hnorm.",
                "input_proj.": "eh_proj.",
                "final_layernorm.": "shared_head.norm.",
            },
        ),
        states_first=True,
    ),
    "mimo_v2_flash": Family(
        _a_sliding_layer,
        _under(
            "model.mtp.layers.0.",
            {"final_layernorm.": "shared_head.norm.", "pre_mlp_layernorm.": "post_attention_layernorm."},
        ),
    ),
    "step3p5": Family(
        _one_layer_of_lists,
        _under(
            BEHIND,
            {
                "transformer.": "",
                "transformer.shared_head.output.": "shared_head.head.",
                "shared_head.output.": "shared_head.head.",
            },
        ),
        mended=_with_norms_from_one,
        before_norm=True,
    ),
    "exaone_moe": Family(
        _one_layer_of_exaone,
        {
            "mtp.layers.0.": "",
            "mtp.pre_fc_norm_embedding.": "enorm.",
            "mtp.pre_fc_norm_hidden.": "hnorm.",
            "mtp.fc.": "eh_proj.",
            "mtp.norm.": "shared_head.norm.",
        },
    ),
    "bailing_moe": LING,
    "bailing_hybrid": LING,
    "bailing_moe_v3": LING,
    "longcat_flash": LONGCAT,
    "longcat_flash_ngram": replace(LONGCAT, embeddings="ngram_embeddings.word_embeddings"),
    "ernie4_5_moe": Family(
        _one_dense_layer,
        {
            "model.mtp_block.0.": "",
            "model.mtp_emb_norm.0.": "enorm.",
            "model.mtp_hidden_norm.0.": "hnorm.",
            "model.mtp_linear_proj.0.": "eh_proj.",
            "model.norm.": "shared_head.norm.",  # the model's, which its head shares
        },
    ),
}
"""By the `model_type` of a checkpoint. Names and order are those of vLLM's `deepseek_mtp`, `glm4_moe_mtp`, `mimo_mtp`,
`step3p5_mtp`, `exaone_moe_mtp`, `bailing_moe_mtp`, `bailing_moe_v3_mtp` and `longcat_flash_mtp`, and of SGLang's
`mimo_v2_flash_nextn` and, for Ling 2.0, `bailing_moe_nextn`. ERNIE's names are those of vLLM's `ernie_mtp`; that the
model's last norm comes after its head, which vLLM leaves out, is in `ernie4_5_mtp` of FastDeploy, its publisher's own
server. That EXAONE's head has full attention is in `modeling_exaone_moe` of TensorRT-LLM. vLLM reads the head of
LongCat with n-grams as that of LongCat Flash, so it takes embeddings of words alone. Of several heads the first
drafts all of a chain."""

SPLIT_OFF: Final = {
    "glm4_moe_lite_mtp": (
        "glm4_moe_lite",
        Family(
            _one_layer_of_experts,
            {
                "model.mtp_block.": "",
                **{f"model.{part}.": f"{part}." for part in ("embed_tokens", "enorm", "hnorm", "eh_proj")},
                "model.shared_head_norm.": "shared_head.norm.",
                "lm_head.": "shared_head.head.",
            },
        ),
    ),
}
"""Heads in a folder of their own, by their `model_type`: the architecture of their model, and how they are stored.
mlx-vlm splits them off, and has no module that runs them."""


class Layer(nn.Module):  # type: ignore[misc] # mlx has no types
    """The parts of a head, without those that it shares with its model."""

    def __init__(self, family: Family, model: nn.Module, size: int) -> None:
        """`model`: one of mlx-lm whose first layer is the head's."""
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
        """Its own states [sequences, count, size] before the norm."""
        parts = [self.token_norm(embedded), self.state_norm(states)]
        joined = self.projection(mx.concatenate(parts[::-1] if self._states_first else parts, axis=-1))
        first = next(leaves([cache]))
        mask = create_attention_mask(joined, first, window_size=self._window, return_array=True)
        found: mx.array = self.layer(joined, mask, cache)
        return found


class LayerHead(DraftHead):
    """A layer behind the model's last one. It uses the model's embeddings, and its projection if it has none itself."""

    def __init__(self, inner: Layer, family: Family, config: Config) -> None:
        last = (int(config["num_hidden_layers"]) - 1,) if family.before_norm else None
        super().__init__(inner, int(config["hidden_size"]), last)
        self._before_norm = family.before_norm
        self._embeddings = family.embeddings
        self._embed: Any = None
        self._project: Any = None

    def share(self, model: nn.Module) -> None:
        self.share_parts(attrgetter(self._embeddings)(model.model), getattr(model, "lm_head", None))

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
    """Whether a folder of one of the `FAMILIES`, or of a head that was `SPLIT_OFF`, has the head. Raises `OSError`."""
    stored = _stored(folder, *_family_of(config))
    return any(ours.startswith("eh_proj.") for _, names in stored for ours in names.values())


def _family_of(config: Config) -> tuple[Family, Config]:
    """How a folder stores its head, and the configuration of the head's model."""
    name = config["model_type"]
    if name not in SPLIT_OFF:
        return FAMILIES[name], config
    architecture, family = SPLIT_OFF[name]
    return family, {**config["text_config"], "model_type": architecture}


def open_layer_head(folder: Path, config: Config) -> LayerHead:
    """The head in a folder for which `has_layer_head`, no array of it evaluated. Raises `ValueError`, `KeyError`,
    `TypeError` or `OSError` for what does not fit together."""
    family, config = _family_of(config)
    changed = {**config, **family.layer(config)}
    made, arguments = classes_of(changed)
    model = made(arguments.from_dict(changed))
    size = int(config["hidden_size"])
    stored, mode = _read(folder, family, config)
    stored = family.mended(_with_whole_latents(stored, config, mode), config)
    weights = _by_parts(_with_stacked_scales(model.sanitize(stored)))
    inner = Layer(family, model, size)
    if any(name.startswith("head.") for name in weights):
        inner.head = nn.Linear(size, int(config["vocab_size"]), bias=False)
    _quantize(inner, weights, mode)
    inner.load_weights(list(weights.items()))
    return LayerHead(inner, family, config)


def _stored(folder: Path, family: Family, config: Config) -> Iterator[tuple[Path, dict[str, str]]]:
    """The files that have weights of a head (`pippin convert` writes one for heads), and the names there, each with
    DeepSeek V3's name without the number of the layer."""
    prefixes = {
        theirs.format(layers=config.get("num_hidden_layers")): ours for theirs, ours in family.names.items()
    }
    longest_first = sorted(prefixes, key=len, reverse=True)
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            header = read_header(file)
        names: dict[str, str] = {}
        for name in header.arrays if header else ():
            prefix = next((each for each in longest_first if name.startswith(each)), None)
            if prefix is not None:
                names[name] = prefixes[prefix] + name.removeprefix(prefix)
        if names:
            yield path, names


def _read(folder: Path, family: Family, config: Config) -> tuple[Weights, str]:
    """A head's weights as they are stored, under names of the first layer, and the mode of those that are quantised."""
    weights: Weights = {}
    mode = "affine"
    for path, names in _stored(folder, family, config):
        loaded: Any = mx.load(str(path), return_metadata=True)
        arrays, metadata = loaded
        mode = metadata.get("mode", mode)
        weights |= {FIRST + ours: arrays[theirs] for theirs, ours in names.items()}
    return weights, mode


def _with_whole_latents(weights: Weights, config: Config, mode: str) -> Weights:
    """Unpacks `kv_b_proj`, which makes keys and values of latent vectors: mlx-lm's `sanitize` splits it, and reads it
    packed in one mode alone, or for some architectures in none."""
    found = dict(weights)
    for name in weights:
        stem, _, kind = name.rpartition(".")
        if kind != "scales" or not stem.endswith("kv_b_proj"):
            continue
        packed, scales = found.pop(f"{stem}.weight"), found.pop(name)
        biases = found.pop(f"{stem}.biases", None)
        columns = int(config["kv_lora_rank"])
        bits, group_size = packed.shape[-1] * 32 // columns, columns // scales.shape[-1]
        found[f"{stem}.weight"] = mx.dequantize(
            packed, scales, biases, group_size=group_size, bits=bits, mode=mode
        )
    return found


def _with_stacked_scales(weights: Weights) -> Weights:
    """With scales and biases of all experts in one array each, where `sanitize` has stacked packed weights alone."""
    found = dict(weights)
    for name in weights:
        before, _, rest = name.partition(".experts.0.")
        projection, _, kind = rest.rpartition(".")
        if kind in ("scales", "biases"):
            count = len(weights[f"{before}.switch_mlp.{projection}.weight"])
            each = [found.pop(f"{before}.experts.{number}.{rest}") for number in range(count)]
            found[f"{before}.switch_mlp.{rest}"] = mx.stack(each)
    return found


def _by_parts(weights: Weights) -> Weights:
    """The weights under the names of `Layer`, without the embeddings, which are the model's."""
    found: Weights = {}
    for name, array in weights.items():
        rest = name.removeprefix(FIRST)
        part, _, kind = rest.rpartition(".")
        if part in PARTS:
            found[f"{PARTS[part]}.{kind}"] = array
        elif part != "embed_tokens":
            found[f"layer.{rest}"] = array
    return found


def _quantize(module: nn.Module, weights: Mapping[str, mx.array], mode: str) -> None:
    """Quantise the layers whose weights are, with the bits and groups that the shapes show."""

    def settings(path: str, layer: nn.Module) -> dict[str, int | str] | bool:
        scales = weights.get(f"{path}.scales")
        if scales is None or not hasattr(layer, "to_quantized"):
            return False
        columns = layer.weight.shape[-1]
        bits = weights[f"{path}.weight"].shape[-1] * 32 // columns
        return {"group_size": columns // scales.shape[-1], "bits": bits, "mode": mode}

    nn.quantize(module, class_predicate=settings)
