"""The running server: signals, ports, drains, bounds on what comes before a request, a light start."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import httpx
import pytest

from pippin.api.http import protocol as bounded_http
from pippin.api.listening import listen, listen_in_file
from pippin.core.errors import ServerError
from tests.api.live_server import MODEL, live_server, stoppable_server

PROGRAM = """
import asyncio, json, logging, sys
from pathlib import Path
from pippin.api.listening import listen
from pippin.api.server import Server
from pippin.config.options.server import ModelEntry, ServerOptions
from pippin.config.settings import Settings
from tests.service.doubles import scripted, scripted_service

async def main():
    options = ServerOptions(models=(ModelEntry(path="m"),), port=0, drain_timeout=float(sys.argv[2]))
    async with scripted_service(scripted("m", Path(sys.argv[1])), options=options) as service:
        server = Server(service, Settings(server=options), listen("127.0.0.1", 0))
        await server.run(lambda: print(server.port, flush=True))

asyncio.run(main())
"""
SLOW = {"rules": [{"when": {"user": "slow"}, "say": "word " * 60, "gap": 0.02}]}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "slow.script.json"
    path.write_text(json.dumps(SLOW))
    return path


def start(script: Path, drain: float) -> "tuple[subprocess.Popen[str], str]":
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(["src", "."])}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(script), str(drain)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    assert isinstance(process.stdout, IO) or process.stdout is not None
    return process, f"http://127.0.0.1:{process.stdout.readline().strip()}"


def at(address: str) -> tuple[str, int]:
    url = httpx.URL(address)
    return url.host, url.port or 80


def slow_stream(address: str) -> "tuple[httpx.Client, Iterator[str]]":
    client = httpx.Client(timeout=20)
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "slow"}]}
    request = client.build_request("POST", f"{address}/v1/chat/completions", json=body)
    lines = client.send(request, stream=True).iter_lines()
    next(lines)
    return client, lines


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_lets_running_requests_finish(script: Path, number: int) -> None:
    process, address = start(script, 20)
    client, lines = slow_stream(address)
    process.send_signal(number)
    assert [line for line in lines if line][-1] == "data: [DONE]"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{address}/health")
    assert process.wait(10) == 0
    client.close()
    process.communicate()


def test_a_second_signal_stops_now(script: Path) -> None:
    process, address = start(script, 60)
    client, _ = slow_stream(address)
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.wait(10)
    assert time.monotonic() - began < 3
    client.close()
    process.communicate()


def test_the_drain_has_a_deadline(script: Path) -> None:
    process, address = start(script, 1)
    script.write_text(json.dumps(SLOW))
    client, _ = slow_stream(address)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.wait(10)
    assert time.monotonic() - began < 4
    client.close()
    process.communicate()


def test_a_port_in_use_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerError, match=f"Port {port} of 127.0.0.1 is in use"):
            listen("127.0.0.1", port)
    with pytest.raises(ServerError, match="Can't listen"):
        listen("no.such.host.invalid", 80)


def test_localhost_is_served_in_both_families(tmp_path: Path) -> None:
    with stoppable_server(tmp_path, {}, host="localhost") as live:
        port = live.address.rpartition(":")[2]
        families = {family for family, *_ in socket.getaddrinfo("localhost", None)}
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "[::1]")):
            if family in families:
                assert httpx.get(f"http://{host}:{port}/health").status_code == 200


def test_a_program_without_a_host_header_is_answered(tmp_path: Path) -> None:
    with live_server(tmp_path, {}) as address, socket.create_connection(at(address)) as client:
        client.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert client.makefile("rb").readline().startswith(b"HTTP/1.1 200")


def test_a_unix_socket_is_its_owners_and_replaces_that_of_a_killed_server(tmp_path: Path) -> None:
    path = tmp_path / "pippin.sock"
    listen_in_file(str(path)).close()
    with contextlib.closing(listen_in_file(str(path))):
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(ServerError, match="A program listens"):
            listen_in_file(str(path))
    with pytest.raises(ServerError, match="Can't listen at"):
        listen_in_file(str(tmp_path / "none" / "pippin.sock"))


def test_the_server_never_imports_what_only_workers_need() -> None:
    program = (
        "import sys, pippin.api.server, pippin.api.app\n"
        "from tests.api.fakes import FakeService, application\n"
        "application(FakeService(), enable_metrics=True)\n"
        "heavy = {'mlx', 'mlx_lm', 'mlx_vlm', 'transformers', 'torch', 'tokenizers', 'llguidance', 'numpy', 'gguf'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(["src", "."])}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert run.stdout.strip() == "[]", run.stderr


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with live_server(tmp_path_factory.mktemp("server"), {}, body_timeout=0.3) as found:
        yield found


GREEDY = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


def talk(address: str, *pieces: bytes, wait: float = 5) -> bytes:
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=wait) as connection:
        answer = b""
        try:
            for piece in pieces:
                connection.sendall(piece)
            while data := connection.recv(65536):
                answer += data
        except (TimeoutError, ConnectionResetError, BrokenPipeError):
            pass
        return answer


def test_endless_headers_are_431(address: str) -> None:
    answer = talk(
        address, b"GET /health HTTP/1.1\r\nhost: localhost\r\n", *[b"x-a: " + b"y" * 5000 + b"\r\n"] * 40
    )
    assert answer.startswith(b"HTTP/1.1 431 ")


def test_one_header_without_an_end_is_431(address: str) -> None:
    answer = talk(address, b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-a: ", *[b"y" * 50_000] * 20)
    assert answer.startswith(b"HTTP/1.1 431 ")


def test_trailers_without_an_end_are_not_taken(address: str) -> None:
    head = GREEDY + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx-a: "
    began = time.monotonic()
    assert b"HTTP/1.1 200" not in talk(address, head, *[b"y" * 50_000] * 20)
    assert time.monotonic() - began < bounded_http.LINGER_SECONDS + 1


def test_a_chunk_extension_without_an_end_is_not_taken(address: str) -> None:
    head = GREEDY + b"transfer-encoding: chunked\r\n\r\n2;a="
    began = time.monotonic()
    assert b"HTTP/1.1 200" not in talk(address, head, *[b"y" * 50_000] * 20)
    assert time.monotonic() - began < bounded_http.LINGER_SECONDS + 1


def test_a_refusal_never_stands_in_the_middle_of_an_answer(tmp_path: Path) -> None:
    body = json.dumps({"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "slow"}]})
    asked = GREEDY + b"content-length: %d\r\n\r\n%b" % (len(body), body.encode())
    with live_server(tmp_path, SLOW) as slow:
        host, port = slow.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(asked)
            answer = connection.recv(65536)
            connection.sendall(b"GET / HTTP/1.1\r\nx-a: " + b"y" * 200_000)
            with contextlib.suppress(ConnectionResetError):
                while data := connection.recv(65536):
                    answer += data
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"HTTP/1.1") == 1


def test_a_great_many_headers_are_431(address: str) -> None:
    answer = talk(address, b"GET /health HTTP/1.1\r\nhost: localhost\r\n", b"a: b\r\n" * 5000)
    assert answer.startswith(b"HTTP/1.1 431 ")


def test_an_endless_address_is_431(address: str) -> None:
    assert talk(address, b"GET /", b"a" * 200_000).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/1.1\r\nx-a: " + b"y" * 1_000_000, b"431"),
        (b"\x16\x03\x01 hello\r\n\r\n", b"400"),
        (GREEDY + b"connection: close\r\ncontent-length: 99999999999\r\n\r\n", b"413"),
    ],
)
def test_who_still_sends_hears_the_answer(address: str, head: bytes, status: bytes) -> None:
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        for piece in (head, b"more", b"and more"):
            connection.sendall(piece)
            time.sleep(0.2)  # the answer is there, and not read yet
        assert connection.recv(65536).startswith(b"HTTP/1.1 " + status)
        assert connection.recv(65536) == b""


def test_who_never_stops_sending_is_cut_off(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_http, "LINGER_SECONDS", 0.2)
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(b"hello\r\n\r\n")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            for _ in range(50):
                connection.sendall(b"more")
                time.sleep(0.1)


def test_what_is_no_http_is_400(address: str) -> None:
    assert talk(address, b"\x16\x03\x01 hello\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_a_body_that_stops_is_408(address: str) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    answer = talk(address, head + b"connection: close\r\ncontent-length: 100\r\n\r\n{", wait=3)
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_pipelined_and_reused_connections_work(address: str) -> None:
    once = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    last = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    assert talk(address, once * 3 + last).count(b"HTTP/1.1 200 OK") == 4


def test_thousands_of_requests_in_one_write_are_not_taken(address: str) -> None:
    """They fit into one read, which is one turn of the event loop."""
    once = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    assert talk(address, once * 5000).count(b"HTTP/1.1 200 OK") <= bounded_http.IN_LINE + 1
    assert talk(address, once * 20 + b"GET / HTTP/1.0\r\nhost: localhost\r\n\r\n").count(b"200 OK") == 21


def test_hundreds_of_hang_ups_leave_nothing_behind(address: str) -> None:
    body = json.dumps(
        {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "word " * 50}]}
    )

    async def one(place: int) -> None:
        host, port = address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n{body}"
        writer.write(head.encode()[: len(head) - (place % 3) * 20])
        await writer.drain()
        if place % 2:
            await reader.read(place * 7)
        writer.transport.abort()

    async def main() -> None:
        for first in range(0, 300, 50):
            await asyncio.gather(*(one(place) for place in range(first, first + 50)))

    asyncio.run(main())
    deadline = time.monotonic() + 5
    while (
        running := httpx.get(f"{address}/v1/status").json()["num_running"]
    ) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert running == 0
    states = httpx.get(f"{address}/health").json()
    assert states["active_requests"] == 0


def test_headers_that_do_not_come_to_an_end_close_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_http, "HEAD_SECONDS", 0.3)
    with live_server(tmp_path, {}) as slow:
        began = time.monotonic()
        assert talk(slow, b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-slow: ") == b""
        assert talk(slow) == b""
        assert time.monotonic() - began < 4
