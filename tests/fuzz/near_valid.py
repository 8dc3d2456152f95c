"""Requests that are almost right, as bytes of HTTP: a right one for each address, and ways to damage it."""

import json
from dataclasses import dataclass, field, replace
from typing import Any, Final

from hypothesis import strategies as st

MODEL: Final = "org/scripted"
PICTURE: Final = b"\x89PNG-not-really"
PIXEL: Final = "data:image/png;base64,iVBORw0KGgo="
BOUNDARY: Final = "fence"


class Written(str):
    """A text that is JSON already, such as a number that Python can't hold."""


@dataclass(frozen=True)
class Right:
    """A request that is answered with 200. A body with `files` is a form, one without is JSON."""

    path: str
    body: dict[str, Any]
    files: dict[str, bytes] = field(default_factory=dict)
    method: str = "POST"
    known: tuple[str, ...] = ()
    """Other fields that the address knows."""

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}{' as a form' if self.files else ''}"


IMAGE_FIELDS: Final = (
    *("n", "size", "width", "height", "quality", "response_format", "output_format", "output_compression"),
    *("background", "stream", "partial_images", "progress", "steps", "guidance", "guidance_scale", "seed"),
    *("negative_prompt", "user", "moderation", "style", "output_path"),
)
SPEECH_FIELDS: Final = (
    *("voice", "instructions", "response_format", "speed", "stream_format", "stream", "streaming_interval"),
    *("gender", "pitch", "lang_code", "ref_audio", "ref_text", "temperature", "top_p", "top_k", "max_tokens"),
    *("repetition_penalty", "seed"),
)
TRANSCRIPTION_FIELDS: Final = (
    *("language", "prompt", "response_format", "temperature", "timestamp_granularities", "word_timestamps"),
    *("include", "stream", "max_tokens", "chunking_strategy", "timestamp_granularities[]", "top_p"),
)
CHAT: Final = {"model": MODEL, "messages": [{"role": "user", "content": "a b"}]}
SOUND: Final = {"file": b"RIFF-not-really"}
LINE: Final = {
    "custom_id": "1",
    "method": "POST",
    "url": "/v1/embeddings",
    "body": {"model": MODEL, "input": "a"},
}
MESSAGE: Final = {"model": MODEL, "max_tokens": 4, "messages": CHAT["messages"]}
QUESTION: Final = {"instructions": "Which?", "type": "choice", "criteria": ["a", "b"]}

