"""The models behind embeddings and rerankers: encoders of mlx-vlm, and the bodies of language models."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import RotatingKVCache, make_prompt_cache

from pippin.core.errors import ServerError
from pippin.core.safetensors import weight_files
from pippin.engines.language.configuration import Config, rotary_tables, spelled_out, unread
from pippin.engines.language.kernels import ways
from pippin.engines.language.model.relatives import (
    PACKAGES,
    RELATIVES,
    as_transformers_has_it,
    complete,
    renamed,
    spelled_as_relative,
)
from pippin.engines.language.model.weights import Reading
from pippin.engines.language.upstream.library import infer_quant_config
from pippin.engines.language.upstream.stored import read_arrays, refuse_bytes
from pippin.engines.language.vision.model import VisionModel

ACTIVATIONS: Mapping[str, Callable[[mx.array], mx.array]] = {
    "gelu": nn.gelu,
    "gelu_new": nn.gelu_approx,
    "gelu_pytorch_tanh": nn.gelu_approx,
    "relu": nn.relu,
    "silu": nn.silu,
    "swish": nn.silu,
    "tanh": mx.tanh,
}
"""By transformers' names. mlx-vlm's classes have one of them each, whatever the configuration names."""

ASIDE = ("classifier.", "dense.", "score.")
"""How arrays of a language model begin that are no part of it: heads for scores, and EmbeddingGemma's Dense modules in
conversions to MLX."""

HEADS = ("classifier.weight", "classifier.out_proj.weight")

States = Callable[[mx.array, mx.array], mx.array]
"""Maps tokens [batch, length] and the lengths [batch] to states after the last norm [batch, length, hidden]."""


def is_encoder(config: Mapping[str, Any]) -> bool:
    """Whether mlx-vlm has an encoder of its own for a configuration; LFM2 is one where it attends both ways."""
    kind = config.get("model_type")
    return kind in PACKAGES and (kind != "lfm2" or attends_both_ways(config))


def attends_both_ways(config: Mapping[str, Any]) -> bool:
    """Whether the tokens of a decoder attend to those behind them too."""
    kind = config.get("model_type")
    names = [kind, *(config.get("architectures") or ())]
    return (
        config.get("is_causal") is False
        or _sees_all(config)
        or any("bidirec" in str(name).lower() for name in names)
        or kind == "eurobert"
        # Publishers have no other way to say it of these than code of their own.
        or (kind in ("lfm2", "ministral3") and bool(config.get("auto_map")))
    )


def _sees_all(config: Mapping[str, Any]) -> bool:
    """Whether `use_bidirectional_attention` counts, which transformers' other decoders do not read."""
    told = config.get("use_bidirectional_attention") in (True, "all")
    return told and config.get("model_type") in ("gemma3_text", "gemma4_text")


def _settle_layers(model: nn.Module, types: Sequence[str] | None) -> None:
    """Give ModernBERT's layers the types that the configuration lists: mlx-vlm has each third see everything."""
    for layer, kind in zip(model.layers, types or (), strict=bool(types)):
        layer.attn.local = kind == "sliding_attention"
        own = model.config.local_rope_theta if layer.attn.local else None
        layer.attn.rotary_emb.base = own or model.config.global_rope_theta


def encoder_of(folder: Path, config: Config, *, classifies: bool = False) -> nn.Module:
    """mlx-vlm's encoder of a folder, or its classifier with one label; its weights are not read yet.

    Raises `ImportError` without mlx-vlm, and `ValueError` for weights or settings that its class does not have.
    """
    config = spelled_out(as_transformers_has_it(config))
    kind = config["model_type"]
    package = importlib.import_module(f"mlx_vlm.models.{PACKAGES[kind]}")
    refuse_unread(config)
    if kind == "modernbert" and "sliding_window" in config:
        config["local_attention"] = 2 * config["sliding_window"]
    if kind in RELATIVES:
        config = spelled_as_relative(config)
    made = package.ModelConfig.from_dict({**config, "num_labels": 1})
    model: nn.Module = getattr(package, "SequenceClassificationModel" if classifies else "Model")(made)
    if kind in RELATIVES:
        complete(model, config, package, classifies=classifies)
    set_activations(model, config)
    if kind == "modernbert":
        _settle_layers(model, config.get("layer_types"))
    arrays = read_arrays(folder, config)
    arrays = model.sanitize(renamed(arrays, config, classifies=classifies) if kind in RELATIVES else arrays)
    labels = [arrays[name].shape[0] for name in HEADS if name in arrays] if classifies else [1]
    if labels != [1]:
        raise ValueError(f"it has {labels[0] if labels else 'no'} labels, and a reranker has one")
    if "quantization" in config:
        nn.quantize(
            model,
            class_predicate=lambda path, module: (
                f"{path}.scales" in arrays and infer_quant_config(path, module, arrays)
            ),
        )
    model.load_weights(list(arrays.items()), strict=True)
    refuse_bytes(model)
    model.eval()
    return model


