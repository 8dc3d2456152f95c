"""Renders chat templates, the Jinja programs of model folders, in a sandbox with limits."""

import datetime
import json
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser

from pippin.engines.language.template.sandbox import (
    BUDGET,
    MOST_CHARACTERS,
    Budget,
    Sandbox,
    TemplateRefusal,
    TemplateTooCostly,
)


class ChatTemplate:
    """A compiled template. Several threads may render it at once."""

    def __init__(self, source: str, special_names: dict[str, str]) -> None:
        """`special_names` are the template's variables for special tokens. Raises `jinja2.TemplateSyntaxError`."""
        self.source = source
        self._special_names = special_names
        self._template = _environment().from_string(source)

    def render(self, messages: list[dict[str, Any]], variables: dict[str, Any]) -> str:
        """Render a conversation. Raises `TemplateRefusal` for an error of the template or a limit that it exceeds."""
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
        except Exception as error:
            # A template is a program, and may raise anything for a conversation that it was not written for.
            raise TemplateRefusal(str(error) or type(error).__name__) from error
        return "".join(pieces)


class _Generation(jinja2.ext.Extension):
    """The tag `{% generation %}`, which marks the assistant's words for training, renders its contents unchanged."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> Sandbox:
    """A sandbox with the filters and functions that transformers gives to chat templates."""
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
