"""Reads JSON, MessagePack and plain values as the types that are declared for them.

msgspec collects what it knows of a struct when a value is first read as one, and a second thread that reads one
meanwhile ends the process (0.22: `StructInfo_Convert` shows all threads the unfinished description). So each type is
made known to msgspec here before its first use, by one thread at a time, and no other module hands it a type.
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
def _introduce(type: Any) -> None:
    # Threads that meet a type for the first time all wait here, and the later ones find that msgspec knows it. Once
    # it is known, the cache answers without the lock.
    with _ONE_AT_A_TIME:
        JsonDecoder(type)


def known(type: Any) -> Any:
    """The type itself, once msgspec knows all of it. Raises `TypeError` for a type that nothing can be read as."""
    _introduce(type)
    return type


@overload
def from_json(data: bytes | str | msgspec.Raw, type: type[Value]) -> Value: ...
@overload
def from_json(data: bytes | str | msgspec.Raw) -> Any: ...
def from_json(data: bytes | str | msgspec.Raw, type: Any = Any) -> Any:
    """Raises `msgspec.ValidationError` for another type, `msgspec.DecodeError` for what is no JSON."""
    return msgspec.json.decode(data, type=known(type))


def from_message(data: bytes, type: type[Value]) -> Value:
    """A value from MessagePack. Raises as `from_json` does."""
    return cast(Value, msgspec.msgpack.decode(data, type=known(type)))


def convert(value: Any, type: type[Value], *, strict: bool = True) -> Value:
    """A value that is decoded already, as another type. `strict` false reads numbers and booleans from texts.
    Raises `msgspec.ValidationError`."""
    return cast(Value, msgspec.convert(value, type=known(type), strict=strict))


def json_decoder(type: Any) -> JsonDecoder[Any]:
    """A decoder to be kept where many values of one type are read. `type` may be a union of tagged structs."""
    return JsonDecoder(known(type))


def message_decoder(type: Any) -> MessageDecoder[Any]:
    """A decoder of MessagePack, to be kept where many values of one type are read."""
    return MessageDecoder(known(type))
