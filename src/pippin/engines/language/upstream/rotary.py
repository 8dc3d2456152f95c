"""Whether a model turns its queries and keys as its configuration says, and what is done where its class does not.

Some classes of the libraries take a scaling of positions, or the part of a head that is turned, and leave it out. It is
found by making the model again from a configuration without the setting: if its rotary modules are the same, the class
does not read it. No weight is read for this.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.rope_utils import SuScaledRoPE, YarnRoPE, initialize_rope

from pippin.engines.language.configuration import (
    BESIDE,
    ORIGINAL,
    Config,
    fields_of,
    head_size,
    rotary_tables,
    scaling_of,
    unread,
    unscaled,
)

NAMES = ("rope", "rotary")
"""Parts of the names of classes that turn queries and keys."""

TURNS_NOTHING = {"_no_grad", "_training", "rope_type"}
"""Fields of modules that do not tell how they turn: some keep the type of a scaling that they leave out."""

PLAIN = (None, "default", "mrope", "dynamic")
"""Types of `rope_scaling` that scale nothing. `dynamic` does so behind `max_position_embeddings` only, where the window
ends."""

SERVED = "served_window"
"""A field of configurations, made here: the most tokens of a sequence."""

USUAL_PART = {"mimo_v2_flash": 0.334}
"""The part of a head that a type's plain layers turn where their table does not say so, if it is not the whole."""

Make = Callable[[Config], nn.Module]
"""Makes a model by a configuration in one spelling."""


def complete(model: nn.Module, config: Config, make: Make) -> None:
    """Have a model without weights turn queries and keys as its configuration says, where its class leaves that out.

    `config` is spelled out and has the rotary settings at its top. Raises `ValueError` where neither can be done.
    """
    tables = rotary_tables(config)
    types = tables if len(tables) == 1 else config.get("layer_types") or tables
    used = {kind: table for kind, table in tables.items() if kind in types}
    main = used.get("full_attention", {})
    scaling = scaling_of(main, config)
    kind, plain = scaling.get("rope_type"), {"rope_scaling": unscaled(scaling)}
    plain |= _in_tables(config, {"rope_type": "default", "type": "default"})
    for layer, own in turning(model, config):
        if layer is not model:
            _turn_layer(layer, own)
    if kind not in PLAIN and (other := _made(make, {**config, **plain})):
        pairs = any(getattr(each, "traditional", False) for _, _, each in rotary_modules(other))
        if len(tables) == 1 and (kind == "proportional" or (kind == "longrope" and pairs)):
            raise unread(f"rope_scaling of the type {kind!r}")
        if fingerprint(other) == fingerprint(model):
            _scale(model, config, scaling, alone=len(tables) == 1)
    part = main.get("partial_rotary_factor")
    whole = {"partial_rotary_factor": 1.0, "rotary_pct": 1.0}
    whole |= _in_tables(config, {"partial_rotary_factor": 1.0})
    ignored = not fields_of(config).part_of_head and kind in (None, "default")
    if part is not None and not ignored and (other := _made(make, {**config, **whole})) is not None:
        _refuse_other_part(model, config, part, other)
    _take_bases(model, used)
    _refuse_one_for_all(model, config, used)


def turning(model: nn.Module, config: Config) -> Iterator[tuple[nn.Module, Config]]:
    """The parts of a model that turn alike, each with the configuration that has its rotary settings in the older
    fields: the whole, or its layers where these have tables by their types. `config` is as in `complete`."""
    tables, types = rotary_tables(config), config.get("layer_types") or ()
    if len(tables) < 2 or not types or not {*types} <= tables.keys():
        yield model, config
        return
    for layer, kind in zip(getattr(model, "layers", ()), types, strict=False):
        table = tables[kind]
        yield layer, {**config, **table, "rope_parameters": table, "rope_scaling": scaling_of(table, config)}


