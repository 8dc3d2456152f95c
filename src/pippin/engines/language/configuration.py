"""A model's configuration in all spellings that the libraries read.

transformers 5 writes the settings of rotary positions into `rope_parameters`, or into one such table for each type of
layer. Most classes of mlx-lm and mlx-vlm read the older fields beside it, and take their defaults where these are
missing. Here each configuration gets the older fields, and others that it has under another name; a class takes those
that it knows.
"""

import inspect
import json
import re
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from pippin.core.published import table as object_of
from pippin.engines.language.kept import kept

Config = dict[str, Any]

BESIDE = ("rope_theta", "partial_rotary_factor")
"""Settings of `rope_parameters` that stand beside `rope_scaling` in the older spelling, and not in it."""

BASES = {
    "full_attention": ("rope_theta", "global_rope_theta", "rope_global_base_freq", "rotary_emb_base"),
    "sliding_attention": ("rope_local_base_freq", "local_rope_theta", "swa_rope_theta"),
    "main": ("rope_theta",),
    "compress": ("compress_rope_theta",),
}
"""The older fields for the base of a type of layer."""

ORIGINAL = "original_max_position_embeddings"
FROM_LENGTH = ("llama3", "yarn", "longrope")
"""Scalings that are told by the length of the texts that a model was trained with first."""


SECTIONS = ("mrope_section", "mrope_interleaved")
"""Settings of positions in several axes, scaled or not."""


def unread(what: str) -> ValueError:
    """The error for a setting that changes what a model computes, and that its class leaves out."""
    return ValueError(f"{what} is not read by the class of this architecture")


class Turns(Struct, frozen=True):
    """The rotary settings and other fields of a configuration and of its parts, as transformers' classes read them."""

    parts: dict[str, "Turns"]
    table: Config | None = None
    """`rope_parameters`; empty for a model that has no rotary settings, None for one that transformers can't tell."""
    types: list[str] | None = None
    """`layer_types`, which older files leave out."""
    taken: Config = {}
    """The other fields with what transformers takes for those that are missing."""
    refused: str | None = None
    """What is wrong with it, as a sentence."""


NONE: Final = Turns({})

MADE_OF: Final = {"mlp_layer_types": "first_k_dense_replace"}
"""Fields for each layer, which the libraries' classes make of another field where a file has that one."""

READ_ELSEWHERE = re.compile(
    r"rope|rotary|^_|_token|^(?:dtype|layer_types|model_type|tie_word_embeddings|vocab_size)$"
)
"""Fields with rules of their own."""

OF_WHOLE = frozenset({"hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers"})
"""Sizes without which a file is at fault; its parts may leave them out."""

OF_NULL = re.compile(r"Field '(\w+)' .*got NoneType")
"""What transformers says of a field that may not be null."""

OF_TRAINING = re.compile(
    r"Field '(\w*(?:dropout|initializer|_loss|token_id|use_cache)\w*)' (?!.*got NoneType)"
)
"""What it says of one with a wrong value that changes nothing here: the ids of tokens are read elsewhere."""

NULL = "{} is null in config.json, and needs a value"

UNREADABLE = (KeyError, ValueError, TypeError, ImportError, AttributeError, ArithmeticError)


def turns_of(config: Mapping[str, Any]) -> Turns:
    """What the class of an architecture makes of all spellings, and takes for granted where none is there."""
    return _turns_of(str(config.get("model_type")), json.dumps(config))


@cache
def _turns_of(kind: str, words: str) -> Turns:
    def ask() -> Turns:
        from huggingface_hub.errors import StrictDataclassError
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        given: Config = json.loads(words)
        # Where DBRX was published with its base, and where the base of others stays if only a scaling is added:
        # transformers 5 leaves out both.
        beside = given.get("attn_config") or (given.get("rope_scaling") and given.get("rope_parameters"))
        given = {**{name: value for name, value in object_of(beside).items() if name in BESIDE}, **given}
        # Phi-3's LongRoPE in its first files. transformers renames it behind its checks, which it does not pass.
        if object_of(given.get("rope_scaling")).get("type") == "su":
            given["rope_scaling"]["type"] = "longrope"
        try:
            with warnings.catch_warnings(action="ignore"):  # older spellings are read all the same
                return _turns(CONFIG_MAPPING[kind](**given), given)
        except (*UNREADABLE, StrictDataclassError) as error:
            text = str(error)
            if (idle := OF_TRAINING.search(text)) is not None and idle[1] in given:
                own = json.loads(words)
                del own[idle[1]]
                return _turns_of(kind, json.dumps(own))
            if (null := OF_NULL.search(text)) is not None:
                return Turns({}, refused=NULL.format(fields_of(given).names.get(null[1], null[1])))
            return Turns({}, refused=text.strip('"')) if "Missing required keys" in text else NONE

    return kept(Turns, ask, kind, words)


