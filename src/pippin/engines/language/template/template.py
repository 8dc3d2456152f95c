"""Renders chat templates, the Jinja programs of model folders, in a sandbox with limits.

Templates come from whoever published the model, and a few characters of one can ask for terabytes of memory or loop for
ever. So the sandbox checks the cost of loops, calls and operations beforehand.
"""

import datetime
import faulthandler
import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.visitor

MOST_CHARACTERS = 64_000_000  # of any text
MOST_SECONDS = 20.0  # of one rendering
MOST_LOOPS = 1_000_000  # numbers of all `range` calls in one rendering
MOST_WIDTH = 100_000  # characters or items that one operation with a number may make
MOST_BITS = 4096  # of an integer
MOST_ITEMS = 1_000_000  # of nested lists that are written out

BUDGET: Final = "the budget of this rendering"
"""The template variable that holds the `Budget`; no template can spell a name with spaces."""

_WIDTH = re.compile(r"\d{6,}|%[^a-zA-Z%]*\*|\{[^{}]*:[^{}]*\{")
_SIZED_FILTERS = frozenset({"center", "indent", "batch", "slice", "tojson", "wordwrap", "format", "round"})
_WRITING_FILTERS = frozenset({"tojson", "string", "pprint", "join", "escape", "e"})


class TemplateRefusal(Exception):
    """Raised when the template can't render a conversation; the message says why."""


class TemplateTooCostly(TemplateRefusal):
    """Raised when the template exceeds a limit of the sandbox; the message says which."""


class Budget:
    """The time and the loop iterations that one rendering has left."""

    def __init__(self) -> None:
        self._deadline = time.monotonic() + MOST_SECONDS
        self._loops = MOST_LOOPS

    def check(self) -> None:
        """Raises `TemplateTooCostly` when the time is used up."""
        if time.monotonic() > self._deadline:
            raise TemplateTooCostly("it takes too long")

    def range(self, *bounds: int) -> range:
        """Python's `range`, counted. Raises `TemplateTooCostly` when the iterations are used up."""
        numbers = range(*bounds)
        self._loops -= len(numbers)
        if self._loops < 0:
            raise TemplateTooCostly("it loops too often")
        return numbers


