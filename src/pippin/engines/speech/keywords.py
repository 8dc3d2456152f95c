"""Finds the keywords that a model's `generate` uses, and turns a request's fields into them.

The models of mlx-audio share one call, so many name arguments that they never read, and take others out of `**kwargs`.
So their code is read: an argument counts if the function uses it, and a keyword if it is taken out of `**kwargs` by
name, there or in a method of the model to which `**kwargs` is passed on.
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from pippin.core.errors import ServerError
from pippin.core.tasks import Speak
from pippin.engines.refusals import refused

KEYWORDS: Final[dict[str, tuple[str, ...]]] = {
    **{field: (field,) for field in "voice speed ref_audio ref_text gender pitch".split()},
    **{field: (field,) for field in "temperature top_p top_k repetition_penalty streaming_interval".split()},
    "instructions": ("instruct", "instruction", "caption", "description"),
    "lang_code": ("lang_code", "lang", "language"),
    "max_tokens": ("max_tokens", "max_new_tokens", "max_new_frames"),
    "seed": ("seed", "rng_seed"),
}
"""What the models of mlx-audio call the fields of a request; the first one that a model reads is used."""

NEEDLESS: Final = (("repetition_penalty", 1.0),)
"""Values that mean nothing to a model that has no such setting, though they do to one that has."""

CHOICES: Final = {"speed": "SPEED_MAP", "pitch": "PITCH_MAP"}
"""The tables by which Spark reads numbers, in the module of its model: it knows no others."""

DEEPEST: Final = 4
"""The longest chain of methods that pass their keywords on."""


@dataclass(frozen=True)
class Keywords:
    """The keywords of one `generate`: those that it reads, those that it can't be called without, and the only values
    of some fields."""

    read: frozenset[str]
    needed: frozenset[str]
    choices: dict[str, tuple[float, ...]]

    def first_of(self, names: tuple[str, ...]) -> str | None:
        """The first of these names that this model uses; None if it uses none of them."""
        return next((each for each in names if each in self.read | self.needed), None)


def keywords_of(model: Any) -> Keywords:
    """The keywords of a model's `generate`. If its source is not available, all named arguments count as read."""
    parameters = [
        each
        for each in inspect.signature(model.generate).parameters.values()
        if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    ]
    needed = frozenset(each.name for each in parameters if each.default is each.empty)
    read = frozenset(_read_by(model, model.generate, DEEPEST))
    module = sys.modules.get(type(model).__module__)
    tables = {field: getattr(module, name, None) for field, name in CHOICES.items()}
    choices = {field: tuple(each) for field, each in tables.items() if isinstance(each, dict)}
    return Keywords(read or frozenset(each.name for each in parameters), needed, choices)


def _read_by(model: Any, function: Callable[..., Any], depth: int) -> Iterator[str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return
    [definition, *_] = tree.body
    assert isinstance(definition, ast.FunctionDef)
    arguments = definition.args
    named = {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    nodes = [node for statement in definition.body for node in ast.walk(statement)]
    used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    yield from named & used - {"self"}
    rest = arguments.kwarg.arg if arguments.kwarg else None
    dropped = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if not isinstance(node, ast.Call) or rest is None:
            continue
        if (taken := _taken(node, rest)) is not None:
            if id(node) not in dropped:
                yield taken
        elif depth and (method := _handed_to(node, rest)) is not None:
            yield from _read_by(model, getattr(model, method), depth - 1)


def _taken(call: ast.Call, rest: str) -> str | None:
    """The keyword that `rest.get("name")` or `rest.pop("name")` takes."""
    match call:
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id=name), attr="get" | "pop"),
            args=[ast.Constant(value=str(taken)), *_],
        ) if name == rest:
            return taken
    return None


def _handed_to(call: ast.Call, rest: str) -> str | None:
    """The method of the model that is called with `**rest`."""
    match call:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=method), keywords=keywords):
            handed = (each.value for each in keywords if each.arg is None)
            if any(isinstance(each, ast.Name) and each.id == rest for each in handed):
                return method
    return None


def arguments_of(keywords: Keywords, task: Speak, voice: str | None, reference: Any) -> dict[str, Any]:
    """The arguments of `generate`. `voice` is the model's word for the voice, and `reference` the recording of one.

    Raises `ServerError` for a field that this model has no argument for, and for one that it needs and was not sent.
    """
    named: dict[str, Any] = {
        "voice": voice,
        "speed": None if task.speed == 1.0 else task.speed,
        "lang_code": task.language,
        "ref_audio": reference,
        "ref_text": task.reference_text,
        "pitch": None if task.pitch == 1.0 else task.pitch,
        "streaming_interval": task.streaming_interval if task.stream else None,
    }
    asked = {field: named[field] if field in named else getattr(task, field) for field in KEYWORDS}
    arguments: dict[str, Any] = {"text": task.text}
    for field, value in asked.items():
        keyword = keywords.first_of(KEYWORDS[field])
        if value is None:
            if keyword in keywords.needed:
                raise ServerError("invalid_request", f"This model needs `{field}`; send it.", field)
            continue
        if value not in keywords.choices.get(field, (value,)):
            known = ", ".join(str(each) for each in keywords.choices[field])
            raise refused(field, f"is {value}; this model knows {known}.")
        if keyword is not None:
            arguments[keyword] = value
        elif (field, value) not in NEEDLESS and field != "seed":
            raise ServerError("unsupported", f"This model has no `{field}`; leave it out.", field)
    if "verbose" in keywords.read:
        arguments["verbose"] = False
    if task.stream and "stream" in keywords.read:
        arguments["stream"] = True
    return arguments
