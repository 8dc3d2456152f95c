"""Chat templates: Jinja from a model's folder, run in a sandbox with limits."""

import datetime
import json
from collections.abc import Iterator
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser

from pippin.engines.language.template.limits import (
    BUDGET,
    MOST_CHARACTERS,
    Budget,
    Sandbox,
    TemplateRefusal,
    TemplateTooCostly,
)


class ChatTemplate:
    """A compiled template. Safe for use from several threads at once."""

    def __init__(self, source: str, special_names: dict[str, str]) -> None:
        """Raises `jinja2.TemplateSyntaxError`."""
        self.source = source
        self._special_names = special_names
        self._template = _environment().from_string(source)

    def render(self, messages: list[dict[str, Any]], variables: dict[str, Any]) -> str:
        """The prompt's text. Raises `TemplateRefusal`, for what the template raises and for what it stumbles over."""
        pieces: list[str] = []
        size = 0
        budget = Budget()
        values = {
            **self._special_names,
            **variables,
            "messages": messages,
            "range": budget.range,
            BUDGET: budget,
        }
        try:
            for piece in self._template.generate(values):
                pieces.append(piece)
                size += len(piece)
                budget.check()
                if size > MOST_CHARACTERS:
                    raise TemplateTooCostly("its text grows too long")
        except TemplateTooCostly:
            raise
        except MemoryError:
            raise TemplateTooCostly("it takes too much memory") from None
        except RecursionError:
            raise TemplateTooCostly("it nests too deep") from None
        except Exception as error:  # a template is a program: it may stumble over any shape of a conversation
            raise TemplateRefusal(str(error) or type(error).__name__) from error
        return "".join(pieces)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's words for training; for us its contents stand as they are."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> Sandbox:
    """With the filters and functions that transformers gives to chat templates."""
    environment = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.add_filter("tojson", _to_json)
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _raise(message: str) -> None:
    raise TemplateRefusal(message)


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def named_templates(found: str | dict[str, str] | None) -> Iterator[tuple[str, str]]:
    """The templates of a folder by name; a single one is called `default`."""
    match found:
        case str():
            yield "default", found
        case dict():
            yield from found.items()
