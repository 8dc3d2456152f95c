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
from typing import Final, NamedTuple
from unittest.mock import patch

import jinja2
import msgspec

from pippin.api.access.keys import read_key_file
from pippin.api.batches.openai import read_lines, request_of, result
from pippin.api.batches.store import Line
from pippin.api.dialects.base import DecodeContext
from pippin.api.dialects.registry import find_dialects
from pippin.api.http.forms import FormReader
from pippin.catalog.footprint import weight_bytes
from pippin.catalog.gguf.reader import GgufFile
from pippin.catalog.info import chat_templates, read_info
from pippin.config.errors import ConfigError
from pippin.config.mcp_file import load_mcp_file
from pippin.config.yaml_file import form_of, load_document, read_document
from pippin.core.conversation import Tool
from pippin.core.errors import ServerError
from pippin.core.events import PartDelta, PartEnded, PartStarted
from pippin.core.link import FrameBuffer, FrameError, Order, Report, frame
from pippin.core.requests import GenerationRequest
from pippin.core.safetensors import find_header
from pippin.engines import pictures, sound
from pippin.engines.language.template import template as template_sandbox
from pippin.engines.language.template.template import ChatTemplate, TemplateRefusal
from pippin.output.formats import reasoning_format, reasoning_formats, tool_format, tool_formats
from pippin.output.reader import Formats, OutputReader, ToolUse
from pippin.runtime.workers.supervisor import log_line
from tests.api.http.test_fuzz import BODIES

TOOLS = (
    Tool(
        "get_weather",
        None,
        {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    ),
    Tool("get_time", None, {"type": "object"}),
)


MODEL_FILES: Final = {
    "config.json": b'{"model_type": "llama", "max_position_embeddings": 64, "rope_scaling": {"factor": 2.0}}',
    "tokenizer_config.json": b'{"chat_template": "{{ messages }}", "model_max_length": 100}',
    "generation_config.json": b'{"temperature": 0.5, "top_k": 3}',
    "model.safetensors.index.json": b'{"weight_map": {"a": "model.safetensors"}}',
    "tokenizer.json": b"{}",
}
KEYS: Final = (
    *(
        "model_type",
        "architectures",
        "text_config",
        "vision_config",
        "rope_scaling",
        "rope_parameters",
        "factor",
    ),
    *("original_max_position_embeddings", "max_position_embeddings", "model_max_length", "sliding_window"),
    *(
        "quantization",
        "quantization_config",
        "bits",
        "group_size",
        "mode",
        "dtype",
        "torch_dtype",
        "layer_types",
    ),
    *("chat_template", "template", "name", "temperature", "top_k", "top_p", "min_p", "repetition_penalty"),
    *(
        "weight_map",
        "metadata",
        "total_size",
        "added_tokens_decoder",
        "hidden_size",
        "eos_token_id",
        "content",
    ),
)
VALUES: Final[tuple[object, ...]] = (
    *({}, None, True, 0, 1, -1, 4, 4096, 2**63, -(2**63), 10**300, 0.5, 1e308, -0.0, "", "llama", "float16"),
    *(
        ["full_attention", 3, None],
        [],
        [[]],
        [{"name": "default", "template": "x"}, {"name": 1}],
        "\ud7ff" * 300,
    ),
)
MESSAGES: Final = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]


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


def batch_lines(data: bytes) -> None:
    """A file of requests: what is taken can be asked and answered."""
    answered = Line(0, "x", 0, 0, 200, "request", data)
    msgspec.json.decode(result(answered))
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        file.seek(0)
        lines, problems = read_lines(file, "/v1/embeddings")
        assert bool(lines) != bool(problems)
        for line in lines:
            path, _ = request_of(data[line.start : line.start + line.length])
            assert path == "/v1/embeddings"


def output_parsers(data: bytes) -> None:
    """The first bytes choose the formats and the size of the pieces; nothing that was said is lost or doubled."""
    tools, thoughts = sorted(tool_formats()), sorted(reasoning_formats())
    head, text = data[:3].ljust(3, b"\0"), data[3:].decode("utf-8", "replace")
    formats = Formats(
        tools=tool_format(tools[head[0] % len(tools)]),
        reasoning=reasoning_format(thoughts[head[1] % len(thoughts)]),
    )
    reader = OutputReader(0, formats, ToolUse(tools=TOOLS))
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
        header = find_header(Path(folder) / "model.safetensors")
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
    log_line(data, "m")


def files_of_operators(data: bytes) -> None:
    _from_file(data, ".yaml", lambda path: load_mcp_file(str(path), {}), ConfigError)
    _from_file(data, ".yaml", lambda path: read_key_file(path), ServerError)
    _from_file(data, ".yaml", _read_configuration, ConfigError)


def _read_configuration(path: Path) -> None:
    document = load_document(str(path))
    read_document(document, str(path), form_of(document))


