"""Decodes a JSON body into a struct, and treats each field as its contract says: honoured, accepted or refused."""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Annotated, Any, Final, Generic, Literal, TypeVar, cast

import msgspec
from msgspec import Meta, inspect

from pippin.api.dialects.shared.body_types import (
    allowed_values,
    objects_of,
    settings_of,
    type_of,
    unknown_keys,
    with_whole_numbers,
    without_nulls,
)
from pippin.core import decoding
from pippin.core.decoding import from_json
from pippin.core.errors import FieldName, ServerError

Body = TypeVar("Body", bound=msgspec.Struct)

MAX_DEPTH = 100
"""Levels of nesting in a body. Deeper values would burden all code that walks them later."""

MOST_VALUES = 250_000
"""Lists, objects and fields in a body, counted by brackets and colons; enough for a prompt of a million tokens.
Decoding can't be interrupted, so a larger body would block all other requests."""

MOST_ITEMS = 1_000_000
"""Elements in a body, counted by commas: as many as a prompt may have token ids."""

SLICE: Final = 1 << 20  # bytes counted at a time, after which other threads may run

TOO_LARGE: Final = "holds a number of more than 64 bits."


def about(help: str, **bounds: Any) -> Meta:
    """The help of a field, and the `bounds` of its value as `Meta` takes them."""
    return Meta(description=help, **bounds)


Unused = Annotated[Any, about("Accepted without effect.")]
"""A documented key of an object that has no effect here, and whose value is not checked."""