def _turns(made: Any, given: Config, apart: frozenset[str] = OF_WHOLE) -> Turns:
    parts = {name: getattr(made, name, None) for name, each in given.items() if isinstance(each, dict)}
    named = {name: part for name, part in parts.items() if hasattr(part, "sub_configs")}
    read = {name: _turns(part, given[name], frozenset()) for name, part in named.items()}
    text = made.get_text_config()
    if "text_config" in given:
        text = made
    elif text is not made:  # older files have the fields of the text model beside its parts
        text = type(text)(**given)
    taken = {
        name: value
        for name, value in vars(text).items()
        if isinstance(value, str | int | float | list | tuple | None)
        and not READ_ELSEWHERE.search(name)
        and name not in apart
    }
    if "rope_parameters" in type(text).__dataclass_fields__:
        return Turns(read, text.rope_parameters, getattr(text, "layer_types", None), taken)
    return Turns(read, None if made.sub_configs else {}, taken=taken)


def completed(config: Config) -> Config:
    """The configuration, and those of its parts, spelled out, with what transformers takes for missing fields. Raises
    `ValueError` for one that is null, or lacks a setting, where transformers refuses this."""
    turns = turns_of(config)
    # DBRX's base lies in a part that has no table.
    tables = [{**config[name], **(part.table or {})} for name, part in turns.parts.items()]
    tables += rotary_tables({"rope_parameters": turns.table}).values()
    # OLMo Hybrid does not turn where its base is null.
    turns_without = config.get("model_type") == "olmo_hybrid"
    null = not turns_without and any(table.get("rope_theta", "") is None for table in tables)
    if (refused := NULL.format("rope_theta") if null else turns.refused) is not None:
        raise ValueError(refused)

    def whole(config: Config, turns: Turns) -> Config:
        missing = {
            name: value
            for name, value in turns.taken.items()
            if config.get(name) in (None, []) and MADE_OF.get(name) not in config
        }
        return config | missing | {name: whole(config[name], part) for name, part in turns.parts.items()}

    return spelled_out(whole(config, turns), turns)


def spelled_out(config: Mapping[str, Any], turns: Turns | None = None) -> Config:
    """The configuration, and those of its parts, with rotary settings in the older fields as well, as transformers
    reads them in whichever fields they are."""
    turns = turns or turns_of(config)
    if turns.table is not None and not isinstance(config.get("rope_theta"), list):  # one for each layer
        config = {**config, "rope_parameters": turns.table, "rope_scaling": None}
        by_type = any(isinstance(each, dict) for each in turns.table.values())
        if by_type and turns.types and not (config.get("layer_types") or "sliding_window_pattern" in config):
            config["layer_types"] = turns.types
    found: Config = {}
    # Fields under the other names that transformers knows them by. It writes one of the two. Some map the size of a
    # head to that of its part which is turned: other classes read the whole size there.
    for other, name in fields_of(config).names.items():
        if name in config and other != "head_dim":
            found[other] = config[name]
    if (layers := config.get("per_layer_config")) is not None:
        # Gemma 4's sizes of layers that see all tokens; transformers writes those that differ for each layer.
        sizes = {**config, **next(iter(layers.values()), {})}
        full = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
        found |= {other: sizes[name] for name, other in full.items() if name in sizes}
    for name, each in config.items():
        part = name.endswith("config") and isinstance(each, dict)
        found[name] = spelled_out(each, turns.parts.get(name)) if part else each
    if (base := config.get("rope_theta")) is not None:
        found = {**dict.fromkeys(BASES["full_attention"], base), **found}
    tables = rotary_tables(config)
    if not tables:
        return found
    for kind, table in tables.items():
        found |= dict.fromkeys(BASES.get(kind, ()), table["rope_theta"]) if "rope_theta" in table else {}
    main = tables.get("full_attention") or tables.get("compress")
    return found if main is None else found | _fields(main, config)


