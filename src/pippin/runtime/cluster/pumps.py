"""Used by both ends of a bridge: forwards bytes until the sender ends, and detects a machine that has gone silent."""

import asyncio
import socket
from contextlib import suppress
from typing import Final

READ_SIZE: Final = 1 << 16
SILENT: Final = 12
"""Seconds after which a machine that acknowledges nothing counts as lost; the kernel probes every two."""
LINK: Final = b"link\n"  # the first line of a connection names its content
LOG: Final = b"log\n"


async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Forward bytes until the source ends or the target is gone, then close the target."""
    with suppress(OSError):  # either side may close
        while data := await source.read(READ_SIZE):
            target.write(data)
            await target.drain()
    with suppress(OSError):
        target.close()
        await target.wait_closed()


def watch(stream: asyncio.StreamWriter) -> None:
    """Make the kernel close the connection if the other machine disappears without a word (tcp(7))."""
    connection: socket.socket = stream.get_extra_info("socket")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 2),
        ("TCP_KEEPINTVL", 2),
        ("TCP_KEEPCNT", SILENT // 2 - 1),
        ("TCP_USER_TIMEOUT", SILENT * 1000),
    ):
        if (option := getattr(socket, name, None)) is not None:  # macOS lacks some of them
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
