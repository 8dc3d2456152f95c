"""A Hugging Face Hub on loopback with one repository, as far as its client library asks."""

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PIECE = 1 << 18  # bytes
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """What the repository holds, how it misbehaves, and what was asked of it."""

    files: dict[str, bytes]
    repository: str = "org/model"
    gated: bool = False
    failures: int = 0  # answers of 503 before all is well
    cut_after: int | None = None  # bytes of the first download after which the connection breaks
    stall: bool = False  # the weights never come
    wrong: int = 0  # downloads of weights that bring other bytes
    pace: float = 0  # seconds before each 256 KiB of a file
    elsewhere: str | None = None  # another host that holds the weights
    address: str = ""
    asked: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    file_asked: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            _answer(hub, self, with_body=True)

        def do_HEAD(self) -> None:
            _answer(hub, self, with_body=False)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _answer(hub: FakeHub, handler: BaseHTTPRequestHandler, with_body: bool) -> None:
    path = handler.path.partition("?")[0]
    hub.asked.append(f"{handler.command} {path}")
    hub.tokens.append(handler.headers.get("Authorization"))
    if hub.failures:
        hub.failures -= 1
        _send(handler, 503, {}, b"busy", with_body)
    elif path == "/api/models":
        found = [{"id": hub.repository, "downloads": 12345, "pipeline_tag": "text-generation"}]
        _send(handler, 200, {"Content-Type": "application/json"}, json.dumps(found).encode(), with_body)
    elif path.startswith(f"/api/models/{hub.repository}"):
        if hub.gated:
            _send(handler, 403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"}, b"{}", with_body)
        else:
            _send(handler, 200, {"Content-Type": "application/json"}, _description(hub), with_body)
    elif path.startswith(f"/{hub.repository}/resolve/{COMMIT}/"):
        _file(hub, handler, path.removeprefix(f"/{hub.repository}/resolve/{COMMIT}/"), with_body)
    else:
        _send(handler, 404, {"X-Error-Code": "RepoNotFound"}, b"{}", with_body)


def _description(hub: FakeHub) -> bytes:
    siblings = [
        {"rfilename": name, "size": len(data), "blobId": _digest(data)} for name, data in hub.files.items()
    ]
    return json.dumps({"id": hub.repository, "sha": COMMIT, "private": False, "siblings": siblings}).encode()


def _file(hub: FakeHub, handler: BaseHTTPRequestHandler, name: str, with_body: bool) -> None:
    hub.file_asked.set()
    data = hub.files[name]
    headers = {"ETag": f'"{_digest(data)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
    if not with_body and hub.elsewhere is not None and name.endswith(".safetensors"):
        headers = {"X-Linked-Etag": f'"{_digest(data)}"', "X-Linked-Size": str(len(data))}
        headers["Location"] = f"{hub.elsewhere}{handler.path}"
        _send(handler, 302, headers, b"", with_body)
        return
    if not with_body:
        _send(handler, 200, headers, data, with_body)
        return
    asked = handler.headers.get("Range")
    start = 0
    if asked:
        hub.ranges.append(asked)
        start = int(asked.removeprefix("bytes=").partition("-")[0])
        headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
    rest = data[start:]
    if name == "big.safetensors" and hub.wrong:
        hub.wrong -= 1
        rest = bytes(len(rest))
    if name.endswith(".safetensors") and hub.stall:
        time.sleep(30)
    if name.endswith(".safetensors") and hub.cut_after is not None:
        cut, hub.cut_after = hub.cut_after, None
        handler.send_response(206 if asked else 200)
        for key, value in (headers | {"Content-Length": str(len(rest))}).items():
            handler.send_header(key, value)
        handler.end_headers()
        handler.wfile.write(rest[:cut])
        handler.wfile.flush()
        handler.close_connection = True
        return
    _send(handler, 206 if asked else 200, headers, rest, with_body, hub.pace)


def _send(
    handler: BaseHTTPRequestHandler,
    status: int,
    headers: dict[str, str],
    body: bytes,
    with_body: bool,
    pace: float = 0,
) -> None:
    handler.send_response(status)
    for key, value in (headers | {"Content-Length": str(len(body))}).items():
        handler.send_header(key, value)
    handler.end_headers()
    if not with_body:
        return
    for start in range(0, len(body), PIECE):
        time.sleep(pace)
        handler.wfile.write(body[start : start + PIECE])


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
