"""The channel between two processes of one server: ordered messages, some of which carry a descriptor.

A frame is a header and a payload. The header is the payload's length (four bytes, big-endian) and one byte that is 1 if
a descriptor comes along. The descriptor is sent with the header's first byte (`SCM_RIGHTS`). A socket keeps both bytes
and descriptors in order, so the receiver hands each descriptor to the next frame that announces one.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

from pippin.core.decoding import message_decoder

HEADER: Final = 5
READ: Final = 1 << 18  # bytes
AT_ONCE: Final = 16  # descriptors in one read
BUFFER: Final = 1 << 20  # bytes
MOST_WAITING: Final = 4096  # frames queued for a process that does not read

Message = TypeVar("Message")


class Channel(Generic[Message]):
    """One end of the channel. `receive` gets each message and its descriptor, which it then owns. `closed` is called
    once, when the other end is gone."""

    def __init__(
        self,
        connection: socket.socket,
        messages: Any,
        receive: Callable[[Message, int | None], None],
        closed: Callable[[], None],
    ) -> None:
        """`messages`: the type, or union of types, of incoming messages."""
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        self._connection = connection
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = message_decoder(messages).decode
        self._receive = receive
        self._closed = closed
        self._came = bytearray()
        self._descriptors: deque[int] = deque()
        self._unsent: deque[tuple[memoryview, int | None]] = deque()
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._loop.add_reader(connection, self._read)

    @property
    def full(self) -> bool:
        """Whether the other end is so far behind that the sender should look elsewhere."""
        return len(self._unsent) > MOST_WAITING

    def send(self, message: msgspec.Struct, descriptor: int | None = None) -> None:
        """Queue a message. The channel takes over the descriptor and closes it once it is sent."""
        if not self._open:
            if descriptor is not None:
                os.close(descriptor)
            return
        payload = self._encode(message)
        head = len(payload).to_bytes(4, "big") + (b"\0" if descriptor is None else b"\1")
        was_empty = not self._unsent
        self._unsent.append((memoryview(head + payload), descriptor))
        if was_empty:
            self._write()

    def close(self) -> None:
        """Close this end; unsent messages are lost. Does not call `closed`."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._connection)
        self._loop.remove_writer(self._connection)
        self._connection.close()
        for _, descriptor in self._unsent:
            if descriptor is not None:
                os.close(descriptor)
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._unsent.clear()
        self._descriptors.clear()

    def _write(self) -> None:
        while self._unsent:
            data, descriptor = self._unsent[0]
            try:
                if descriptor is None:
                    sent = self._connection.send(data)
                else:
                    sent = socket.send_fds(self._connection, [data], [descriptor])
            except BlockingIOError:
                self._loop.add_writer(self._connection, self._write)
                return
            except OSError:
                self._lost()
                return
            if descriptor is not None:
                os.close(descriptor)
            if sent < len(data):
                self._unsent[0] = data[sent:], None
            else:
                self._unsent.popleft()
        self._loop.remove_writer(self._connection)

    def _read(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._connection, READ, AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        self._descriptors += descriptors
        if not data:
            self._lost()
            return
        self._came += data
        self._take()

    def _take(self) -> None:
        place = 0
        try:
            while self._open and len(self._came) - place >= HEADER:
                begin = place + HEADER
                end = begin + int.from_bytes(self._came[place : place + 4], "big")
                if len(self._came) < end:
                    break
                payload, has_descriptor = bytes(self._came[begin:end]), self._came[place + 4]
                place = end
                self._receive(self._decode(payload), self._descriptors.popleft() if has_descriptor else None)
        finally:
            del self._came[:place]

    def _lost(self) -> None:
        if self._open:
            self.close()
            self._closed()
