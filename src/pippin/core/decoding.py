"""Reads JSON, MessagePack and plain values as declared types.

msgspec collects its description of a struct when it first reads a value as one. A second thread that reads the same
type meanwhile crashes the process (0.22: `StructInfo_Convert` shows the unfinished description to all threads). So each
type is introduced to msgspec here before its first use, by one thread at a time, and no other module passes msgspec a
type.
"""

import threading
from functools import cache
from typing import Any, Final, TypeVar, cast, overload

import msgspec

JsonDecoder = msgspec.json.Decoder
MessageDecoder = msgspec.msgpack.Decoder

Value = TypeVar("Value")

_ONE_AT_A_TIME: Final = threading.RLock()


@cache
def known(type: Any) -> Any:
    """The type itself, after msgspec has inspected all of it. Raises `TypeError` for a type that nothing can be read
    as."""
    # Threads that meet a type for the first time all wait here; the later ones find it known to msgspec. From then on
    # the cache answers without the lock.
    with _ONE_AT_A_TIME:
        JsonDecoder(type)
    return type


@overload
def from_json(data: bytes | str | msgspec.Raw, type: type[Value]) -> Value: ...
@overload
def from_json(data: bytes | str | msgspec.Raw) -> Any: ...
def from_json(data: bytes | str | msgspec.Raw, type: Any = Any) -> Any:
    """Reads JSON. Raises `msgspec.ValidationError` for another type, `msgspec.DecodeError` for malformed JSON."""
    return msgspec.json.decode(data, type=known(type))


def from_message(data: bytes, type: type[Value]) -> Value:
    """A value from MessagePack. Raises as `from_json` does."""
    return cast(Value, msgspec.msgpack.decode(data, type=known(cast(Any, type))))


def convert(value: Any, type: type[Value], *, strict: bool = True) -> Value:
    """Converts a decoded value, or a struct with these fields, to another type. `strict=False` also reads numbers and
    booleans from strings. Raises `msgspec.ValidationError`."""
    return cast(
        Value, msgspec.convert(value, type=known(cast(Any, type)), strict=strict, from_attributes=True)
    )


@cache
def json_decoder(type: Any) -> JsonDecoder[Any]:
    """The decoder of a type of which many values are read. `type` may be a union of tagged structs."""
    return JsonDecoder(known(type))


def message_decoder(type: Any) -> MessageDecoder[Any]:
    """A MessagePack decoder to keep where many values of one type are read."""
    return MessageDecoder(known(type))
