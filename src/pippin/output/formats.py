"""The formats that Pippin knows, read from their tables and looked up by name or by chat template."""

import importlib
import pkgutil
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from pippin.core.decoding import convert, from_json
from pippin.core.errors import ServerError
from pippin.output import tool_parsers
from pippin.output.reader import Formats
from pippin.output.reasoning_formats import FORMATS, ReasoningFormat
from pippin.output.tool_format import ToolFormat
from pippin.output.tool_parsers.auto import any_calls

Format = TypeVar("Format", ToolFormat, ReasoningFormat)


def tool_format(name: str) -> ToolFormat:
    """The format with that name or alias. Raises `ServerError`, which lists the names."""
    return _known(tool_formats(), "tool-call format", name)


def reasoning_format(name: str) -> ReasoningFormat:
    """The format with that name or alias. Raises `ServerError`, which lists the names."""
    return _known(reasoning_formats(), "reasoning format", name)


def detect(template: str, architecture: str | None = None) -> Formats:
    """The formats that a chat template uses: among those that match, the ones with the highest priority.

    If the template has no tool calls, the format is the one that models of the architecture were trained to write.
    """
    tools = [found for found in _distinct(tool_formats()) if found.matches(template)]
    if not tools and "tools" not in template:
        tools = [found for found in _distinct(tool_formats()) if architecture in found.architectures]
    thinking = [found for found in _distinct(reasoning_formats()) if found.matches(template)]
    return Formats(
        tools=max(tools, key=lambda found: found.priority, default=None),
        reasoning=max(thinking, key=lambda found: found.priority, default=None),
    )


def _distinct(formats: dict[str, Format]) -> list[Format]:
    return [found for name, found in formats.items() if name == found.name]


@cache
def tool_formats() -> dict[str, ToolFormat]:
    """All formats of calls by their names and aliases: the rows of `tool_formats.json`, each of a class of
    `tool_parsers/`, whose `CODED` has what is no text in them."""
    notations: dict[str, type[ToolFormat]] = {}
    coded: dict[str, dict[str, Any]] = {}
    for each in pkgutil.iter_modules(tool_parsers.__path__):
        module = vars(importlib.import_module(f"{tool_parsers.__name__}.{each.name}"))
        notations |= {name: held for name, held in module.items() if isinstance(held, type)}
        coded |= module.get("CODED", {})
    found: list[ToolFormat] = []
    for row in from_json(Path(__file__).with_name("tool_formats.json").read_bytes(), list[dict[str, Any]]):
        notation = notations[row.pop("notation")]
        form = convert(row, notation)
        told = {} if "signs" in row else {"signs": (form.openers[:1],)}
        found.append(replace(form, **told, **coded.get(form.name, {})))
    return _by_name(sorted((any_calls(_by_name(found)), *found), key=lambda form: form.name))


@cache
def reasoning_formats() -> dict[str, ReasoningFormat]:
    return _by_name(FORMATS.values())


def _by_name(found_formats: Iterable[Any]) -> dict[str, Any]:
    formats: dict[str, Any] = {}
    for found in found_formats:
        for name in (found.name, *found.aliases):
            if name in formats:
                raise ValueError(f"two formats are called {name!r}: {formats[name].name} and {found.name}")
            formats[name] = found
    return formats


def _known(formats: dict[str, Format], what: str, name: str) -> Format:
    found = formats.get(name.strip().lower().replace("-", "_"))
    if found is None:
        names = ", ".join(sorted(formats))
        raise ServerError("invalid_request", f"There is no {what} {name!r}. Known are: {names}.")
    return found
