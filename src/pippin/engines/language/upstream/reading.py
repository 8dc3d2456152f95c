"""Models of mlx-vlm, made from configurations that are spelled out, and turned as these say."""

import copy
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import mlx.nn as nn

from pippin.core.published import object_in
from pippin.core.safetensors import INDEX
from pippin.engines.language.configuration import NONE, Config, completed, rotary_tables, turns_of, unread
from pippin.engines.language.upstream.classes import replaced
from pippin.engines.language.upstream.fields import (
    ENCODING,
    names_read,
    refuse_left_out,
    refuse_order,
    refuse_unlike,
)
from pippin.engines.language.upstream.mends import SHARED, make_of, mends
from pippin.engines.language.upstream.newest import for_mlx_vlm, in_columns, in_its_family, renamed, taken
from pippin.engines.language.upstream.quantised import Arrays, settle_bits
from pippin.engines.language.upstream.rotary import complete, turning
from pippin.engines.language.upstream.stored import (
    OF_HEAD,
    read_arrays,
    refuse_lost_head,
    sanitized,
    with_head,
)


def _spelling_out(read: Callable[..., Any]) -> Callable[..., Any]:
    def spelling_out(*given: Any, **named: Any) -> Any:
        found = read(*given, **named)
        return for_mlx_vlm(found) if isinstance(found, dict) else found

    return spelling_out


