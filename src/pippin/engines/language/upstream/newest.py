"""Checkpoints of vision-language models as transformers 5 writes them, in the form that mlx-vlm's families read: the
fields of config.json, and the names of the weights."""

import copy
import inspect
from collections.abc import Iterator
from typing import Any

import mlx.nn as nn
from mlx.utils import tree_flatten

from pippin.engines.language.configuration import (
    BESIDE,
    UNREADABLE,
    Config,
    completed,
    fields_of,
    rotary_tables,
    scaling_of,
    unscaled,
)
from pippin.engines.language.upstream.fields import with_pattern
from pippin.engines.language.upstream.quantised import Arrays
from pippin.engines.language.upstream.rotary import PLAIN

CLASSES = {"text_config": "TextConfig", "vision_config": "VisionConfig", "audio_config": "AudioConfig"}
"""A family's classes of the configurations of its parts."""

OF_PART = {
    ("llava", "vision_config", "pixtral"): "pixtral",
    ("llava_next", "text_config", "granite"): "granite_vision",
}
"""Families of mlx-vlm that transformers has as another with one of its parts: by that, the part and its type."""


def in_its_family(config: Config) -> Config:
    """The configuration with the type by which mlx-vlm has the family, and the parts that this has."""
    vision, adapter = config.get("vision_config"), config.get("adapter_config")
    if config.get("model_type") == "molmo2" and isinstance(vision, dict) and isinstance(adapter, dict):
        adapter = {**adapter, "vit_layers": adapter.get("vision_feature_layer", adapter.get("vit_layers"))}
        return {**config, "vision_config": {"vit_config": vision, "adapter_config": adapter}}
    for (kind, name, own), family in OF_PART.items():
        part = config.get(name)
        if config.get("model_type") == kind and isinstance(part, dict) and part.get("model_type") == own:
            return {**config, "model_type": family}
    return config


def for_mlx_vlm(config: Config) -> Config:
    """The configuration in all spellings, as the classes of its family take it."""
    return taken(in_its_family(completed(config)), in_its_family(config))


def taken(spelled: Config, config: Config) -> Config:
    """A spelled-out configuration as the classes of its family read it: older fields for newer ones, and none that is
    missing in `config` and that nobody takes, since some families give a class all fields of its part."""
    import mlx_vlm.utils

    flat = not any(isinstance(config.get(part), dict) for part in CLASSES)
    try:
        package, _ = mlx_vlm.utils.get_model_and_args(config)
    except UNREADABLE:
        return with_pattern(spelled) if flat else spelled
    if flat:
        return with_pattern(spelled) | _whole_table(spelled, package.ModelConfig)
    if "text_config" not in config:
        spelled = _readable(spelled, getattr(package, "TextConfig", None))
    found, least = dict(spelled), dict(spelled)
    for part, name in CLASSES.items():
        held, own, kind = spelled.get(part), config.get(part), getattr(package, name, None)
        if isinstance(held, dict) and isinstance(own, dict) and inspect.isclass(kind):
            fields = inspect.signature(kind).parameters
            held = _of_part(held, own, kind, str(config.get("model_type")))
            found[part] = {name: value for name, value in held.items() if name in fields or name in own}
            least[part] = {name: value for name, value in held.items() if name in fields}
    # Families scale features of pictures by the first, which is another's beside the parts, or missing.
    size = (spelled.get("text_config") or {}).get("hidden_size")
    beside = {"hidden_size": size, "vision_start_token_id": config.get("image_start_token_id")}
    own = inspect.signature(package.ModelConfig).parameters
    beside = {name: value for name, value in beside.items() if name in own and value is not None}
    found, least = found | beside, least | beside
    return next((_raised(each, read) for each in (found, least) if (read := _read(each, package))), found)


def _readable(config: Config, kind: Any) -> Config:
    """The configuration of a text model without a scaling of positions that its class refuses, and that the model gets
    afterwards."""
    scaling = config.get("rope_scaling") or {}
    try:
        if scaling and kind is not None:
            kind.from_dict(copy.deepcopy(config))
    except ValueError:
        return {**config, "rope_scaling": unscaled(scaling)}
    except UNREADABLE:  # for other reasons, which its loader tells
        return config
    return config


def _of_part(config: Config, given: Config, kind: type, family: str) -> Config:
    """The spelled-out configuration of a part, which was `given` so, for its class."""
    found, fields = with_pattern(config), inspect.signature(kind).parameters
    if "rope_parameters" not in fields and "rope_theta" in fields:
        found.pop("rope_parameters", None)
    found |= _whole_table(config, kind)
    if found.get("rope_scaling", {}) is None:  # a class may have sections of positions there
        del found["rope_scaling"]
    scaling = found.get("rope_scaling") or {}
    if family == "hunyuan_vl" and "mrope_section" in scaling:
        kind_of = scaling.get("rope_type")
        named = {"type": "xdrope" if kind_of in PLAIN else kind_of}
        found["rope_scaling"] = {**scaling, **named, "xdrope_section": scaling["mrope_section"]}
    found = _readable(found, kind)
    if family == "qwen4_exp":
        # The class wants these sizes of layers with an index where there are no such layers too.
        for name in [each for each in found if each.startswith("indexer") and found[each] is None]:
            del found[name]
        indexed = {"indexed_attention": "qwen_sparse_attention"}
        found["layer_types"] = [indexed.get(kind, kind) for kind in found.get("layer_types") or []] or None
        if "output_gate_type" in fields:
            found["output_gate_type"] = found.get("output_gate_type") or found.get("hidden_act")
    if family == "llama4" and "vision_feature_layer" in fields:
        found.setdefault("vision_feature_layer", -1)
    if family == "step3p7":
        found |= _of_step(config, given)
    # transformers 5 gives an encoder a type of its own, where families know the name of their class alone.
    own = fields["model_type"].default if "model_type" in fields else None
    if isinstance(own, str) and found.get("model_type") == f"{family}_vision":
        found["model_type"] = own
    return found


