"""What both ends of a bridge do: pass bytes on until the sender ends, and notice a machine that has fallen silent."""

import asyncio
import socket
from contextlib import suppress
from typing import Final

READ_SIZE: Final = 1 << 16
SILENT: Final = 12
"""Seconds after which a machine that acknowledges nothing counts as lost; the kernel asks every two."""
LINK: Final = b"link\n"  # the first line of a connection says what it carries
LOG: Final = b"log\n"


async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Pass on bytes until the source ends or the target is gone, then close the target."""
    with suppress(OSError):  # either side may leave
        while data := await source.read(READ_SIZE):
            target.write(data)
            await target.drain()
    with suppress(OSError):
        target.close()
        await target.wait_closed()


def watch(stream: asyncio.StreamWriter) -> None:
    """Have the kernel end a connection whose other machine is gone without a word (tcp(7))."""
    connection: socket.socket = stream.get_extra_info("socket")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 2),
        ("TCP_KEEPINTVL", 2),
        ("TCP_KEEPCNT", SILENT // 2 - 1),
        ("TCP_USER_TIMEOUT", SILENT * 1000),
    ):
        if (option := getattr(socket, name, None)) is not None:  # macOS has not all of them
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