def _turn_layer(layer: nn.Module, config: Config) -> None:
    """Put modules that turn as `config` says in the places of those that a class made for layers of another type."""
    scaling, base = config["rope_scaling"], config.get("rope_theta")
    kind, table, size = scaling.get("rope_type"), config["rope_parameters"], head_size(config) or 0
    found = None if kind in PLAIN else {**table, **scaling}
    usual = USUAL_PART.get(str(config.get("model_type")), 1.0) if kind is None else 1.0
    part = table.get("partial_rotary_factor", usual)
    for parent, name, each in list(rotary_modules(layer)):
        if base is None or not isinstance(getattr(each, "dims", None), int):
            continue
        if kind == "proportional" and each.dims < size:
            raise unread("rope_scaling of the type 'proportional'")
        # Some types of layers have larger heads, which turn whole.
        own_size = kind == "proportional" or "qk_rope_head_dim" in config or (part == 1 and each.dims > size)
        dims = each.dims if own_size else int(size * part)
        own = initialize_rope(dims, base, each.traditional, found, config["max_position_embeddings"])
        if _described(own) != _described(each):
            setattr(parent, name, own)


def _in_tables(config: Config, changes: Config) -> Config:
    """`rope_parameters` with these changes in its table, or in those of all types of layers."""
    parameters = config.get("rope_parameters")
    if not isinstance(parameters, dict):
        return {}
    by_type = {name: {**value, **changes} for name, value in parameters.items() if isinstance(value, dict)}
    return {"rope_parameters": {**parameters, **(by_type or changes)}}


def _made(make: Make, config: Config) -> nn.Module | None:
    """The model of another configuration; None where its class needs what that lacks."""
    try:
        return make(config)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _scale(model: nn.Module, config: Config, scaling: Config, *, alone: bool) -> None:
    """Put scaled modules in the places of plain ones, or give modules of several axes scaled frequencies."""
    found, bases = list(rotary_modules(model)), _bases(model)
    base = config.get("rope_theta") or next(iter(bases), None)
    of_axes = all(hasattr(each, "_inv_freq") and hasattr(each, "attention_scaling") for _, _, each in found)
    # Some classes turn by another function, which they give the base of their module alone.
    codes = [getattr(type(parent).__call__, "__code__", None) for parent, _, _ in found]
    by_base = any("base" in code.co_names for code in codes if code is not None)
    if not alone or base is None or by_base or not (len(bases) == 1 or (found and of_axes)):
        raise unread(f"rope_scaling of the type {scaling['rope_type']!r}")
    for parent, name, each in found:
        dims = 2 * each._inv_freq.size if of_axes else each.dims
        traditional = not of_axes and each.traditional
        scaled = initialize_rope(dims, base, traditional, scaling, config.get("max_position_embeddings"))
        if type(scaled) is YarnRoPE:
            complete_yarn(scaled, config)
        elif type(scaled) is SuScaledRoPE:
            complete_long(scaled, config)
        if not of_axes:
            setattr(parent, name, scaled)
            continue
        plain = type(scaled) is nn.RoPE
        each._inv_freq = scaled.scale * each._inv_freq if plain else 1 / scaled._freqs
        each.attention_scaling = float(getattr(scaled, "mscale", getattr(scaled, "_scale", 1.0)))
        # mlx-vlm's kernel for Metal, which turns both at once, leaves the factor out.
        if each.attention_scaling != 1.0:
            each.fused_apply = False