RIGHT: Final = (
    Right("/v1/images/generations", {"model": MODEL, "prompt": "a b", "size": "32x32"}, known=IMAGE_FIELDS),
    Right(
        "/v1/images/edits",
        {"model": MODEL, "prompt": "a b", "image": [PIXEL]},
        known=(*IMAGE_FIELDS, "images", "mask", "strength", "input_fidelity"),
    ),
    Right(
        "/v1/images/edits",
        {"model": MODEL, "prompt": "a b"},
        {"image": PICTURE},
        known=(*IMAGE_FIELDS, "strength", "input_fidelity", "image"),
    ),
    Right("/v1/audio/speech", {"model": MODEL, "input": "a b", "voice": "alba"}, known=SPEECH_FIELDS),
    Right("/v1/audio/transcriptions", {"model": MODEL}, SOUND, known=TRANSCRIPTION_FIELDS),
    Right("/v1/audio/translations", {"model": MODEL}, SOUND, known=TRANSCRIPTION_FIELDS),
    Right(
        "/v1/decisions",
        {"model": MODEL, "state": {"a": [1]}, "questions": {"q": QUESTION}},
        known=("user", "images"),
    ),
    Right(
        "/v1/files",
        {"purpose": "batch"},
        {"file": json.dumps(LINE).encode()},
        known=("expires_after[anchor]", "expires_after[seconds]"),
    ),
    Right(
        "/api/chat", {**CHAT, "stream": False}, known=("options", "tools", "format", "think", "keep_alive")
    ),
    Right(
        "/api/generate",
        {"model": MODEL, "prompt": "a b", "stream": False},
        known=(
            "suffix",
            "images",
            "format",
            "options",
            "system",
            "template",
            "raw",
            "context",
            "think",
            "keep_alive",
        ),
    ),
    Right(
        "/api/embed",
        {"model": MODEL, "input": ["a", "b"]},
        known=("truncate", "dimensions", "options", "keep_alive"),
    ),
    Right("/api/embeddings", {"model": MODEL, "prompt": "a"}, known=("options", "keep_alive")),
    Right("/api/show", {"model": MODEL}, known=("name", "verbose", "system", "template", "options")),
    Right("/api/pull", {"model": MODEL, "stream": False}, known=("name", "insecure")),
    Right("/api/v0/chat/completions", CHAT, known=("ttl", "stream", "tools")),
    Right("/api/v0/completions", {"model": MODEL, "prompt": "a b"}, known=("ttl", "stream")),
    Right("/api/v0/embeddings", {"model": MODEL, "input": "a b"}, known=("dimensions", "encoding_format")),
    Right("/v1/models/load", {"model": MODEL}),
    Right("/unload", {"model": MODEL}, known=("all",)),
    Right("/v1/models/org/scripted/pin", {"pinned": False}),
    Right(
        "/v1/settings",
        {"max_speech_chars": 500},
        method="PATCH",
        known=("log_level", "api_keys", "rate_limit"),
    ),
    Right(
        "/v1/rerank",
        {"model": MODEL, "query": "a", "documents": ["a", {"text": "b"}]},
        known=("top_n", "return_documents", "instruction", "truncate"),
    ),
    Right(
        "/v1/tokenize",
        {"model": MODEL, "prompt": "a b"},
        known=("messages", "add_special_tokens", "return_token_strs"),
    ),
    Right("/v1/detokenize", {"model": MODEL, "tokens": [1, 2]}),
    Right("/v1/apply-template", CHAT, known=("tools", "chat_template_kwargs")),
    Right(
        "/v1/conversations",
        {"items": [{"type": "message", "role": "user", "content": "a"}], "metadata": {"a": "b"}},
    ),
)

HOSTILE: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308),
    *(
        Written(text)
        for text in (
            "NaN",
            "Infinity",
            "-Infinity",
            "1e999",
            "-1e999",
            "1E-400",
            "01",
            '"\\ud800"',
            '"a\\udfffb"',
            '"\\u0000"',
        )
    ),
    *(
        "",
        " ",
        "\0",
        "a\0b",
        "\n",
        "\ud7ff\U0010ffff",
        "a" * 70_000,
        "../../etc/passwd",
        "%00",
        "inf",
        "nan",
        "auto",
        "true",
        "1",
        "-1",
    ),
    *(
        "32x32",
        "0x0",
        "99999x99999",
        "１６x１６",
        "data:image/png;base64,!",
        "data:,",
        "data:audio/wav;base64,AAAA",
        "file:///etc/passwd",
        "http://127.0.0.1:1/",
    ),
    *(
        [],
        {},
        [[]],
        [{}],
        {"": ""},
        {"a": None},
        [None],
        ["a", 1],
        [1, "a"],
        {"type": "x"},
        {"id": 1},
        ["a"] * 3000,
        {"type": None},
    ),
    *(Written("[" * depth + "]" * depth) for depth in (40, 300, 5000)),
    *(Written('{"a":' * depth + "1" + "}" * depth) for depth in (40, 300, 5000)),
)


