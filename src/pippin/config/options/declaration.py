"""Every option as a value, derived from the option structs: the source of flags, variables, keys and docs."""

from functools import cache
from typing import Any, Literal

import msgspec
from msgspec import Struct, inspect

from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ServerOptions
from pippin.config.options.start import StartOptions

Scope = Literal["start", "server", "model"]
Shape = Literal["switch", "value", "list", "mapping"]

STRUCTS: dict[Scope, type[Struct]] = {"start": StartOptions, "server": ServerOptions, "model": ModelOptions}
SECRET = frozenset(("api_keys", "web_search"))  # the address of a search may hold a key
STRUCTURAL = ("models", "model_defaults", "fallbacks")  # filled in from other options and profiles

SECTIONS: dict[str, str] = {
    "config": "Where options come from",
    "model": "Models to serve",
    "host": "Address and log",
    "model_dirs": "Finding models",
    "max_models": "Memory and the pool",
    "api_keys": "Access",
    "timeout": "Limits",
    "media_fetch": "Media from outside",
    "response_store": "Stored responses, batches and MCP",
    "dtype": "How weights run",
    "context_length": "Prompt and window",
    "max_tokens": "Limits and sampling defaults",
    "max_num_seqs": "Scheduling",
    "prefix_cache": "Prefix cache",
    "kv_bits": "KV quantisation and speculation",
    "min_pixels": "Images in prompts",
    "embedding_max_length": "Other kinds of model",
    "pinned": "Life in the pool",
    "ranks": "One model over several processes or machines",
}
"""Group titles, keyed by the first option of each group."""


class Option(Struct, frozen=True, kw_only=True):
    name: str
    scope: Scope
    section: str
    type: Any
    shape: Shape
    default: Any
    help: str
    flag: str
    hot: bool
    expects: str  # "a whole number from 0 to 65535"
    choices: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        return "PIPPIN_" + self.name.upper()


@cache
def options() -> dict[str, Option]:
    """All options by name, in order of declaration. Names are unique across the structs."""
    found: dict[str, Option] = {}
    section = ""
    for scope, struct in STRUCTS.items():
        for field in msgspec.structs.fields(struct):
            if field.name in STRUCTURAL:
                continue
            if field.name in found:
                raise TypeError(f"two structs declare the option {field.name}")
            section = SECTIONS.get(field.name, section)
            found[field.name] = _option(field, scope, section)
    return found


def _option(field: Any, scope: Scope, section: str) -> Option:
    declared = inspect.type_info(field.type)
    if isinstance(declared, inspect.UnionType):  # msgspec takes no bounds for a number or None together
        declared = declared.types[0]
    if not isinstance(declared, inspect.Metadata):
        raise TypeError(f"the option {field.name} has no help: say what it is `about`")
    marks = declared.extra or {}
    default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    shape, expects, choices = _described(declared.type)
    return Option(
        name=field.name,
        scope=scope,
        section=section,
        type=field.type,
        shape=shape,
        default=default,
        help=(declared.extra_json_schema or {})["description"],
        flag=marks.get("flag", "--" + field.name.replace("_", "-")),
        hot=marks.get("hot", False),
        expects=expects,
        choices=choices,
    )


def _described(kind: inspect.Type) -> tuple[Shape, str, tuple[str, ...]]:
    """The shape of values of a type, what they are in words, and the choices where there are some."""
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    first = next(each for each in kinds if not isinstance(each, inspect.NoneType))
    match first.type if isinstance(first, inspect.Metadata) else first:
        case inspect.BoolType():
            return "switch", "true or false", ()
        case inspect.IntType(ge=low, le=high, gt=above, lt=below):
            return "value", "a whole number" + _range(low, high, above, below), ()
        case inspect.FloatType(ge=low, le=high, gt=above, lt=below):
            return "value", "a number" + _range(low, high, above, below), ()
        case inspect.LiteralType(values=values):
            choices = tuple(map(str, values))
            return "value", "one of " + ", ".join(choices), choices
        case inspect.VarTupleType(item_type=item):
            return "list", "a list, each item " + _described(item)[1], ()
        case inspect.DictType(value_type=inspect.StrType()):
            return "mapping", "NAME=VALUE pairs", ()
        case inspect.DictType():
            return "mapping", "a JSON object", ()
        case _:
            return "value", "text", ()


def _range(low: float | None, high: float | None, above: float | None, below: float | None) -> str:
    if low is not None and high is not None:
        return f" from {low} to {high}"
    words = [
        f"{word} {limit}"
        for word, limit in (("at least", low), ("above", above), ("at most", high), ("below", below))
        if limit is not None
    ]
    return " " + " and ".join(words) if words else ""