class Fields(Struct, frozen=True):
    """The fields of transformers' class of an architecture."""

    names: dict[str, str]  # by their other names
    defaults: dict[str, str | int | float | bool | None]  # of the simple ones
    part_of_head: bool = True
    """Whether its model reads `partial_rotary_factor`."""


def fields_of(config: Mapping[str, Any]) -> Fields:
    """The fields of a configuration's architecture; none for one that transformers does not know."""
    return _fields_of(str(config.get("model_type")))


@cache
def _fields_of(kind: str) -> Fields:
    def ask() -> Fields:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        if kind not in CONFIG_MAPPING:
            return Fields({}, {})
        found: Any = CONFIG_MAPPING[kind]
        fields = ((name, field.default) for name, field in found.__dataclass_fields__.items())
        simple = {name: value for name, value in fields if isinstance(value, str | int | float | None)}
        model = Path(inspect.getfile(found).replace("configuration_", "modeling_"))
        reads = not model.is_file() or "partial_rotary_factor" in model.read_text("utf-8")
        return Fields(getattr(found, "attribute_map", {}), simple, reads)

    return kept(Fields, ask, kind)


def rotary_tables(config: Mapping[str, Any]) -> dict[str, Config]:
    """The rotary settings by type of layer, `full_attention` alone where all layers have the same; empty for a
    configuration that has none in a table. Types whose layers have no positions are left out."""
    scaling, parameters = (object_of(config.get(name)) for name in ("rope_scaling", "rope_parameters"))
    by_type = {name: dict(value) for name, value in parameters.items() if isinstance(value, dict)}
    if by_type:
        for table in by_type.values():
            # transformers reads this one setting of YaRN beside the tables alone.
            if "truncate" in {*table, *parameters}:
                table["truncate"] = parameters.get("truncate", True)
        if "full_attention" in by_type:
            by_type["full_attention"] |= scaling
        return by_type
    main = scaling or parameters
    if not main:
        return {}
    theta = {name: value for name, value in parameters.items() if name in BESIDE}
    return {"full_attention": {**theta, **main}}


def scaling_of(table: Mapping[str, Any], config: Mapping[str, Any]) -> Config:
    """What `rope_scaling` has for one table of a configuration; empty for positions that are not scaled."""
    scaling = {name: value for name, value in table.items() if name not in BESIDE and value is not None}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    scaling |= {"type": kind, "rope_type": kind}
    if kind in FROM_LENGTH:
        original = config.get(ORIGINAL) or scaling.get(ORIGINAL) or config.get("max_position_embeddings")
        scaling |= {ORIGINAL: original} if original else {}
        if original and "factor" in table and table["factor"] is None:
            scaling["factor"] = config["max_position_embeddings"] / original
    return {} if kind == "default" and len(scaling) == 2 else scaling


def unscaled(scaling: Mapping[str, Any]) -> Config | None:
    """What stays of `rope_scaling` for positions that are not scaled: the sections of several axes."""
    sections = {name: value for name, value in scaling.items() if name in SECTIONS}
    return {"type": "mrope", "rope_type": "mrope", **sections} if sections else None


def _fields(table: Config, config: Mapping[str, Any]) -> Config:
    """The older fields for a table of a configuration, but for its base."""
    scaling = scaling_of(table, config)
    found: Config = {"rope_scaling": scaling or None}
    if ORIGINAL in scaling:
        found[ORIGINAL] = scaling[ORIGINAL]
    if (part := table.get("partial_rotary_factor")) is not None:
        found |= {"partial_rotary_factor": part, "rotary_pct": part}
        size = head_size(config)
        if size is not None and "rotary_dim" not in config:
            found["rotary_dim"] = int(size * part)
    return found


def head_size(config: Mapping[str, Any]) -> int | None:
    """The size of one head, if the configuration tells it."""
    size, heads = config.get("hidden_size"), config.get("num_attention_heads")
    told = config.get("head_dim")
    if told is None and isinstance(size, int) and isinstance(heads, int) and heads:
        told = size // heads
    return told if isinstance(told, int) else None