def _settling_bits(load: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    def settling_bits(
        model: nn.Module, config: Config, weights: Arrays, *given: Any, **named: Any
    ) -> nn.Module:
        settle_bits(model, weights, config)
        return load(model, config, weights, *given, **named)

    return settling_bits


def _keeping_scales(sanitize: Callable[..., Arrays]) -> Callable[..., Arrays]:
    return lambda model, weights, *given: sanitized(lambda found: sanitize(model, found, *given), weights)


CHANGED = (
    ("mlx_vlm.utils", "load_config", _spelling_out),
    ("mlx_vlm.speculative.drafters", "_read_drafter_config", _spelling_out),
    ("mlx_vlm.utils", "load_model_weights", _settling_bits),
)
"""mlx-vlm's functions that read a config.json, as its loaders call them, since these take no configuration that was
read, and the one that packs modules; and what changes each."""

TEXT_PARTS = ("text_config", "language_config", "llm_config")
"""Where families have the configuration of their text model, if not beside its parts."""

PARTS = ("text", "vision", "perceiver", "projector", "audio")

OF_LAYER = re.compile(r"vis.*\.(?:layers?|blocks|resblocks)\.\d+\.")
"""Where a model has the parts of its encoder's layers."""

OF_PROJECTOR = re.compile(r"project|connector|merger")
"""Where it has what makes features of the encoder's numbers."""

QUERYING = ("perceiver", "qformer")
"""Parts, by their names in models and in configurations, that ask an encoder's numbers for features."""

FORMS = {
    "gelu": "none",
    "quick_gelu": "fast",
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh"), "precise"),
}
"""MLX's forms of GELU by transformers' names."""


CODED = {
    **dict.fromkeys(
        ("glm4v", "glm4v_moe", "glm_ocr", "mimo_v2", "mistral3", "pixtral", "qwen2_5_vl"), ("silu",)
    ),
    **dict.fromkeys(("hunyuan_vl", "muse_glimmer", "muse_spark"), ("gelu",)),
    "molmo2": ("gelu_pytorch_tanh",),
    "minimax_m3_vl": ("gelu", "quick_gelu", "silu"),
    "step3p7": ("gelu", "quick_gelu"),
}
"""The activations of encoders that are no module of their family's class."""

OTHER_NORMS: dict[str, tuple[re.Pattern[str], float | None]] = {
    "mllama": (re.compile(r"vision_tower\.layernorm_"), 1e-5),
    **dict.fromkeys(("minicpmv4_6", "minicpmv4_7"), (re.compile(r"vit_merger\."), None)),
    **dict.fromkeys(
        ("muse_glimmer", "muse_spark"), (re.compile(r"vision_tower\.layers\.\d+\.norm[12]"), 1e-5)
    ),
}
"""The norms of a family that have another epsilon than in its class: one that is fixed, or that of the encoder."""


def _narrow(config: Config) -> str:
    window: int = (config.get("text_config") or {}).get("sliding_window") or 0
    narrow = 0 < window < (config.get("mm_tokens_per_image") or 256)
    return "sliding_window of text_config that is less than the tokens of a picture" if narrow else ""


def _stacked(config: Config) -> str:
    layers = [layer for _, layer in config.get("deepstack_layer_map") or ()]
    layers += config.get("spatial_target_layers") or ()
    twice = len({*layers}) < len(layers)
    return "deepstack_layer_map or spatial_target_layers that names one layer twice" if twice else ""


def _unlike(part: str, usual: Callable[[Config], Config]) -> Callable[[Config], str]:
    """Names the first field of a part that is there and is not as usual."""

    def named(config: Config) -> str:
        said: Config = config.get(part) or {}
        other = (name for name, value in usual(said).items() if said.get(name) not in (None, value))
        return next((f"{name} {json.dumps(said[name])} of {part}" for name in other), "")

    return named


def _of_heads(vision: Config) -> Config:
    """No implementation reads `window_size`, which MiMo's published folders have alike."""
    groups = vision.get("num_heads", 32) // vision.get("num_key_value_heads", 8)
    return {"num_query_groups": groups, "kv_channels": vision.get("qk_channels", 64), "window_size": 128}


def _of_molmo(config: Config) -> str:
    scaled = _unlike(
        "text_config", lambda text: {"rope_scaling_layers": list(range(text.get("num_hidden_layers", 36)))}
    )
    parts = {**config, **(config.get("vision_config") or {})}
    return scaled(config) or _unlike("adapter_config", lambda _: {"hidden_act": "silu"})(parts)


OTHERWISE: dict[str, Callable[[Config], str]] = {
    "gemma3": _narrow,
    "granite4_vision": _stacked,
    "mimo_v2": _unlike("vision_config", _of_heads),
    "molmo2": _of_molmo,
    "paligemma": _unlike("text_config", lambda _: {"use_bidirectional_attention": True}),
    "qwen4_exp": _unlike("text_config", lambda _: {"hidden_act": "silu"}),
    "step3p7": _unlike("text_config", lambda text: {"query_pre_attn_scalar": text.get("head_dim", 128)}),
}
"""By family, names what a configuration says for which its class takes something else; else nothing."""


def reading_spelled_out() -> AbstractContextManager[None]:
    """Within this context mlx-vlm's loaders read configurations in all spellings, and pack modules as they are
    stored."""
    imported = (each for each in CHANGED if each[0] in sys.modules)
    return replaced(*((sys.modules[path], name, change) for path, name, change in imported))


@contextmanager
def _reading_stored(folder: Path) -> Iterator[None]:
    """Within this context mlx-vlm's `load_model` gets the arrays of `read_arrays`, and the settings that go with them.
    Raises `ValueError` as that does."""
    import mlx_vlm.utils

    config = mlx_vlm.utils.load_config(folder)
    if "weight_map" in (index := object_in(folder / INDEX)) and index["weight_map"] is None:
        raise ValueError(f"its {INDEX} names no files: delete that file")
    arrays = in_columns(read_arrays(folder, config, vision=True), config)
    heads = {name: array for name, array in arrays.items() if OF_HEAD.search(name)}
    load: Callable[..., nn.Module] = mlx_vlm.utils.load_model_weights

    def once(path: str) -> Arrays:
        found = dict(arrays)
        arrays.clear()
        return found

    def load_weights(
        model: nn.Module, config: Config, weights: Arrays, *given: Any, **named: Any
    ) -> nn.Module:
        refuse_lost_head(model, weights, config)
        weights = _without_biases(model, with_head(model, renamed(model, weights), config, heads), config)
        return load(model, config, weights, *given, **named)

    with replaced(
        (mlx_vlm.utils, "load_config", lambda _: lambda *given, **named: config),
        (mlx_vlm.utils, "_load_safetensors", lambda _: once),
        (mlx_vlm.utils, "sanitize_weights", _keeping_scales),
        (mlx_vlm.utils, "load_model_weights", lambda _: load_weights),
    ):
        yield


def _without_biases(model: nn.Module, weights: Arrays, config: Config) -> Arrays:
    """The arrays without those that a projector of LLaVA's does not have by its configuration, where the class has them
    always; and the model without them."""
    if config.get("multimodal_projector_bias") is not False:
        return weights
    lost = set()
    for name, module in model.named_modules():
        if OF_PROJECTOR.search(name) and isinstance(module, nn.Linear) and "bias" in module:
            del module["bias"]
            lost.add(f"{name}.bias")
    return {name: array for name, array in weights.items() if name not in lost}


def load_model(folder: Path, **settings: Any) -> nn.Module:
    """mlx-vlm's `load_model`. Raises what that does, and `ValueError` for rotary settings that its class leaves out."""
    import mlx_vlm.utils

    with reading_spelled_out(), _reading_stored(folder):
        model = mlx_vlm.utils.load_model(folder, **settings)
    published = mlx_vlm.utils.load_config(folder)
    own, config = in_its_family(published), in_its_family(completed(published))
    model.config.published = own  # classes of configurations leave out what some mends read
    named = next((name for name in TEXT_PARTS if rotary_tables(config.get(name) or {})), None)

    def make(changed: Config) -> nn.Module:
        return _language(_made(taken(changed if named is None else {**config, named: changed}, own)))

    text = config if named is None else config[named]
    complete(_language(model), text, make)
    for part, settings in turning(_language(model), text):
        make_of(mends("mlx_vlm", SHARED), part, settings)
    _refuse_left_out(model, config)
    activation = _activation(published)
    if activation is not None and activation not in CODED.get(str(own.get("model_type")), (activation,)):
        raise unread(f"hidden_act {activation!r} of vision_config")
    _complete_encoder(model, {OF_LAYER: activation, OF_PROJECTOR: config.get("projector_hidden_act")})
    parts = turns_of(published).parts
    vision = parts.get("vision_config", NONE)
    said = {name: parts.get(f"{name}_config", NONE).taken for name in QUERYING}
    _norm_encoder(model, {**said, "vis": vision.taken}, config.get("projection_layer_norm_eps"))
    if (published.get("vision_config") or {}).keys() & {"rope_theta", "rope_parameters"}:
        _turn_encoder(model, rotary_tables({"rope_parameters": vision.table}))
    return model


class _Read:
    """Which of some fields the code of a model reads. No source is parsed before somebody asks."""

    def __init__(self, names: set[str], model: nn.Module) -> None:
        self._names = names
        self._model = model

    def __contains__(self, name: object) -> bool:
        kinds = {kind for each in self._model.modules() for kind in type(each).__mro__}
        modules = {kind.__module__ for kind in kinds if kind.__module__.startswith(("mlx_lm.", "mlx_vlm."))}
        return name in self._names and any(name in names_read(module) for module in modules)


def _refuse_left_out(model: nn.Module, config: Config) -> None:
    """Raises `ValueError` for a field that changes what a model computes and that its class lacks."""
    named = [name for name in TEXT_PARTS if isinstance(config.get(name), dict)]
    read = model.config
    for text, held in [(config[name], getattr(read, name, None)) for name in named] or [(config, read)]:
        if is_dataclass(held):
            taken = _Read({each.name for each in fields(held)}, _language(model))
            refuse_left_out(text, taken)
            if text.get("layer_types"):
                refuse_order(text, taken, "sliding_window_pattern", "sliding_attention")
        if text.get("model_type") == "llama4_text":
            _refuse_other_layers(text)
    other = OTHERWISE.get(str(config.get("model_type")))
    if other is not None and (what := other(config)):
        raise unread(what)
    gelus = [name for name, module in model.named_modules() if type(module) is nn.GELU]
    names = [*ENCODING, *(() if any(map(OF_PROJECTOR.search, gelus)) else ("projector_hidden_act",))]
    # Granite 4's layers are told by a map of its own.
    if "deepstack_layer_map" not in config:
        names += ["vision_feature_layer", "vision_feature_select_strategy"]
    coded = any(map(OF_LAYER.search, gelus)) or config.get("model_type") in CODED
    encoding = (*ENCODING, "activation_function", "hidden_act", "hidden_activation")
    parts = [name for name in config if name.endswith("_config") and name not in TEXT_PARTS]
    others = [(name, ENCODING if coded and name == "vision_config" else encoding) for name in parts]
    for name, own in [("", names), *others]:
        part, held = (config.get(name), getattr(read, name, None)) if name else (config, read)
        if isinstance(part, dict) and is_dataclass(held):
            usual = {each.name: each.default for each in fields(held) if name and each.default is not MISSING}
            refuse_unlike(part, _Read({each.name for each in fields(held)}, model), own, usual)
    for name in QUERYING:
        refuse_unlike(config.get(f"{name}_config") or {}, (), ("hidden_act",))


def _refuse_other_layers(config: Config) -> None:
    """Raises `ValueError` for layers of Llama 4 that are not as in its class: each fourth sees all and does not turn,
    and one expert answers."""
    turning = [int(place % 4 != 0) for place in range(1, config["num_hidden_layers"] + 1)]
    kinds = ["chunked_attention" if turns else "full_attention" for turns in turning]
    known = {"no_rope_layers": turning, "layer_types": kinds, "num_experts_per_tok": 1}
    for name, value in known.items():
        if config.get(name) not in (None, [], value):
            raise ValueError(f"{name} {config[name]!r} is not read by the class of this architecture")


def _norm_encoder(model: nn.Module, parts: Mapping[str, Config], projecting: float | None) -> None:
    """Give the norms of an encoder of pictures, and of what follows it, the epsilon of their part of the configuration,
    which classes read for some of them, if at all; and those of a projector theirs."""
    read = getattr(getattr(model.config, "vision_config", None), "layer_norm_eps", None)
    kinds = {nn.LayerNorm: "layer_norm_eps", nn.RMSNorm: "rms_norm_eps"}
    others = OTHER_NORMS.get(model.config.model_type)
    for name, module in model.named_modules():
        part = next((part for part in parts if name.startswith(part) or f".{part}" in name), None)
        if part not in QUERYING and OF_PROJECTOR.search(name):
            epsilon = projecting if type(module) is nn.LayerNorm else None
        else:
            usual = read if name.endswith("post_layernorm") else None
            epsilon = parts.get(part or "", {}).get(kinds.get(type(module), ""), usual)
        if others and others[0].match(name):
            epsilon = others[1] or parts["vis"].get("layer_norm_eps")
        if epsilon is not None and hasattr(module, "eps"):
            module.eps = epsilon


def _complete_encoder(model: nn.Module, activations: Mapping[re.Pattern[str], str | None]) -> None:
    """Give an encoder of pictures and what follows it their activations, which many classes have in one form. Raises
    `ValueError` for an activation that is no GELU where the class has one."""
    for name, module in model.named_modules():
        said = next((said for places, said in activations.items() if said and places.search(name)), None)
        if said is not None and type(module) is nn.GELU:
            if said not in FORMS:
                raise ValueError(f"the activation {said!r} of {name} is not read by the class of this family")
            module._approx = FORMS[said]


def _turn_encoder(model: nn.Module, tables: Mapping[str, Config]) -> None:
    """Give the encoder of pictures the base of its rotary settings, which many classes leave at the usual one. Raises
    `ValueError` for another base that the family's class does not read."""
    theta = tables.get("full_attention", {}).get("rope_theta")
    if theta is None:
        return
    turning = [
        (module, base)
        for name, module in model.named_modules()
        for base in ("theta", "theta_base")
        if name.startswith("vis") and hasattr(module, base)
    ]
    for module, base in turning:
        setattr(module, base, theta)
    read = vars(getattr(model.config, "vision_config", None) or object)
    if not turning and theta != 10000 and not {"rope_theta", "rope_parameters"} & read.keys():
        raise ValueError(f"rope_theta {theta} of vision_config is not read by the class of this family")


def _activation(config: Config) -> str | None:
    """The activation of the encoder of pictures: that of its configuration, or its usual one in transformers."""
    part = config.get("vision_config")
    # Molmo 2's lies beside that of what follows the encoder.
    part = next((each["vit_config"] for each in (config, part or {}) if "vit_config" in each), part)
    if not isinstance(part, dict) or "hidden_act" in part:
        return part.get("hidden_act") if isinstance(part, dict) else None
    return turns_of(config).parts.get("vision_config", NONE).taken.get("hidden_act")


def _language(model: nn.Module) -> nn.Module:
    found = getattr(model, "language_model", model)
    return found if isinstance(found, nn.Module) else model  # some models have only a view of theirs


def _made(config: Config) -> nn.Module:
    """mlx-vlm's model of a configuration, as its `load_model` makes it, without weights."""
    import mlx_vlm.utils

    config = copy.deepcopy(config)
    config.setdefault("text_config", config.pop("llm_config", {}))
    config = {"vision_config": {}, "audio_config": {}, **config}
    package, _ = mlx_vlm.utils.get_model_and_args(config)
    made = mlx_vlm.utils.update_module_configs(package.ModelConfig.from_dict(config), package, config, PARTS)
    model: nn.Module = package.Model(made)
    return model
