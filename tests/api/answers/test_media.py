"""Media from outside: what is brought in, and what is refused."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import patch
from urllib.parse import unquote

import httpcore
import pytest

from pippin.api.answers.downloads import Downloads, is_own, is_public, may_connect_to
from pippin.api.answers.media import MediaResolver
from pippin.config.options.server import ServerOptions
from pippin.core.conversation import Image, Inline, Message, Text, ToolResult, Url
from pippin.core.errors import ServerError
from pippin.core.requests import GenerationRequest

PNG = b"\x89PNG\r\n\x1a\n0000"

PRIVATE = [
    "127.0.0.1",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "::1",
    "::",
    "fd00::1",
    "fe80::1",
    "fe80::1%eth0",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "2002:7f00:1::",
    "64:ff9b::7f00:1",
    "ff02::1",
    "::127.0.0.1",
    "::ffff:0:127.0.0.1",
    "fec0::1",
    "192.0.0.192",
    "168.63.129.16",
    "64:ff9b:1::1",
    "100::1",
    "2001:2::1",
    "2001:db8::1",
    "2002:808:808::1",
    "3fff::1",
    "5f00::1",
    "198.18.0.1",
    "192.88.99.1",
    "255.255.255.255",
    "64:ff9b::a83f:8110",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_inside_a_private_network_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "64:ff9b::808:808"])
def test_an_address_of_the_open_internet_is_public(address: str) -> None:
    assert is_public(address)


def test_an_address_of_this_machine_is_not_fetched_from(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interface:
        address = "8.8.8.8"

    assert is_own("127.0.0.1")
    assert may_connect_to("dns.example", "8.8.8.8", ())
    monkeypatch.setattr("pippin.api.answers.downloads.psutil.net_if_addrs", lambda: {"eth0": [Interface]})
    assert not may_connect_to("dns.example", "8.8.8.8", ())
    assert not may_connect_to("dns.example", "::ffff:8.8.8.8", ("dns.example",))
    assert may_connect_to("8.8.8.8", "8.8.8.8", ("8.8.8.8",)), "the operator named this address"


@pytest.mark.parametrize(
    ("address", "opened"),
    [("192.168.1.20", True), ("fd00::20", True), ("8.8.8.8", True), ("127.0.0.1", False), ("::1", False),
     ("169.254.169.254", False), ("fe80::1", False), ("168.63.129.16", False)],
)  # fmt: skip
def test_a_host_that_the_operator_named_may_lie_on_a_private_network(address: str, opened: bool) -> None:
    assert may_connect_to("camera.local", address, ("camera.local",)) is opened
    assert may_connect_to("other.example", address, ("camera.local",)) is (address == "8.8.8.8")


def test_an_address_that_the_operator_named_is_fetched_from() -> None:
    async def run() -> Inline:
        async with site(lambda _: answer(PNG)) as base:
            return await resolver(media_hosts=("127.0.0.1",)).fetch(base + "/x.png", "image")

    assert asyncio.run(run()).data == PNG


def test_any_public_host_may_be_listed_beside_a_private_one() -> None:
    media = resolver(media_hosts=("*", "127.0.0.2"))
    assert "private network" in refusal(media, "http://127.0.0.1:9/x.png")
    assert "could not be fetched" in refusal(media, "http://127.0.0.2:9/x.png")


def resolver(**options: object) -> MediaResolver:
    return MediaResolver(ServerOptions(**options))  # type: ignore[arg-type]


def on_loopback(**options: object) -> MediaResolver:
    media = resolver(**options)
    with patch("pippin.api.answers.downloads.may_connect_to", lambda host, address, listed: True):
        media.downloads = Downloads(ServerOptions(**options))  # type: ignore[arg-type]
    return media


def fetch(media: MediaResolver, url: str) -> Inline:
    return asyncio.run(media.fetch(url, "messages[0].content[0]"))


def refusal(media: MediaResolver, url: str) -> str:
    with pytest.raises(ServerError) as caught:
        fetch(media, url)
    assert caught.value.report.status < 500
    assert caught.value.report.param == "messages[0].content[0]"
    return caught.value.report.message


def test_a_data_uri_becomes_its_bytes() -> None:
    uri = "data:image/png;base64," + base64.b64encode(PNG).decode()
    assert fetch(resolver(), uri) == Inline(PNG, "image/png")


@pytest.mark.parametrize(
    "uri", ["data:image/png;base64,@@@", "data:image/png;base64", "data:,", "data:;base64,AAA"]
)
def test_a_broken_data_uri_is_refused(uri: str) -> None:
    refusal(resolver(), uri)


def test_a_data_uri_over_the_limit_is_refused() -> None:
    uri = "data:image/png;base64," + base64.b64encode(bytes(2000)).decode()
    assert "MiB" in refusal(resolver(media_max_mb=0.001), uri)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/x.png",
        "http://localhost/x.png",
        "http://[::1]/x.png",
        "http://2130706433/x.png",
        "http://0x7f.1/x.png",
        "http://[::ffff:127.0.0.1]/x.png",
        "http://169.254.169.254/latest/meta-data/",
    ],
)
def test_a_private_host_is_never_connected_to(url: str) -> None:
    assert "private network" in refusal(resolver(), url)


@pytest.mark.parametrize(
    "answers",
    [
        [["127.0.0.1"]],
        [["8.8.8.8", "127.0.0.1"]],
        [["127.0.0.1", "8.8.8.8"]],
        [["8.8.8.8"], ["127.0.0.1"]],
        [["8.8.8.8"], ["169.254.169.254"]],
        [["2606:4700:4700::1111"], ["::1"]],
    ],
    ids=str,
)
def test_a_name_that_changes_what_it_leads_to_is_connected_to_where_it_was_checked(
    answers: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer of DNS is checked, and the very address that was checked is connected to; a name is asked once."""
    asked: list[list[str]] = []
    connected: list[str] = []

    async def getaddrinfo(*_: object, **__: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        found = answers[min(len(asked), len(answers) - 1)]
        asked.append(found)
        return [(0, 0, 0, "", (each, 80)) for each in found]

    async def connect_tcp(_: object, host: str, *__: object, **___: object) -> None:
        connected.append(host)
        raise httpcore.ConnectError("nobody is there")

    async def run() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo, raising=False)
        monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", connect_tcp)
        for _ in range(2):
            with pytest.raises(ServerError):
                await resolver().fetch("http://rebinding.example/x.png", "image")

    asyncio.run(run())
    assert len(asked) == 2, "once for each fetch"
    assert all(is_public(address) for address in connected)


