"""`pippin fit` of a repository: config and headers are read, the weights are not."""

import json
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.catalog.fitting.test_fit import LLAMA
from tests.cli.serving import Terminal, terminal

__all__ = ["terminal"]

COMMIT = "0123456789abcdef0123456789abcdef01234567"
VALUES = 50_000_000


def weights() -> bytes:
    """A file of weights whose header promises 100 MB; what follows it is never read."""
    header = {
        "model.embed_tokens.weight": {"dtype": "F16", "shape": [VALUES], "data_offsets": [0, 2 * VALUES]}
    }
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(1000)


FILES = {
    "config.json": json.dumps({**LLAMA, "max_position_embeddings": 4096, "torch_dtype": "float16"}).encode(),
    "model.safetensors": weights(),
}


@pytest.fixture
def hub(terminal: Terminal) -> Iterator[list[str]]:
    """A hub with the repository org/model; gives what was asked, with ranges."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def answer(self, *, with_body: bool) -> None:
            prefix, _, name = self.path.partition("?")[0].rpartition("/")
            span = self.headers.get("Range")
            asked.append(f"{self.command} {name} {span or ''}".strip())
            if not prefix.startswith("/org/model/resolve/") or name not in FILES:
                self.reply(404, {"X-Error-Code": "EntryNotFound"}, b"", with_body=False)
                return
            data, status = FILES[name], 200
            headers = {"ETag": '"abc"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
            if span:
                first, _, last = span.removeprefix("bytes=").partition("-")
                part = data[int(first) : int(last) + 1 if last else None]
                headers["Content-Range"] = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
                data, status = part, 206
            self.reply(status, headers, data, with_body=with_body)

        def reply(self, status: int, headers: dict[str, str], data: bytes, *, with_body: bool) -> None:
            self.send_response(status)
            for key, value in (headers | {"Content-Length": str(len(data))}).items():
                self.send_header(key, value)
            self.end_headers()
            if with_body:
                self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    terminal.environment["HF_ENDPOINT"] = f"http://127.0.0.1:{server.server_address[1]}"
    terminal.environment["HF_HUB_DISABLE_TELEMETRY"] = "1"
    try:
        yield asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_repository_is_sized_without_its_weights(terminal: Terminal, hub: list[str]) -> None:
    done = terminal.run("fit", "org/model", "--json", "--clients", "2")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["stored_bytes"] == 2 * VALUES
    assert told["loaded_bytes"] >= 2 * VALUES
    assert told["context_tokens"] == told["longest_context"] == 4096
    assert told["needed_bytes"] == told["loaded_bytes"] + 2 * told["context_bytes"]
    assert all("bytes=" in line for line in hub if line.startswith("GET model.safetensors"))
    assert not (terminal.home / ".cache/huggingface/hub").exists()


def test_what_the_hub_lacks_is_one_line(terminal: Terminal, hub: list[str]) -> None:
    done = terminal.run("fit", "org/nobody")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "pippin search" in done.stderr


def test_a_hub_out_of_reach_is_one_line_that_says_what_to_type(terminal: Terminal) -> None:
    terminal.environment["HF_ENDPOINT"] = "http://127.0.0.1:9"
    done = terminal.run("fit", "org/model")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "`pippin list`" in done.stderr
