"""Reads JSON, MessagePack and plain values as the types that are declared for them.

msgspec completes what it knows of a struct when a value is first read as one, and a second thread that reads one
meanwhile ends the process (0.22: `StructInfo_Convert` shows the unfinished one to all). So a type is made known here
before its first use, by one thread at a time, and no other module names a type to msgspec.
"""

import threading
from typing import Any, Final, TypeVar, cast, overload

import msgspec

JsonDecoder = msgspec.json.Decoder
MessageDecoder = msgspec.msgpack.Decoder

Value = TypeVar("Value")

_known: Final[set[Any]] = set()
_one_at_a_time: Final = threading.RLock()


def known(type: Any) -> Any:
    """The type itself, once msgspec knows all of it. Raises `TypeError` for a type that nothing can be read as."""
    if type not in _known:
        with _one_at_a_time:
            JsonDecoder(type)
            _known.add(type)
    return type


@overload
def from_json(data: bytes | str | msgspec.Raw, type: type[Value]) -> Value: ...
@overload
def from_json(data: bytes | str | msgspec.Raw) -> Any: ...
def from_json(data: bytes | str | msgspec.Raw, type: Any = Any) -> Any:
    """Raises `msgspec.ValidationError` for another type, `msgspec.DecodeError` for what is no JSON."""
    return msgspec.json.decode(data, type=known(type))


def from_message(data: bytes, type: type[Value]) -> Value:
    """The same of MessagePack."""
    return cast(Value, msgspec.msgpack.decode(data, type=known(type)))


def convert(value: Any, type: type[Value], *, strict: bool = True) -> Value:
    """A value that is decoded already, as another type. `strict` false reads numbers and booleans from texts.
    Raises `msgspec.ValidationError`."""
    return cast(Value, msgspec.convert(value, type=known(type), strict=strict))


def json_decoder(type: Any) -> JsonDecoder[Any]:
    """`type` may be a union of structs, as one says what came."""
    return JsonDecoder(known(type))


def message_decoder(type: Any) -> MessageDecoder[Any]:
    return MessageDecoder(known(type))