def test_a_host_is_reached_by_another_address_where_the_first_cannot_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    addresses = ["2606:4700:4700::1111", "8.8.8.8"]
    tried: list[str] = []

    async def getaddrinfo(*_: object, **__: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        return [(0, 0, 0, "", (each, 80)) for each in addresses]

    async def connect_tcp(_: object, host: str, *__: object, **___: object) -> httpcore.AsyncNetworkStream:
        tried.append(host)
        if ":" in host:
            raise httpcore.ConnectError("there is no route to it")
        head = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: %d\r\n\r\n" % len(PNG)
        return httpcore.AsyncMockStream([head + PNG])

    async def run() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo, raising=False)
        monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", connect_tcp)
        assert (await resolver().fetch("http://both.example/x.png", "image")).data == PNG

    asyncio.run(run())
    assert tried == addresses


@pytest.mark.parametrize(
    "url", ["ftp://example.com/x", "gopher://x/", "http://user:pw@example.com/", "http:///x"]
)
def test_an_address_of_another_kind_is_refused(url: str) -> None:
    refusal(resolver(), url)


def test_fetching_can_be_switched_off() -> None:
    assert "`--no-media-fetch` forbids; send" in refusal(
        resolver(media_fetch=False), "https://example.com/x.png"
    )
    assert "`--offline` forbids" in refusal(resolver(offline=True), "https://example.com/x.png")


def test_a_host_that_is_not_listed_is_refused() -> None:
    assert "doesn't fetch from" in refusal(
        on_loopback(media_hosts=("example.org",)), "http://127.0.0.1/x.png"
    )


def test_a_path_is_refused_without_a_media_folder(tmp_path: Path) -> None:
    assert "--media-path" in refusal(resolver(), str(tmp_path / "x.png"))


def test_a_path_inside_the_media_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "in.png").write_bytes(PNG)
    assert fetch(resolver(media_path=str(tmp_path)), "in.png").data == PNG
    assert fetch(resolver(media_path=str(tmp_path)), f"file://{tmp_path}/in.png").data == PNG


def test_a_path_out_of_the_media_folder_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "out.png").write_bytes(PNG)
    (root / "link.png").symlink_to(tmp_path / "out.png")
    media = resolver(media_path=str(root))
    for url in (
        "../out.png",
        str(tmp_path / "out.png"),
        "link.png",
        "/etc/passwd",
        "missing.png",
        "a\0b",
        ".",
    ):
        assert str(tmp_path) not in refusal(media, url)


Reply = Callable[[str], bytes | Awaitable[bytes]]


