"""Chat templates: Jinja from a model's folder, run in a sandbox with limits."""

import datetime
import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

MOST_CHARACTERS = 64_000_000
MOST_SECONDS = 20.0
MOST_LOOPS = 1_000_000  # numbers that `range` gives in one rendering
MOST_WIDTH = 100_000  # of what one operation may make out of a number

_WIDTH = re.compile(r"\d{6,}")
_PADDING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})


class TemplateRefusal(Exception):
    """The template can't render this conversation; the text says why."""


class TemplateTooCostly(TemplateRefusal):
    """The template ran into a limit."""


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
        deadline = time.monotonic() + MOST_SECONDS
        values = {**self._special_names, **variables, "messages": messages, "range": _Ranges()}
        try:
            for piece in self._template.generate(values):
                pieces.append(piece)
                size += len(piece)
                if size > MOST_CHARACTERS or time.monotonic() > deadline:
                    raise TemplateTooCostly("it takes too long or grows too large")
        except TemplateTooCostly:
            raise
        except RecursionError:
            raise TemplateTooCostly("it nests too deep") from None
        except Exception as error:  # a template is a program: it may stumble over any shape of a conversation
            raise TemplateRefusal(str(error) or type(error).__name__) from error
        return "".join(pieces)


class _Ranges:
    """`range` with a budget for the whole rendering, since loops are what a template can hang in."""

    def __init__(self) -> None:
        self._left = MOST_LOOPS

    def __call__(self, *bounds: int) -> range:
        numbers = range(*bounds)
        self._left -= len(numbers)
        if self._left < 0:
            raise TemplateTooCostly("it loops too often")
        return numbers


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**", "%"})

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        match operator, left, right:
            case "**", _, _:
                raise TemplateTooCostly("it uses powers")
            case "*", str() | list() | tuple(), int(count) if count * len(left) > MOST_WIDTH:
                raise TemplateTooCostly("it repeats a text too often")
            case "*", int(count), str() | list() | tuple() if count * len(right) > MOST_WIDTH:
                raise TemplateTooCostly("it repeats a text too often")
            case "%", str(), _ if _WIDTH.search(left):
                raise TemplateTooCostly("it pads a text too far")
        return super().call_binop(context, operator, left, right)

    def call(
        self, context: jinja2.runtime.Context, called: Callable[..., Any], /, *given: Any, **named: Any
    ) -> Any:
        numbers = (*given, *named.values())
        if getattr(called, "__name__", "") in _PADDING and any(
            isinstance(n, int) and n > MOST_WIDTH for n in numbers
        ):
            raise TemplateTooCostly("it pads a text too far")
        return super().call(context, called, *given, **named)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's words for training; for us its contents stand as they are."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> jinja2.Environment:
    """With the filters and functions that transformers gives to chat templates."""
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
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