_NEUTRAL = (b"null", b"false", b"0", b"0.0", b"[]", b"{}", b'""')
_AT_BYTE = re.compile(r"\(byte (\d+)\)")
_HALF = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])")
"""Half of a character in UTF-16, as JavaScript leaves it where it cuts a string within an emoji."""
_FIELD_BEFORE = re.compile(rb'"([A-Za-z_]{1,64})"\s*:\s*(?:\{\s*"\d+"\s*:)?[\s\[\d.,-]*$')
NEAR: Final = 200  # bytes before a number that are searched for its field's name
_REWRITABLE = re.compile(r"got `(null|float)`")
MOST_NAMED: Final = 32  # unknown fields reported of one body
_AT_PATH = re.compile(r"^(?P<problem>.*?)(?: - at `(?:key in )?\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)


class OnlyTrue(str):
    """The sentence of a refused field that is true where a client leaves it out."""


@dataclass(frozen=True)
class Contract(Generic[Body]):
    """The documented fields of a request body.

    Fields of `body` are honoured, or the dialect's code refuses some of their values. Fields in `accepted` may have
    any value and have no effect, for the given reason. Fields in `refused` may only have a neutral value (null,
    false, zero or empty, or true with `OnlyTrue`); otherwise the request fails with the given sentence, even if
    `body` inherits the field.

    Keys of objects inside a field count as fields, except in `left_open`: clients put keys of their own into messages.
    """

    body: type[Body]
    accepted: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    left_open: frozenset[str] = frozenset({"messages"})
    # Fields of `body` that are required although the struct gives them a default.
    required: frozenset[str] = frozenset()

    @functools.cached_property
    def paths(self) -> frozenset[str]:
        """The paths on the wire of the body's fields and of those of the objects in it: `tools[].function.name`."""
        inside = (
            found for name, place in settings_of(self.body).items() for found in objects_of(place, name)
        )
        return names_of(self.body) | {
            f"{path}.{item.encode_name}" for path, struct in inside for item in struct.fields
        }

    def decode(self, data: bytes) -> tuple[Body, tuple[str, ...]]:
        """Returns the body, and the names of fields that this contract does not know."""
        given = decode_json(data, dict[str, msgspec.Raw])
        for name in given.keys() - names_of(self.body):
            _decode(given[name], Any, name[:64])
        unknown = self._sorted_out({name: bytes(value) for name, value in given.items()})
        body = _decode(data, self.body)
        inside = (
            path
            for name, place in self.settings().items()
            if name in given
            for path in unknown_keys(_decode(given[name], Any, name), place, name)
        )
        return body, tuple(dict.fromkeys((*unknown, *inside)))[:MOST_NAMED]

    def decode_form(
        self, fields: Mapping[str, Sequence[str]], *, lists: frozenset[str] = frozenset()
    ) -> tuple[Body, tuple[str, ...]]:
        """Decodes a form: returns the body, and the names of fields that this contract does not know.

        All values of a form are strings. Fields in `lists` may be repeated; for other fields the last value counts.
        `include[]` and `chunking_strategy[type]` belong to the fields before the bracket, unless they are fields.
        """
        known = names_of(self.body)
        given: dict[str, list[str]] = {}
        for name, texts in fields.items():
            given.setdefault(name if name in known else name.partition("[")[0], []).extend(texts)
        unknown = self._sorted_out({name: texts[-1].lower().encode() for name, texts in given.items()})
        values = {
            name: texts if name in lists else texts[-1]
            for name, texts in given.items()
            if name in known and any(texts)
        }
        try:
            body = decoding.convert(values, type=self.body, strict=False)
        except msgspec.ValidationError as error:
            raise validation_error(str(error), self.body) from None
        for name, value in msgspec.structs.asdict(body).items():
            if isinstance(value, int) and not in_range(value):
                raise invalid(name, TOO_LARGE)
        return body, unknown

    def settings(self) -> Mapping[str, inspect.Type]:
        """The fields whose objects have declared keys."""
        return {
            name: place
            for name, place in settings_of(self.body).items()
            if name not in self.left_open and name not in self.refused
        }

    def _sorted_out(self, given: Mapping[str, bytes]) -> tuple[str, ...]:
        """Returns the unknown names. Raises `ServerError` for a refused field."""
        known = names_of(self.body)
        unknown = []
        for name, value in given.items():
            if (sentence := self.refused.get(name)) is not None:
                neutral = (b"null", b"true") if isinstance(sentence, OnlyTrue) else _NEUTRAL
                if value and value not in neutral:
                    raise unsupported(name, sentence)
            elif name not in known and name not in self.accepted:
                unknown.append(name[:64])
        return tuple(unknown[:MOST_NAMED])


@functools.cache
def names_of(body: type[msgspec.Struct]) -> frozenset[str]:
    """The names of a struct's fields on the wire, cached because msgspec takes a millisecond to list them."""
    return frozenset(item.encode_name for item in msgspec.structs.fields(body))


def without_effect(module: str, name: str = "fields") -> tuple[dict[str, str], dict[str, str]]:
    """The `accepted` and the `refused` fields of a contract, each with its reason, from a file beside a module, which
    has a list of fields for each reason."""
    text = resources.files(module.rpartition(".")[0]).joinpath(f"{name}.json").read_bytes()
    told = from_json(text, dict[Literal["accepted", "refused", "only true"], dict[str, tuple[str, ...]]])
    accepted, refused, true = (
        {field: reason for reason, fields in told.get(part, {}).items() for field in fields}
        for part in ("accepted", "refused", "only true")
    )
    return accepted, refused | {field: OnlyTrue(reason) for field, reason in true.items()}


Decodable = TypeVar("Decodable")


def decode_json(data: bytes, type: type[Decodable]) -> Decodable:
    """Decode JSON. Raises `ServerError` naming the field if the value is invalid."""
    if not data.strip():
        raise ServerError("invalid_request", "The request body is empty; send a JSON object.")
    if len(data) > MOST_VALUES:
        check_values(data)
    return _decode(data, type)


def check_values(data: bytes) -> None:
    """Refuse a body with so many values that decoding would take too long."""
    values = items = 0
    for start in range(0, len(data), SLICE):
        part = data[start : start + SLICE]
        values += sum(map(part.count, (b"[", b"{", b":")))
        items += part.count(b",")
        if values > MOST_VALUES:
            raise ServerError(
                "invalid_request", f"The request body holds more than {MOST_VALUES} lists and fields."
            )
        if items > MOST_ITEMS:
            raise ServerError(
                "invalid_request",
                f"The request body holds more than {MOST_ITEMS} commas, as of numbers in a list.",
            )


def _decode(data: bytes | msgspec.Raw, type: type[Decodable], path: str = "") -> Decodable:
    """Decode a body, or the field of a body at that path. Raises `ServerError` if it is invalid, too deep or out of
    range."""
    try:
        return cast(Decodable, decoding.json_decoder(cast(Any, type)).decode(data))
    except msgspec.ValidationError as error:
        if _REWRITABLE.search(str(error)):
            # What stands behind the value has not been read yet: it may be no JSON, or too deep.
            return convert(_decode(data, cast(Any, Any), path), type, path)
        raise validation_error(str(error), type, path) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise malformed(bytes(data), str(error)) from None
    except RecursionError:
        raise too_deep(path or None) from None


def malformed(data: bytes, complaint: str) -> ServerError:
    """The error for a body that is not valid JSON.

    NaN and Infinity, which some clients send as numbers, are reported with the name of their field.
    """
    if place := _AT_BYTE.search(complaint):
        start = int(place[1])
        field = _FIELD_BEFORE.search(data[max(0, start - NEAR) : start])
        if field and data[start:].lstrip(b"-").startswith((b"NaN", b"Infinity")):
            return invalid(field[1].decode(), "must be a finite number; NaN and Infinity are no JSON.")
    reason = complaint.removeprefix("JSON is malformed: ")
    if half := _HALF.search(data):
        reason = f"a string is cut within a character (byte {half.start()})"
    return ServerError("invalid_request", f"The request body is not valid JSON: {reason}.")


def convert(value: Any, type: type[Decodable], path: str) -> Decodable:
    """Convert a value that is already decoded; `path` is its place in the body."""
    try:
        return decoding.convert(value, type=type)
    except msgspec.ValidationError as error:
        if found := _REWRITABLE.search(str(error)):
            null = found[1] == "null"
            given = without_nulls(value, type_of(cast(Any, type))) if null else with_whole_numbers(value)
            if repr(given) != repr(value):  # 1.0 equals 1
                return convert(given, type, path)
        raise validation_error(str(error), type, path) from None
    except RecursionError:
        raise too_deep(path or None) from None


def validation_error(complaint: str, type: Any, prefix: str = "") -> ServerError:
    """Turn msgspec's message ("Expected `int`, got `str` - at `$.n`") about a value of that type into an error."""
    match = _AT_PATH.match(complaint)
    problem, path = (match["problem"], match["path"] or "") if match else (complaint, "")
    if path and problem.startswith("Invalid") and (words := allowed_values(type, path)):
        problem += f"; it can be {', '.join(f'`{word}`' for word in words)}"
    path = f"{prefix}{path}" if path.startswith("[") or not prefix else f"{prefix}.{path}" if path else prefix
    if named := re.match(r"Object (missing required|contains unknown) field `(.+)`", problem):
        path = f"{path}.{named[2]}" if path else named[2]
        told = "is required" if named[1].startswith("missing") else "is not known here"
        return ServerError("invalid_request", f"`{path}` {told}.", path)
    problem = problem[:1].lower() + problem[1:]
    where = f"Invalid `{path}`" if path else "The request body is invalid"
    return ServerError("invalid_request", f"{where}: {problem}.", path or None)


def unsupported(param: str, sentence: str) -> ServerError:
    return ServerError(
        "unsupported", f"`{param}` is not supported: {sentence}", param, code="unsupported_parameter"
    )


def refused(sentence: str) -> Meta:
    """Annotates a key of an object that may only have a neutral value; see `check_refused`."""
    return Meta(extra={"refused": sentence})


def check_refused(given: Any, path: str = "") -> None:
    """Raises `ServerError` for a key of this object, or of one inside, that is annotated as `refused` and set."""
    match given:
        case msgspec.Struct():
            for own in type_of(type(given)).fields:  # type: ignore[attr-defined]
                value, at = getattr(given, own.name), f"{path}.{own.encode_name}" if path else own.encode_name
                match own.type:
                    case inspect.Metadata(extra={"refused": str(sentence)}) if value:
                        raise unsupported(at, sentence)
                check_refused(value, at)
        case tuple():
            for place, each in enumerate(given):
                check_refused(each, f"{path}[{place}]")


def several(given: Any, param: str, most: int) -> tuple[Any, ...]:
    """The inputs of a field that holds one, or a list of them; a list of numbers is a single one, as token ids. Raises
    `ServerError` for an empty one, and more than `most`."""
    if not given:
        raise invalid(param, "must not be empty.")
    if not isinstance(given, tuple):
        return (given,)
    numbers = [isinstance(item, int) for item in given]
    if any(numbers):
        if not all(numbers):
            raise invalid(param, "must be all texts, all token ids, or all lists of token ids.")
        return (given,)
    if len(given) > most:
        raise invalid(param, f"must not hold more than {most} inputs.")
    for place, item in enumerate(given):
        if not item:
            raise invalid(f"{param}[{place}]", "must not be empty.")
    return tuple(given)


def called(**names: str) -> tuple[FieldName, ...]:
    """A dialect's names for the fields that errors of the service and the engines name."""
    return tuple(FieldName(own, client) for own, client in names.items() if client != own)


def invalid(param: str, sentence: str) -> ServerError:
    """The error for an invalid value. The sentence continues after the field's name: "must be ..."."""
    return ServerError("invalid_request", f"`{param}` {sentence}", param, code="invalid_value")


def too_deep(param: str | None) -> ServerError:
    return ServerError(
        "invalid_request", f"The request body is nested more than {MAX_DEPTH} levels deep; flatten it.", param
    )


def in_range(number: int) -> bool:
    """Whether the number can be passed on to a worker."""
    return -(2**63) <= number < 2**64


def check_small(value: Any, param: str, *, depth: int, nodes: int, size: int) -> None:
    """Refuse a free-form value with more than `depth` levels, `nodes` values or `size` bytes of JSON."""
    count = 0
    for number, level in enumerate(_levels_inside(value), 1):
        count += len(level)
        if count > nodes:
            raise invalid(param, f"holds more than {nodes} values; send fewer.")
        if number == depth:
            raise invalid(param, f"is nested more than {depth} levels deep; send it flatter.")
    if len(msgspec.json.encode(value)) > size:
        raise invalid(param, f"is larger than {size} bytes; send less.")


def check_depth(value: Any, param: str) -> None:
    """Refuse free-form values (schemas, template variables) that are nested too deep, or hold numbers that can't be
    passed on to a worker."""
    for number, level in enumerate(_levels_inside([value])):
        if number == MAX_DEPTH:
            raise too_deep(param)
        if any(isinstance(item, int) and not in_range(item) for item in level):
            raise invalid(param, TOO_LARGE)


def _levels_inside(value: Any) -> Iterator[list[Any]]:
    """The values inside a value, level by level."""
    level = [value]
    while level := [
        inner
        for item in level
        for inner in (item.values() if isinstance(item, dict) else item if isinstance(item, list) else ())
    ]:
        yield level
