"""The records of what is mended in the libraries' models, and how a model gets its mends."""

import importlib
import importlib.util
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
from msgspec import Struct

from pippin.engines.language.configuration import (
    Config,
    completed,
    fields_of,
    rotary_tables,
    unread,
    unscaled,
)
from pippin.engines.language.upstream import windows
from pippin.engines.language.upstream.classes import become
from pippin.engines.language.upstream.fields import filled, refuse_left_out, refuse_unread
from pippin.engines.language.upstream.library import get_classes
from pippin.engines.language.upstream.rotary import complete, turning

LIBRARIES = ("mlx_lm", "mlx_vlm")
SHARED = "rope_utils"
"""The module that the architectures of a library share, and that has mends."""

SIZES = re.compile("dim|experts$|heads|rank|size")
"""In the names of fields that hold a size."""

Arrays = dict[str, mx.array]


def _nothing(module: nn.Module, config: Mapping[str, Any] | None = None) -> None:
    """Leave a module as it is."""


class Mend(Struct, frozen=True, kw_only=True):
    """What is mended in the modules of one class of a library. The weights of a loaded model stay where they are."""

    original: type
    kind: Literal["fault", "batching"] = "fault"
    """A fault: wrong numbers or a crash in the library itself, for which `patches/` has one. Batching: right there, but
    for one sequence alone, or without taking tokens back."""
    why: str
    loaded: Callable[[Any], None] = _nothing
    """What is done to each module of exactly this class when the weights are loaded."""
    made: Callable[[Any, Mapping[str, Any]], None] = _nothing
    """What is done to it before that, by config.json."""
    issue: str = ""
    """The address of the library's issue or pull request; empty where none is known."""
    fixed_in: str = ""
    """The library's first release that has it right, with which the mend goes; empty while there is none."""


def exchanged(own: type, why: str, kind: Literal["fault", "batching"] = "fault", issue: str = "") -> Mend:
    """The record of a class of ours, put in the place of the library's class that it descends from: its last base."""
    return Mend(
        original=own.__bases__[-1], kind=kind, why=why, loaded=lambda module: become(module, own), issue=issue
    )


Answer = Callable[[Any, mx.array], mx.array]
"""What an MLP computes."""


def by_tanh(original: type, answer: Answer) -> Mend:
    """The record of an MLP that has to compute GELU by tanh, as `answer` does."""
    why = "the activation is the exact GELU, and not that by tanh"
    return exchanged(type("ByTanh", (original,), {"__call__": answer}), why)


def exact_where(original: type, field: str, usual: str, answer: Answer) -> Mend:
    """The record of an MLP that has to compute the exact GELU where a field of its configuration names that."""
    own = type("Exact", (original,), {"__call__": answer})

    def made(module: Any, config: Mapping[str, Any]) -> None:
        if config.get(field, usual) == "gelu":
            become(module, own)

    return Mend(original=original, why=f"`{field}` is not read", made=made)


def storing(change: Callable[[Any, Arrays], Arrays]) -> Callable[[Any, Mapping[str, Any]], None]:
    """What has a model change the arrays of a checkpoint before its class reads them: `made` of a mend."""

    def made(model: Any, _: Mapping[str, Any]) -> None:
        sanitize = getattr(model, "sanitize", lambda arrays: arrays)
        model.sanitize = lambda arrays: sanitize(change(model, arrays))

    return made


def renamed(arrays: Arrays, parts: Mapping[str, str]) -> Arrays:
    """The arrays by names with other parts."""
    found: Arrays = {}
    for name, array in arrays.items():
        for part, own in parts.items():
            name = name.replace(part, own)
        found[name] = array
    return found


def renaming(original: type, parts: Mapping[str, str]) -> Mend:
    """The record of a model whose class has other names for what a checkpoint stores."""
    why = f"names with {', '.join(f'`{each}`' for each in parts)} are not read"
    return Mend(original=original, why=why, made=storing(lambda _, arrays: renamed(arrays, parts)))


def with_epsilon(kind: Any, field: str, usual: float) -> Callable[[Any, Mapping[str, Any]], None]:
    """What gives a model's norms of this class the small number in a field of its configuration: `made` of a mend."""

    def made(model: Any, config: Mapping[str, Any]) -> None:
        for module in model.modules():
            if type(module) is kind:
                module.eps = config.get(field, usual)

    return made