class Watch:
    """Ends this process if a rendering takes very long. A limit in Python is never looked at while one operation, such
    as a comparison, holds the interpreter. Does nothing before `begin`."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._renderings = 0
        self._lock = threading.Lock()

    def begin(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._change(1)

    def __exit__(self, *error: object) -> None:
        self._change(-1)

    def _change(self, more: int) -> None:
        with self._lock:
            self._renderings += more
            if self._seconds and self._renderings:
                faulthandler.dump_traceback_later(self._seconds, exit=True)
            elif self._seconds:
                faulthandler.cancel_dump_traceback_later()


WATCH: Final = Watch()


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox with limits. A rendering needs a `Budget` as the variable `BUDGET`."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, finalize=_writable)
        del self.globals["lipsum"]
        self.filters["tojson"] = _to_json
        self.filters = {name: _limited(name, each) for name, each in self.filters.items()}
        self.filters |= {each.__name__: each for each in (_counted, _joined, _writable)}

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree: jinja2.nodes.Template = _Counting(self).visit(super()._parse(source, name, filename))
        return tree

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        match operator, left, right:
            case "**", _, _:
                raise TemplateTooCostly("it uses powers")
            case "*", int(), int() if left.bit_length() + right.bit_length() > MOST_BITS:
                raise TemplateTooCostly("it makes too large a number")
            case "*", str() | list() | tuple(), int(count) if count * len(left) > MOST_WIDTH:
                raise TemplateTooCostly("it repeats a text too often")
            case "*", int(count), str() | list() | tuple() if count * len(right) > MOST_WIDTH:
                raise TemplateTooCostly("it repeats a text too often")
            case "%", str(), _:
                _check_width((), left)
            case "+", str() | list() | tuple(), str() | list() | tuple():
                _check_length(len(left) + len(right))
        return _writable(super().call_binop(context, operator, left, right))

    def call(
        self, context: jinja2.runtime.Context, called: Callable[..., Any], /, *given: Any, **named: Any
    ) -> Any:
        _budget(context).check()
        name = getattr(called, "__name__", "")
        text = getattr(called, "__self__", None)
        if isinstance(text, str):
            _check_method(name, text, (*given, *named.values()))
        return super().call(context, called, *given, **named)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def checked(*given: Any, **named: Any) -> str:
            _check_method("format", value.__self__, (*given, *named.values()))
            return wrapped(*given, **named)

        return checked


class _Counting(jinja2.visitor.NodeTransformer):
    """Rewrites a template so that loops count their iterations, `~` checks the length of its result, and lists their
    size: a list that holds another one many times takes an exponential time to compare or to hash."""

    def __init__(self, environment: jinja2.Environment) -> None:
        self._environment = environment

    def visit_For(self, node: jinja2.nodes.For) -> jinja2.nodes.Node:
        self.generic_visit(node)
        node.iter = self._filtered(node.iter, _counted.__name__)
        return node

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Node:
        self.generic_visit(node)
        pieces = jinja2.nodes.List(node.nodes, lineno=node.lineno, environment=self._environment)
        return self._filtered(pieces, _joined.__name__)

    def visit_List(self, node: jinja2.nodes.List | jinja2.nodes.Dict) -> jinja2.nodes.Node:
        self.generic_visit(node)
        return self._filtered(node, _writable.__name__)

    visit_Dict = visit_List

    def visit_Tuple(self, node: jinja2.nodes.Tuple) -> jinja2.nodes.Node:
        self.generic_visit(node)
        return node if node.ctx == "store" else self._filtered(node, _writable.__name__)

    def _filtered(self, node: Any, name: str) -> jinja2.nodes.Filter:
        return jinja2.nodes.Filter(
            node, name, [], [], None, None, lineno=node.lineno, environment=self._environment
        )


@jinja2.pass_context
def _counted(context: jinja2.runtime.Context, items: Iterable[Any]) -> Iterator[Any]:
    budget = _budget(context)
    for number, item in enumerate(items):
        if not number % 128:
            budget.check()
        yield item


@jinja2.pass_context
def _joined(context: jinja2.runtime.Context, pieces: list[Any]) -> str:
    texts = [piece if isinstance(piece, str) else str(_writable(piece)) for piece in pieces]
    _check_length(sum(map(len, texts)))
    return "".join(texts)


def _budget(context: jinja2.runtime.Context) -> Budget:
    budget = context.resolve_or_missing(BUDGET)
    if not isinstance(budget, Budget):
        raise TemplateTooCostly("it is rendered without a budget")
    return budget


def _limited(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that checks the size of its result before it computes it."""

    @functools.wraps(function)
    def limited(*given: Any, **named: Any) -> Any:
        values = (*given, *named.values())
        texts = [each for each in values if isinstance(each, str)]
        if name in _SIZED_FILTERS:
            _check_width(values, texts[0] if name == "format" and texts else "")
        if name == "replace" and texts:
            _check_method("replace", texts[0], tuple(texts[1:]))
        if name == "join" and texts:
            _check_method(
                "join", texts[-1], tuple(each for each in values if isinstance(each, str | list | tuple))
            )
        if name in _WRITING_FILTERS:
            for each in values:
                _writable(each)
        return function(*given, **named)

    return limited


def _check_method(name: str, text: str, given: tuple[Any, ...]) -> None:
    """Check the size of the result of a method of `text`. Raises `TemplateTooCostly`."""
    match name, given:
        case (("center" | "ljust" | "rjust" | "zfill" | "expandtabs" | "format" | "format_map"), _):
            _check_width(given, text if name.startswith("format") else "")
        case "replace", (str(old), str(new), *_):
            _check_length(len(text) + text.count(old) * len(new))
        case "join", (str() | list() | tuple() as items, *_):
            _check_length(len(items) * len(text))
        case "translate", (dict() as table, *_):
            _check_length(len(text) * max((len(str(value)) for value in table.values()), default=1))
        case _:
            pass


