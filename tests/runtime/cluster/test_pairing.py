"""TLS between two processes that know each other's certificates."""

import asyncio
import ssl

import pytest

from pippin.runtime.cluster.host import Identity


async def exchanged(listening: ssl.SSLContext, speaking: ssl.SSLContext) -> bytes:
    """What comes back of a word that is said to a listener which repeats it. Raises `OSError`."""

    async def repeat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(repeat, "127.0.0.1", 0, ssl=listening)
    async with server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=speaking)
        writer.write(b"hello\n")
        await writer.drain()
        heard = await reader.readline()
        writer.close()
        return heard


def test_two_that_know_each_other_talk() -> None:
    bridge, host = Identity.new(), Identity.new()
    heard = asyncio.run(
        exchanged(
            bridge.context(ssl.PROTOCOL_TLS_SERVER, host.certificate),
            host.context(ssl.PROTOCOL_TLS_CLIENT, bridge.certificate),
        )
    )
    assert heard == b"hello\n"


@pytest.mark.parametrize("stranger", ["speaks", "listens"])
def test_a_stranger_is_refused_whichever_side_it_is(stranger: str) -> None:
    bridge, host, other = Identity.new(), Identity.new(), Identity.new()
    if stranger == "speaks":
        pair = (
            bridge.context(ssl.PROTOCOL_TLS_SERVER, host.certificate),
            other.context(ssl.PROTOCOL_TLS_CLIENT, bridge.certificate),
        )
    else:
        pair = (
            other.context(ssl.PROTOCOL_TLS_SERVER, host.certificate),
            host.context(ssl.PROTOCOL_TLS_CLIENT, bridge.certificate),
        )

    async def play() -> None:
        # Python's reader reports the refusal of a certificate in the handler's task, too.
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        async with asyncio.timeout(10):
            try:
                assert await exchanged(*pair) == b""
            except ssl.SSLError:
                return

    asyncio.run(play())


def test_a_plain_connection_is_refused() -> None:
    bridge, host = Identity.new(), Identity.new()

    async def play() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        server = await asyncio.start_server(
            lambda *_: None, "127.0.0.1", 0, ssl=bridge.context(ssl.PROTOCOL_TLS_SERVER, host.certificate)
        )
        async with server, asyncio.timeout(10):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"link\n" * 10)
            assert b"link" not in await reader.read()
            writer.close()

    asyncio.run(play())