@asynccontextmanager
async def site(reply: Reply) -> AsyncIterator[str]:
    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        head = await reader.readuntil(b"\r\n\r\n")
        answer = reply(head.split()[1].decode())
        try:
            writer.write(answer if isinstance(answer, bytes) else await answer)
            await writer.drain()
        finally:
            writer.transport.abort() if writer.transport.is_closing() else writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for task in serving:
            if task is not None:
                task.cancel()
        await asyncio.gather(*(task for task in serving if task), return_exceptions=True)


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def fetched(reply: Reply, path: str = "/", **options: object) -> Inline:
    async def run() -> Inline:
        async with site(reply) as base:
            return await on_loopback(**options).fetch(base + path, "image")

    return asyncio.run(run())


def refused(reply: Reply, path: str = "/", **options: object) -> str:
    with pytest.raises(ServerError) as caught:
        fetched(reply, path, **options)
    return caught.value.report.message


def test_an_address_is_fetched_with_its_type() -> None:
    assert fetched(lambda _: answer(PNG, "Content-Type: image/png; q=1")) == Inline(PNG, "image/png")


@pytest.mark.parametrize("path", ["/ü.png", "/a b.png", "/x?q=bücher", "/%C3%BC.png"])
def test_an_address_that_is_not_ascii_is_fetched_percent_encoded(path: str) -> None:
    asked: list[str] = []
    assert fetched(lambda path: asked.append(path) or answer(PNG), path).data == PNG
    assert asked[0].isascii()
    assert unquote(asked[0]) == unquote(path)


def test_a_redirect_to_an_address_that_is_not_ascii_is_followed() -> None:
    moved = answer(b"", "Location: /\u00fc", status="302 Found")
    assert fetched(lambda path: answer(PNG) if path == "/%C3%BC" else moved).data == PNG


@pytest.mark.parametrize(
    "url",
    [
        "http://bücher.example.invalid/a.png",
        "http://☃.invalid/",
        "http://ex ample.invalid/",
        "http://a\u200db.invalid/",
        "http://" + "ü" * 300 + ".invalid/",
        "http://xn--.invalid/",
        "http://[v1.x]/",
        "http://0177.0.0.1/x.png",
        "http://[::1%25ü]/",
        "http://a.invalid:99999/",
        "http://a.invalid/\x00",
        "http://a.invalid/" + "a" * 70000,
        "http://a.invalid/\r\nX: y",
        "http://\u2488.invalid/",
        "http://\uff11\uff12\uff17.0.0.1/",
    ],
)
def test_a_strange_host_or_path_is_refused(url: str) -> None:
    refusal(resolver(), url)


def test_a_redirect_is_followed() -> None:
    moved = answer(b"", "Location: /there", status="302 Found")
    assert fetched(lambda path: answer(PNG) if path == "/there" else moved).data == PNG


def test_a_redirect_to_a_host_that_is_not_listed_is_refused() -> None:
    moved = answer(b"", "Location: http://localhost/x", status="302 Found")
    assert "doesn't fetch from" in refused(lambda _: moved, media_hosts=("127.0.0.1",))


def test_a_circle_of_redirects_ends() -> None:
    assert "redirects more than" in refused(lambda _: answer(b"", "Location: /again", status="302 Found"))


def test_an_endless_body_is_cut_off_at_the_limit() -> None:
    assert "larger than" in refused(lambda _: answer(bytes(3 * 2**20)), media_max_mb=1.0)


def test_a_slow_answer_is_given_up() -> None:
    async def never() -> bytes:
        await asyncio.sleep(5)
        return b""

    assert "did not arrive" in refused(lambda _: never(), media_timeout=0.2)


def test_a_compressed_answer_is_refused() -> None:
    assert "compressed" in refused(lambda _: answer(b"x", "Content-Encoding: gzip"))


@pytest.mark.parametrize("raw", [b"garbage\r\n\r\n", answer(b"", status="404 Not Found")])
def test_a_broken_answer_is_refused(raw: bytes) -> None:
    refused(lambda _: raw)


def test_media_in_every_place_of_a_conversation_are_resolved() -> None:
    uri = "data:image/png;base64," + base64.b64encode(PNG).decode()
    request = GenerationRequest(
        model="m",
        messages=(
            Message("user", (Text("look"), Image(Url(uri), detail="low"))),
            Message("tool", (ToolResult("c", (Text("t"), Image(Url(uri)))),)),
        ),
    )
    resolved = asyncio.run(resolver().resolve(request))
    assert resolved.messages is not None
    assert resolved.messages[0].parts[1] == Image(Inline(PNG, "image/png"), detail="low")
    assert resolved.messages[1].parts[0] == ToolResult("c", (Text("t"), Image(Inline(PNG, "image/png"))))


def test_too_many_media_are_refused() -> None:
    parts = tuple(Image(Url("data:,x")) for _ in range(65))
    with pytest.raises(ServerError, match="at most 64"):
        asyncio.run(resolver().resolve(GenerationRequest(model="m", messages=(Message("user", parts),))))