def _check_width(given: tuple[Any, ...], format: str) -> None:
    if _WIDTH.search(format) or any(isinstance(each, int) and each > MOST_WIDTH for each in given):
        raise TemplateTooCostly("it pads a text too far")


def _check_length(characters: int) -> None:
    if characters > MOST_CHARACTERS:
        raise TemplateTooCostly("it makes a text that is too long")


def _writable(value: Any) -> Any:
    """Return the value. Raises `TemplateTooCostly` for nested lists whose text would be too long.

    A list that holds another one many times, which does the same, has a text of exponential length.
    """
    if isinstance(value, list | tuple | dict):
        _items_in(value, {})
    return value


def _items_in(value: Any, known: dict[int, int]) -> int:
    """How many items a list holds, with those of the lists in it each time that they occur; `known`: by identity."""
    count = known.get(id(value))
    if count is None:
        items = value.values() if isinstance(value, dict) else value
        inner = sum(_items_in(item, known) for item in items if isinstance(item, list | tuple | dict))
        count = known[id(value)] = len(value) + inner
        if count > MOST_ITEMS:
            raise TemplateTooCostly("it writes out a list that is too long")
    return count


class ChatTemplate:
    """A compiled template. Several threads may render it at once.

    `searched_marks` are those, such as `</think>` and `/no_think`, at which it cuts texts or which it takes out.
    """

    def __init__(self, source: str, special_names: dict[str, str]) -> None:
        """`special_names` are the template's variables for special tokens. Raises `jinja2.TemplateSyntaxError`."""
        self.source = source
        self._special_names = special_names
        environment = _environment()
        try:
            tree = environment.parse(source)  # once: it takes as long as all that is made of it
            self.searched_marks = _searched_marks(tree)
            self._template = environment.from_string(tree)
        except (RecursionError, MemoryError):
            raise jinja2.TemplateSyntaxError("it nests too deep", 1) from None
        except (SyntaxError, ValueError, OverflowError) as error:
            # From Python's compiler, for numbers and nesting beyond its bounds, which Jinja lets through.
            raise jinja2.TemplateSyntaxError(f"it can't be compiled ({error})", 1) from None

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
            with WATCH:
                for piece in self._template.generate(values):
                    pieces.append(piece)
                    size += len(piece)
                    budget.check()
                    _check_length(size)
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


_MARK: Final = re.compile(r"[<\[|]\S|^/\w")
_SEARCHES: Final = frozenset(
    "split rsplit partition rpartition find index rfind rindex replace removeprefix removesuffix startswith "
    "endswith".split()
)


def _searched_marks(tree: jinja2.nodes.Template) -> tuple[str, ...]:
    names: dict[str, Any] = {}
    places: list[jinja2.nodes.Expr] = []
    for node in tree.find_all((jinja2.nodes.Assign, jinja2.nodes.Call, jinja2.nodes.Compare)):
        match node:
            case jinja2.nodes.Assign(
                target=jinja2.nodes.Name(name=name), node=jinja2.nodes.Const(value=value)
            ):
                names[name] = value
            case jinja2.nodes.Call(node=jinja2.nodes.Getattr(attr=called)) if called in _SEARCHES:
                places += node.args
            case jinja2.nodes.Compare() if node.ops[0].op in ("in", "notin"):
                places.append(node.expr)
    found = [place.value for place in places if isinstance(place, jinja2.nodes.Const)]
    found += [names.get(place.name) for place in places if isinstance(place, jinja2.nodes.Name)]
    return tuple(sorted({each for each in found if isinstance(each, str) and _MARK.search(each)}))


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
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _raise(message: str) -> None:
    raise TemplateRefusal(message)


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)


def _to_json(value: Any, ensure_ascii: bool = False, *given: Any, **named: Any) -> str:
    """A value as transformers' filter of this name writes it, whose arguments may come without their names."""
    options = dict(zip(("indent", "separators", "sort_keys"), given, strict=False)) | named
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)