def refuse_unread(config: Config) -> None:
    """Raises `ValueError` for settings that change what an encoder computes and that mlx-vlm's class does not read."""
    position = config.get("position_embedding_type") or "absolute"
    if position not in ("absolute", "rope", "sans_pos"):
        raise unread(f"position_embedding_type {position!r}")
    for name in ("is_decoder", "add_cross_attention"):
        if config.get(name):
            raise unread(f"{name} true")
    if config["model_type"] == "modernbert":
        ropes = [table.get("rope_type", "default") for table in rotary_tables(config).values()]
        if other := {*ropes} - {"default"}:
            raise unread(f"rope_type {other.pop()!r}")
        for name in ("local_attention", "sliding_window"):
            if type(width := config.get(name, 0)) is not int or width < 0:
                raise unread(f"{name} {width!r}")
        if (pooling := config.get("classifier_pooling", "cls")) not in ("cls", "mean"):
            raise unread(f"classifier_pooling {pooling!r}")


def set_activations(model: nn.Module, config: Config) -> None:
    """Raises `ValueError` for an activation that is not known."""
    field = "hidden_activation" if config["model_type"] == "modernbert" else "hidden_act"
    name = config.get(field) or "gelu"
    if name not in ACTIVATIONS:
        raise ValueError(f"the activation {name!r} is not computed here")
    for _, module in model.named_modules():
        if "intermediate_act_fn" in module:
            module.intermediate_act_fn = ACTIVATIONS[name]
        if "act" in module:
            # The head of a classifier has an activation of its own; mlx-vlm knows GELU alone there.
            module.act = ACTIVATIONS[name if "Wi" in module else "gelu"]


def body_of(folder: Path, config: Mapping[str, Any], *, trust_remote_code: bool = False) -> Reading:
    """How a language model is read of which the states count: without a head, where the folder has none."""
    changed: dict[str, Any] = {}
    if not any(name.startswith("lm_head.") for name in weight_files(folder).owners):
        changed["tie_word_embeddings"] = True
    if config.get("model_type") in ("eurobert", "llama_bidirec"):
        changed["model_type"] = "llama"
    return Reading(trust_remote_code=trust_remote_code, changed=changed, aside=ASIDE)


def arrays_aside(folder: Path, config: Config) -> dict[str, mx.array]:
    """The arrays of a folder that are no part of its language model, in float32."""
    if not any(name.startswith(ASIDE) for name in weight_files(folder).owners):
        return {}
    config = dict(config)
    found = {name: array for name, array in read_arrays(folder, config).items() if name.startswith(ASIDE)}
    settings: dict[str, Any] = config.get("quantization") or {}
    for name in [name for name in found if name.endswith(".scales")]:
        path = name.removesuffix(".scales")
        own: dict[str, Any] = settings.get(path) or settings
        packed = found.pop(f"{path}.weight"), found.pop(name), found.pop(f"{path}.biases", None)
        form = own["group_size"], own["bits"], own.get("mode", "affine")
        found[f"{path}.weight"] = mx.dequantize(*packed, *form)
    return {name: array.astype(mx.float32) for name, array in found.items()}


class BothWays:
    """Stands for a cache in one forward pass: each token attends to all tokens of its sequence, or, in layers with a
    window, to those at most `reach` away on both sides."""

    offset = 0

    def __init__(self, mask: mx.array, reach: int, *, everywhere: bool) -> None:
        """`everywhere`: whether each layer has a window, of which its class knows nothing."""
        self._mask = mask[:, None, None, :].astype(mx.bool_)
        self._reach, self._everywhere = reach, everywhere

    def make_mask(
        self, count: int, *, window_size: int | None = None, return_array: bool = False
    ) -> mx.array:
        """[batch, 1, 1 or length, length]; a padding token attends to itself, as the softmax of nothing is NaN."""
        if window_size is None and not self._everywhere:
            return self._mask
        places = mx.arange(count)
        away = mx.abs(places[:, None] - places[None])
        return (self._mask & (away <= self._reach)) | (away == 0)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        return keys, values


def hidden_states(name: str, model: nn.Module, config: Mapping[str, Any]) -> States:
    """A language model without its head. Padding is on the right. Raises `ServerError("load_failed")`."""
    text, pictured = config.get("text_config") or {}, isinstance(model, VisionModel)
    if attends_both_ways(text) or (pictured and attends_both_ways(config)):
        fields = "use_bidirectional_attention true and is_causal false"
        raise ServerError(
            "load_failed", f"{name}: {fields} are read of a model of text alone, which has no text_config."
        )
    if (decoder := ways.decoder_in(model)) is not None:
        return decoder.states
    if pictured:
        headless = model.without_head()
        return lambda tokens, _: headless(tokens)
    language = model.language_model if "language_model" in model else model
    if "model" not in language:
        raise ServerError(
            "load_failed", f"{name} gives no states that could be embedded; choose another model."
        )
    body, both = language.model, attends_both_ways(config)
    # How far a token sees in a layer with a window: `sliding_window` is both sides together where a configuration asks
    # for them with `use_bidirectional_attention`, as transformers reads it.
    reach = (config.get("sliding_window") or 0) // (2 if _sees_all(config) else 1)

    def states(tokens: mx.array, lengths: mx.array) -> mx.array:
        # Windows are those of the caches. Attention is causal, so no token attends to the padding on its right.
        cache: list[Any] = make_prompt_cache(model)
        if both:
            mask = mx.arange(tokens.shape[1]) < lengths[:, None]
            everywhere = all(isinstance(each, RotatingKVCache) for each in cache)
            cache = [BothWays(mask, reach, everywhere=everywhere)] * len(cache)
        found: mx.array = body(tokens, cache=cache)
        return found

    return states
