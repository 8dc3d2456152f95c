"""Everything that reads bytes of strangers, as functions of bytes: they return, or raise what they promise."""

import asyncio
import contextlib
import io
import struct
import tempfile
import wave
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from pippin.api.access.keys import read_key_file
from pippin.api.dialects.base import DecodeContext
from pippin.api.dialects.registry import find_dialects
from pippin.api.http.forms import FormReader
from pippin.catalog.footprint import weight_bytes
from pippin.catalog.gguf.reader import GgufFile
from pippin.config.errors import ConfigError
from pippin.config.mcp_file import load_mcp_file
from pippin.core.conversation import Tool
from pippin.core.errors import ServerError
from pippin.core.events import PartDelta, PartEnded, PartStarted
from pippin.core.link import FrameBuffer, FrameError, Order, Report, frame
from pippin.core.requests import GenerationRequest
from pippin.core.safetensors import read_header
from pippin.engines import pictures, sound
from pippin.output.formats import reasoning_format, reasoning_format_names, tool_format, tool_format_names
from pippin.output.reader import OutputReader
from pippin.runtime.workers.log import WorkerLine, log_line
from tests.api.http.test_fuzz import BODIES

TOOLS = (
    Tool(
        "get_weather",
        None,
        {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    ),
    Tool("get_time", None, {"type": "object"}),
)


class Target(NamedTuple):
    read: Callable[[bytes], None]
    seeds: list[bytes]


def decoders(data: bytes) -> None:
    """The first byte chooses the dialect."""
    dialects = list(find_dialects().values())
    dialect = dialects[data[0] % len(dialects)] if data else dialects[0]
    try:
        decoded = dialect.decode(data[1:], DecodeContext())
    except ServerError as error:
        if not 400 <= error.report.status < 500:
            raise AssertionError("a body that can't be read is the client's fault") from error
        return
    for request in decoded.requests:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=GenerationRequest) == request


def output_parsers(data: bytes) -> None:
    """The first bytes choose the formats and the size of the pieces; nothing that was said is lost or doubled."""
    tools, thoughts = tool_format_names(), reasoning_format_names()
    head, text = data[:3].ljust(3, b"\0"), data[3:].decode("utf-8", "replace")
    reader = OutputReader(
        choice=0,
        tool_format=tool_format(tools[head[0] % len(tools)]),
        reasoning_format=reasoning_format(thoughts[head[1] % len(thoughts)]),
        tools=TOOLS,
    )
    size = 1 + head[2] % 40
    events = [event for at in range(0, len(text), size) for event in reader.feed(text[at : at + size])]
    open_part: int | None = None
    for event in events + reader.finish():
        match event:
            case PartStarted(index=index):
                assert open_part is None
                open_part = index
            case PartDelta(index=index):
                assert open_part == index
            case PartEnded(index=index):
                assert open_part == index
                open_part = None
            case _:
                raise AssertionError(event)
    assert open_part is None


def frames(data: bytes) -> None:
    """In pieces: a frame is whole or not there, and what is in it is an order, a report or an error."""
    buffer = FrameBuffer()
    try:
        for at in range(0, len(data), 7):
            for payload in buffer.feed(data[at : at + 7]):
                for kind in (Order, Report):
                    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                        msgspec.msgpack.decode(payload, type=kind)
    except FrameError:
        return


def gguf(data: bytes) -> None:
    _from_file(data, ".gguf", lambda path: GgufFile(path), ServerError)