def json_of(value: Any) -> str:
    """As JSON; what is `Written` stands as it is."""
    if isinstance(value, Written):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{json_of(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(json_of, value)) + "]"
    return json.dumps(value) if not isinstance(value, int) or abs(value) < 2**64 else "9" * 401


def form_of(fields: dict[str, Any], files: dict[str, bytes]) -> bytes:
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode()
        + (value if isinstance(value, str) else json_of(value)).encode("utf-8", "surrogatepass")
        for name, value in fields.items()
    ]
    parts += [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"; filename="a.bin"\r\n\r\n'.encode()
        + datum
        for name, datum in files.items()
    ]
    return b"".join(part + b"\r\n" for part in parts) + f"--{BOUNDARY}--\r\n".encode()


@dataclass(frozen=True)
class Sent:
    """A request as it goes over the wire."""

    right: Right
    body: bytes
    content_type: str
    chunked: bool = False

    @property
    def wire(self) -> bytes:
        if not self.chunked:
            return self._head(f"Content-Length: {len(self.body)}") + self.body
        pieces = [self.body[at : at + 50_000] for at in range(0, len(self.body), 50_000)]
        return self._head("Transfer-Encoding: chunked") + b"".join(map(chunk, pieces)) + chunk(b"")

    def stopped(self, is_chunked: bool) -> bytes:
        """The first half, after which nothing more comes."""
        half = self.body[: len(self.body) // 2]
        if is_chunked:
            return self._head("Transfer-Encoding: chunked") + chunk(half)
        return self._head(f"Content-Length: {len(self.body)}") + half

    def _head(self, length: str) -> bytes:
        lines = [
            f"{self.right.method} {self.right.path} HTTP/1.1",
            "Host: 127.0.0.1",
            "Accept: application/json, text/event-stream",
            f"Content-Type: {self.content_type}",
            length,
        ]
        return "\r\n".join([*lines, "", ""]).encode()


def chunk(piece: bytes) -> bytes:
    return f"{len(piece):x}\r\n".encode() + piece + b"\r\n"


def sent(right: Right) -> Sent:
    if right.files:
        return Sent(right, form_of(right.body, right.files), f"multipart/form-data; boundary={BOUNDARY}")
    return Sent(right, json_of(right.body).encode(), "application/json")


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values inside."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list | tuple)
        else ()
    )
    return [found for key, each in inner for found in [(*at, key), *places(each, (*at, key))]]


def replaced(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    key, *rest = place
    if isinstance(value, dict):
        return {**value, key: replaced(value.get(key), tuple(rest), new)}
    return [replaced(each, tuple(rest), new) if at == key else each for at, each in enumerate(value)]


@st.composite
def damaged(draw: st.DrawFn, right: Right) -> Sent:
    """One to three values of a right body put wrong, left out, or added."""
    body: dict[str, Any] = right.body
    for _ in range(draw(st.integers(1, 3))):
        extra = [(name,) for name in (*right.known, "nobody_knows_this")]
        place = draw(st.sampled_from([*places(body), *extra]))
        if len(place) == 1 and draw(st.integers(0, 6)) == 0:
            body = {name: value for name, value in body.items() if name != place[0]}
        else:
            body = replaced(body, place, draw(st.sampled_from(HOSTILE)))
    made = sent(replace(right, body=body))
    way = draw(st.integers(0, 9))
    if way == 0 and not right.files and body:  # a key twice
        name = draw(st.sampled_from(sorted(body)))
        text = made.body[:-1] + f",{json.dumps(name)}:{json_of(draw(st.sampled_from(HOSTILE)))}}}".encode()
        return replace(made, body=text)
    if way == 1:  # truncated, and said to be so long
        return replace(made, body=made.body[: draw(st.integers(0, len(made.body)))])
    if way == 2:
        kinds = ("", "text/plain", "application/json; charset=latin-1", "multipart/form-data", "a" * 500)
        return replace(made, content_type=draw(st.sampled_from(kinds)))
    if way == 3:
        at = draw(st.integers(0, max(0, len(made.body) - 1)))
        return replace(
            made, body=made.body[:at] + draw(st.binary(min_size=1, max_size=3)) + made.body[at + 1 :]
        )
    return replace(made, chunked=way == 4)