def complete_yarn(rope: Any, config: Mapping[str, Any]) -> None:
    """Have a module of either library turn by all that the configuration, spelled out, says (transformers'
    `_compute_yarn_parameters`)."""
    base, scaling = config.get("rope_theta"), config.get("rope_scaling") or {}
    if "factor" not in scaling:
        return
    factor, one, two = scaling["factor"], scaling.get("mscale"), scaling.get("mscale_all_dim")

    def grown(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1 if factor > 1 else 1.0

    given = scaling.get("attention_factor")
    usual = grown(one) / grown(two) if one and two else grown(1)
    rope.mscale = float(usual if given is None else given)
    if base is None or scaling.get("truncate", True):
        return

    def dimension(turns: float) -> float:
        """Which dimension turns so often within the length that the model was trained with first."""
        return float(rope.dims * math.log(scaling[ORIGINAL] / (turns * 2 * math.pi)) / (2 * math.log(base)))

    low = max(dimension(scaling.get("beta_fast") or 32), 0)
    high = min(dimension(scaling.get("beta_slow") or 1), rope.dims - 1)
    slow = mx.clip((mx.arange(rope.dims // 2) - low) / ((high - low) or 0.001), 0, 1)
    wavelengths = base ** (mx.arange(0, rope.dims, 2, dtype=mx.float32) / rope.dims)
    rope._freqs = 1 / (slow / (factor * wavelengths) + (1 - slow) / wavelengths)


def complete_long(rope: Any, config: Mapping[str, Any]) -> None:
    """Have a module scale by what the configuration, spelled out, says, and not by the ratio of its windows alone
    (transformers' `_compute_longrope_parameters`)."""
    base, scaling = config.get("rope_theta"), config.get("rope_scaling") or {}
    factor, original = scaling.get("factor"), scaling.get(ORIGINAL)
    if scaling.get("attention_factor") is not None:
        rope._scale = float(scaling["attention_factor"])
    elif factor is not None and original is not None:
        rope._scale = math.sqrt(1 + math.log(max(factor, 1.0)) / math.log(original))
    # Keys in a cache cannot be turned again, so that the window decides for all lengths, as in vLLM and llama.cpp.
    if base is not None and original is not None and config.get(SERVED, math.inf) <= original:
        plain = base ** (mx.arange(0, rope.dim, 2, dtype=mx.float32) / rope.dim)
        rope._freqs = mx.array(scaling["short_factor"]) * plain


def _refuse_other_part(model: nn.Module, config: Config, part: float, whole: nn.Module) -> None:
    """`whole`: the model that turns all of each head."""
    size = None if fingerprint(whole) != fingerprint(model) else head_size(config)
    turned = {
        each.dims for _, _, each in rotary_modules(model) if isinstance(getattr(each, "dims", None), int)
    }
    if size is None or not turned or "qk_rope_head_dim" in config or int(size * part) in turned:
        return
    raise ValueError(
        f"partial_rotary_factor {part} is not read by the class of this architecture, which turns "
        f"{', '.join(map(str, sorted(turned)))} of {size} numbers of a head"
    )


def _take_bases(model: nn.Module, tables: Mapping[str, Config]) -> None:
    """Give plain modules, which tell their base, that of a table that all layers have. Raises `ValueError` for one that
    no module has."""
    bases = _bases(model)
    for kind, table in tables.items():
        theta = table.get("rope_theta")
        if theta and len(tables) == len(bases) == 1:
            for _, _, each in rotary_modules(model):
                each.base = theta
        elif bases and theta is not None and float(theta) not in bases:
            raise unread(f"rope_theta {theta} of {kind}")


def _bases(model: nn.Module) -> set[float]:
    """The bases of modules that are all plain ones; none of others."""
    modules = [each for _, _, each in rotary_modules(model)]
    return {float(each.base) for each in modules} if all(type(each) is nn.RoPE for each in modules) else set()


def _refuse_one_for_all(model: nn.Module, config: Config, tables: Mapping[str, Config]) -> None:
    """Raises `ValueError` if types of layers are to turn in different ways, and all modules turn in the same."""
    wanted = {repr(sorted(_essence(table, config).items())) for table in tables.values()}
    if len(wanted) > 1 and len(set(map(repr, fingerprint(model)))) == 1:
        raise ValueError(
            f"rope_parameters for {' and '.join(tables)} are read as one by the class of this architecture"
        )


def _essence(table: Config, config: Config) -> Config:
    return {**{name: table.get(name) for name in BESIDE}, **scaling_of(table, config)}


def rotary_modules(model: nn.Module) -> Iterator[tuple[nn.Module, str, Any]]:
    """Each with the module that holds it, and its name there. Not all are modules of MLX."""
    turns: dict[type, bool] = {}
    for parent in model.modules():
        for name, value in [*vars(parent).items(), *parent.items()]:
            kind = type(value)
            if kind not in turns:
                turns[kind] = any(part in kind.__name__.lower() for part in NAMES)
            if turns[kind]:
                yield parent, name, value


def fingerprint(model: nn.Module) -> list[Any]:
    """What tells how the modules turn."""
    return [_described(each) for _, _, each in rotary_modules(model)]


def _described(each: Any) -> Any:
    own = {**vars(each), **(dict(each.items()) if isinstance(each, nn.Module) else {})}
    return type(each).__name__, {
        name: _plain(value) for name, value in own.items() if name not in TURNS_NOTHING
    }


def _plain(value: Any) -> Any:
    if isinstance(value, mx.array):
        return value.astype(mx.float32).tolist()
    return value if isinstance(value, bool | int | float | str | list | tuple) else None