def _whole_table(config: Config, kind: type) -> Config:
    """`rope_parameters` for a class that reads this table alone, and may require all of its own: from the older fields,
    or with what transformers takes for granted."""
    field = getattr(kind, "__dataclass_fields__", {}).get("rope_parameters")
    usual = field.default_factory() if field is not None and callable(field.default_factory) else {}
    if "partial_rotary_factor" in usual and fields_of(config).part_of_head and fields_of(config).defaults:
        usual["partial_rotary_factor"] = 1.0
    tables = rotary_tables(config) or {"full_attention": {}}
    table = {name: config[name] for name in BESIDE if config.get(name) is not None} | tables.get(
        "full_attention", {}
    )
    known = config.get("rope_parameters") and usual.keys() - {"type", "rope_type"} <= table.keys()
    # A class of windows may have a table for each type of layers, which it makes of other fields.
    windows = not usual and "sliding_window" in inspect.signature(kind).parameters
    own = len(tables) == 1 and not windows and not any(isinstance(each, dict) for each in usual.values())
    if field is None or not table or known or not own or usual.get("rope_type") == "yarn":
        return {}
    beside = {name: value for name, value in table.items() if name in BESIDE}
    return {"rope_parameters": {**usual, **scaling_of(table, config), **beside}}


ENCODER_OF_STEP = {
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "ls_init_value": "layer_scale_init_value",
}


def _of_step(config: Config, given: Config) -> Config:
    """The fields of a part of Step 3.7 as it was published: its own names for the encoder's sizes, and lists for the
    layers of text where transformers has tables by their types."""
    found = {name: config[other] for name, other in ENCODER_OF_STEP.items() if other in config}
    tables, types = rotary_tables(config), config.get("layer_types")
    published = "num_key_value_heads" not in given
    if published or not types or any(kind not in tables for kind in types):
        return found
    # The heads of all layers have gates, which the published fields tell.
    found = {"use_head_wise_attn_gate": True, "yarn_only_types": ["full_attention"]}
    found["rope_theta"] = [tables[kind]["rope_theta"] for kind in types]
    found["partial_rotary_factors"] = [tables[kind].get("partial_rotary_factor", 1.0) for kind in types]
    dense = enumerate(config.get("mlp_layer_types") or ())
    found["moe_layers_enum"] = [place for place, kind in dense if kind == "sparse"]
    found["attention_other_setting"] = {
        "num_attention_heads": config.get("num_sliding_attention_heads") or config["num_attention_heads"],
        "num_attention_groups": config["num_key_value_heads"],
    }
    return found


def _read(config: Config, package: Any) -> Config:
    """The configuration as a family's class leaves it when it has read it; empty where it can't."""
    given = copy.deepcopy(config)
    try:
        package.ModelConfig.from_dict(given)
    except UNREADABLE:
        return {}
    return given


def _raised(config: Config, read: Config) -> Config:
    """The fields of the text model beside its part as well, for a family whose class reads those alone."""
    text, left = config.get("text_config"), read.get("text_config")
    if not isinstance(text, dict) or not isinstance(left, dict):
        return config
    return {**text, **config} if "hidden_size" in text and "hidden_size" not in left else config


def in_columns(arrays: Arrays, config: Config) -> Arrays:
    """The arrays with fused experts as they are published, [experts, inputs, outputs], where transformers 5 has saved
    them as [experts, outputs, inputs] and the family's class knows the first."""
    size = (config.get("text_config") or {}).get("hidden_size")
    if config.get("model_type") != "qwen3_vl_moe":  # the one family whose class turns them
        return arrays
    rows = [name for name in arrays if name.endswith(".experts.down_proj") and arrays[name].shape[-1] != size]
    others = {each for name in rows for each in (name, name.replace("down_proj", "gate_up_proj"))}
    return {name: array.swapaxes(1, 2) if name in others else array for name, array in arrays.items()}


def renamed(model: nn.Module, arrays: Arrays) -> Arrays:
    """The arrays, which the model's class has changed, by the names of its parameters.

    transformers moves a module one level up or down between its versions. So an array that no parameter is named by
    gets the name of the one that has none, if that is its own with one word more or less, and if it is the only such.
    """
    parameters = dict(tree_flatten(model.parameters()))
    lacking = {name: value.shape for name, value in parameters.items() if name not in arrays}
    shorter: dict[str, list[str]] = {}
    for name in lacking:
        for each in _without_a_word(name):
            shorter.setdefault(each, []).append(name)
    modules = {name.rpartition(".")[0] for name in parameters}
    taken_by: dict[str, list[str]] = {}
    for name, array in arrays.items():
        if name in parameters or name.rpartition(".")[0] in modules:
            continue
        others = {*shorter.get(name, ()), *(each for each in _without_a_word(name) if each in lacking)}
        fitting = [each for each in others if lacking[each] == array.shape]
        if len(fitting) == 1:
            taken_by.setdefault(fitting[0], []).append(name)
    names = {own[0]: name for name, own in taken_by.items() if len(own) == 1}
    return {names.get(name, name): array for name, array in arrays.items()}


def _without_a_word(name: str) -> Iterator[str]:
    words = name.split(".")
    return (".".join(words[:place] + words[place + 1 :]) for place in range(len(words) - 1))