def mends(library: str, name: str) -> tuple[Mend, ...]:
    """The records of an architecture or family. Imports nothing else of its library."""
    path = f"{__package__}.{library}.{name}"
    if library not in LIBRARIES or importlib.util.find_spec(path) is None:
        return ()
    found: tuple[Mend, ...] = importlib.import_module(path).MENDS
    return found


def _mends_of(kind: type) -> tuple[Mend, ...]:
    """The mends for models of a class `mlx_lm.models.<architecture>.Model`, or one of mlx-vlm's."""
    parts = kind.__module__.split(".")
    return mends(parts[0], parts[2]) if len(parts) > 2 else ()


def mend(model: nn.Module) -> None:
    """Mend a model that a library has loaded, if there is anything to mend."""
    # A family's text model may be another architecture's.
    inner = getattr(getattr(model, "language_model", None), "model", None)
    for found in {_mends_of(type(each)) for each in (model, inner)}:
        apply(found, model)


def apply(found: tuple[Mend, ...], model: nn.Module) -> None:
    """Mend a model, or a draft head that is made of another model's parts."""
    loaded = {each.original: each.loaded for each in found}
    for module in model.modules():
        loaded.get(type(module), _nothing)(module)


def make_of(found: tuple[Mend, ...], model: nn.Module, config: Config) -> None:
    """Mend a model without weights by its configuration."""
    made = {each.original: each.made for each in found}
    for module in model.modules():
        made.get(type(module), _nothing)(module, config)


def classes_of(config: Config) -> tuple[Any, Any]:
    """What makes a model and its arguments by a configuration, for mlx-lm's `load_model`. Raises `ValueError`, as what
    makes the model does where its class cannot do what the configuration says."""
    model_class, kind = get_classes(config)
    arguments = Arguments(kind)
    mended, shared = _mends_of(model_class), mends("mlx_lm", SHARED)
    taken = kind.__dataclass_fields__

    def plain(given: Any, changed: Config) -> nn.Module:
        try:
            model: nn.Module = model_class(given)
        except (ValueError, IndexError, StopIteration) as error:
            # Many classes look for the first layer of each type, in a list or a text.
            kinds = {*((changed.get("text_config") or changed).get("layer_types") or ())}
            sought = type(error) is not ValueError or str(error).endswith(("in list", "not found"))
            if len(kinds) != 1 or not sought:
                raise
            raise unread(f"layer_types of {kinds.pop()} alone") from error
        except ZeroDivisionError as error:
            usual, sizes = fields_of(changed).defaults, [name for name in changed if SIZES.search(name)]
            zeros = (name for name in sizes if changed[name] == 0 and usual.get(name) != 0)
            raise unread(" or ".join(f"{name} 0" for name in zeros) or "a size of 0") from error
        make_of(mended, model, changed)
        return model

    def make(given: Any) -> nn.Module:
        # What is stored has settled the ties of `config` by now, without which classes make no other model.
        whole = completed(config)
        text = whole.get("text_config") or {}
        nested = bool(rotary_tables(text))

        def make_other(changed: Config) -> nn.Module:
            other = {**whole, "text_config": changed} if nested else changed
            return plain(arguments.of_spelled_out(other), other)

        model = plain(given, config)
        complete(model, text if nested else whole, make_other)
        for part, own in turning(model, {**whole, **text} if nested else whole):
            make_of(shared, part, own)
        windows.complete(model, whole, taken)
        refuse_unread(whole, taken)
        refuse_left_out(text, _taken_of(text))
        return model

    return make, arguments


def _taken_of(text: Config) -> Collection[str]:
    """The fields that mlx-lm takes of a text model; all of one whose type is no architecture of its own."""
    try:
        found: Collection[str] = get_classes(text)[1].__dataclass_fields__
    except (ValueError, KeyError):
        return text
    return found


class Arguments(Struct, frozen=True):
    """mlx-lm's class of a model's arguments, from configurations in all spellings."""

    kind: Any

    def from_dict(self, config: Config) -> Any:
        return self.of_spelled_out(completed(config))

    def of_spelled_out(self, config: Config) -> Any:
        required = [
            each.name for each in fields(self.kind) if each.default is each.default_factory is MISSING
        ]
        found = filled(config, required)
        try:
            return self.kind.from_dict(found)
        except ValueError:
            if not found.get("rope_scaling"):
                raise
            # The class refuses this scaling, which the model gets afterwards.
            return self.kind.from_dict({**found, "rope_scaling": unscaled(found["rope_scaling"])})