def model_folders(data: bytes) -> None:
    """The first byte chooses the file of the folder that has these contents, or a JSON object made of them.

    The other files are sound.
    """
    names = list(MODEL_FILES)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "model.safetensors").write_bytes(_weights(b"{}"))
        for name, contents in MODEL_FILES.items():
            (folder / name).write_bytes(contents)
        kind, written = data[:1] or b"\0", data[1:]
        (folder / names[kind[0] % len(names)]).write_bytes(written if kind[0] < 128 else _json_of(written))
        with contextlib.suppress(ServerError):
            msgspec.msgpack.encode(read_info(folder))


def _json_of(data: bytes) -> bytes:
    """Every two bytes choose a key and a value; some values open an object within the object."""
    document: dict[str, object] = {}
    place = document
    for key, value in zip(data[::2], data[1::2], strict=False):
        chosen = VALUES[value % len(VALUES)]
        place[KEYS[key % len(KEYS)]] = chosen
        if chosen == {}:
            inner: dict[str, object] = {}
            place[KEYS[key % len(KEYS)]] = inner
            place = inner
    return msgspec.json.encode(document)


def read_templates(data: bytes) -> None:
    """The first byte chooses the file that holds the template. It renders within its limits, or is refused."""
    own, text = bool(data and data[0] % 2), data[1:].decode("utf-8", "replace")
    with tempfile.TemporaryDirectory() as place:
        if own:
            (Path(place) / "chat_template.jinja").write_text(text, "utf-8")
        found = chat_templates(Path(place), None if own else text).get("default")
    if found is None:
        if text:
            raise AssertionError("a template that is there is found")
        return
    with patch.object(template_sandbox, "MOST_SECONDS", 1.0), contextlib.suppress(TemplateRefusal):
        try:
            template = ChatTemplate(found, {"bos_token": "<s>"})
        except jinja2.TemplateSyntaxError:
            return
        template.render(MESSAGES, {"tools": [{"name": "f"}], "add_generation_prompt": True})


def _from_file(data: bytes, suffix: str, read: Callable[[Path], object], expected: type[Exception]) -> None:
    with tempfile.NamedTemporaryFile(suffix=suffix) as file:
        file.write(data)
        file.flush()
        try:
            read(Path(file.name))
        except expected:
            return


BATCHES: Final = (
    b'{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"input": "x"}}\n',
    b'{"custom_id": "a", "method": "POST", "url": "/v1/embeddings/", "body": {"stream": false}}\n\n{}',
    b'{"requests": [{"custom_id": "a", "params": {"max_tokens": 1, "messages": []}}]}',
)


@cache
def targets() -> dict[str, Target]:
    bodies = [
        bytes([n]) + msgspec.json.encode(body)
        for n in range(len(find_dialects()))
        for body in BODIES.values()
    ]
    said = [
        b"\x00\x00\x05<think>hm</think>text",
        b'\x01\x01\x03<tool_call>{"name": "get_weather", "arguments": {"city": "x"}}</tool_call>',
        b"\x02\x02\x09[get_weather(city='Paris')]<|channel|>final<|message|>",
        b"\x03\x01\x02<function=get_weather><parameter=city>x</parameter></function>",
    ]
    return {
        "decoders": Target(decoders, bodies),
        "lines of batches": Target(batch_lines, list(BATCHES)),
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
            files_of_operators,
            [
                b"servers: {x: {command: y}}\n",
                b"- key: a\n  name: b\n",
                b"port: 1\nmodels:\n- path: x\n  options: {max_num_seqs: 2}\nmodel_defaults: {kv_bits: 4}\n",
                b"server: {port: 1}\nmodels: [{model_path: x, model_type: lm}]\n",
                b"a: &a [x, x]\nb: &b [*a, *a]\nc: {<<: {d: *b}, e: !!python/name:os.system , f: !!binary eA==}\n",
            ],
        ),
        "model folders": Target(
            model_folders,
            [bytes([n]) + contents for n, contents in enumerate(MODEL_FILES.values())]
            + [bytes([n, *range(80)]) for n in range(130, 135)],
        ),
        "chat templates": Target(
            read_templates, [bytes([n % 2]) + each for n, each in enumerate(_templates())]
        ),
    }


def everything() -> Target:
    """All targets as one: the first byte chooses."""
    each = list(targets().values())

    def read(data: bytes) -> None:
        each[data[0] % len(each) if data else 0].read(data[1:])

    return Target(read, [bytes([n]) + seed for n, target in enumerate(each) for seed in target.seeds])


def _templates() -> list[bytes]:
    return [
        b"{% for m in messages %}{{ '<' ~ m.role ~ '>' + m['content']|trim }}{% if loop.last %}!{% endif %}"
        b"{% endfor %}",
        b"{% macro f(n) %}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(9) }}{{ tools|tojson(indent=2) }}",
        b"{% set ns = namespace(x='a') %}{% for i in range(9) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
        b"{{ '%5d' % 3 }}{{ '{:>9}'.format(bos_token) }}{{ messages[::-1] }}{{ raise_exception('no') }}",
        b"{%- generation %}{{ strftime_now('%Y') }}{% endgeneration %}{% if a is defined %}{{ 2 * 3 }}{% endif %}",
    ]


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