def safetensors(data: bytes) -> None:
    """The header of a weights file, and what memory is estimated from it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.safetensors").write_bytes(data)
        assert weight_bytes(Path(folder), 4) >= 0
    header = read_header(io.BytesIO(data))
    assert header is None or header.size <= len(data)


def forms_of_clients(data: bytes) -> None:
    """The first byte chooses the size of the pieces; what is read is in what was sent."""
    size = 1 + data[0] % 60 if data else 1
    reader = FormReader(b"x")
    try:
        for at in range(1, len(data), size):
            reader.feed(data[at : at + size])
        form = asyncio.run(reader.finish())
    except ServerError as error:
        if error.report.status not in (400, 413):
            raise AssertionError("a form that can't be read is the client's fault") from error
        return
    for upload in (each for uploads in form.files.values() for each in uploads):
        assert upload.data in data
        assert len(upload.filename) < 256


def pictures_of_clients(data: bytes) -> None:
    try:
        pictures.decode(data, param="image", most_pixels=1 << 20)
    except ServerError:
        return


def sounds_of_clients(data: bytes) -> None:
    try:
        sound.decode(data, 16000, param="file", longest=5.0)
    except ServerError:
        return


def worker_lines(data: bytes) -> None:
    log_line(data, "m", msgspec.json.Decoder(WorkerLine))


def files_of_operators(data: bytes) -> None:
    _from_file(data, ".yaml", lambda path: load_mcp_file(str(path), {}), ConfigError)
    _from_file(data, ".yaml", lambda path: read_key_file(path), ServerError)


def _from_file(data: bytes, suffix: str, read: Callable[[Path], object], expected: type[Exception]) -> None:
    with tempfile.NamedTemporaryFile(suffix=suffix) as file:
        file.write(data)
        file.flush()
        try:
            read(Path(file.name))
        except expected:
            return


@cache
def targets() -> dict[str, Target]:
    bodies = [bytes([n]) + msgspec.json.encode(body) for n in range(4) for body in BODIES.values()]
    said = [
        b"\x00\x00\x05<think>hm</think>text",
        b'\x01\x01\x03<tool_call>{"name": "get_weather", "arguments": {"city": "x"}}</tool_call>',
        b"\x02\x02\x09[get_weather(city='Paris')]<|channel|>final<|message|>",
        b"\x03\x01\x02<function=get_weather><parameter=city>x</parameter></function>",
    ]
    return {
        "decoders": Target(decoders, bodies),
        "output parsers": Target(output_parsers, said),
        "frames": Target(frames, [frame(msgspec.msgpack.encode({"type": "Cancel", "id": "x"})), b"\xff" * 8]),
        "worker lines": Target(worker_lines, [b'{"level":"info","name":"x","message":"y"}', b'"\xff"']),
        "gguf": Target(gguf, [b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + struct.pack("<Q", 1) + b"a" * 40]),
        "safetensors": Target(
            safetensors, [_weights(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}')]
        ),
        "forms": Target(forms_of_clients, [bytes([size]) + _form() for size in (0, 7, 59)]),
        "pictures": Target(
            pictures_of_clients, [_picture(kind) for kind in ("PNG", "JPEG", "GIF", "BMP", "WEBP")]
        ),
        "sounds": Target(
            sounds_of_clients, [_wave(), b"ID3\x04\0\0\0\0\0\0", b"OggS\0\x02", b"fLaC\0\0\0\x22"]
        ),
        "files of operators": Target(
            files_of_operators, [b"servers: {x: {command: y}}\n", b"- key: a\n  name: b\n"]
        ),
    }


def everything() -> Target:
    """All targets as one: the first byte chooses."""
    each = list(targets().values())

    def read(data: bytes) -> None:
        each[data[0] % len(each) if data else 0].read(data[1:])

    return Target(read, [bytes([n]) + seed for n, target in enumerate(each) for seed in target.seeds])


def _weights(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + bytes(8)


def _form() -> bytes:
    head = b'--x\r\nContent-Disposition: form-data; name="'
    return head + b'model"\r\n\r\nm\r\n' + head + b'file"; filename="a.wav"\r\n\r\nRIFF\r\n--x--\r\n'


def _picture(kind: str) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (8, 8), (1, 2, 3)).save(file, kind)
    return file.getvalue()


def _wave() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound_file:
        sound_file.setnchannels(1)
        sound_file.setsampwidth(2)
        sound_file.setframerate(8000)
        sound_file.writeframes(b"\0\1" * 100)
    return file.getvalue()
