"""A bridge's end on the machine that Ray chose: an actor that runs one worker and connects its link to the bridge.

It is no part of `bridge.py`, which is run as a program: Ray sends what a program defines as a copy, which a struct does
not survive, and what a module defines by its name.
"""

import asyncio
import socket
import ssl
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from tempfile import NamedTemporaryFile
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from msgspec import Struct

from pippin.runtime.workers.death import until_stopped

EITHER_WAY: Final = timedelta(days=365)
"""A certificate's validity before and after now: enough for clock skew. It is needed only while a connection opens."""


class Identity(Struct, frozen=True):
    """One side of a connection, as PEM: two processes that exchanged their certificates trust nothing else.

    The certificates are exchanged through Ray, which knows who belongs to the cluster. Private keys never leave the
    machine that made them.
    """

    certificate: str
    key: str

    @classmethod
    def new(cls) -> "Identity":
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pippin")])
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - EITHER_WAY)
            .not_valid_after(now + EITHER_WAY)
            .sign(key, hashes.SHA256())
        )
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return cls(certificate.public_bytes(Encoding.PEM).decode(), private.decode())

    def context(self, protocol: int, other: str) -> ssl.SSLContext:
        """The context for the accepting or the connecting side, as the protocol says; only the holder of the other
        certificate's key is let through."""
        context = ssl.SSLContext(protocol)
        context.check_hostname = False  # the peer's certificate itself is pinned
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(cadata=other)
        with NamedTemporaryFile("w", suffix=".pem") as file:  # readable only by its owner
            file.write(self.key + self.certificate)
            file.flush()
            context.load_cert_chain(file.name)
        return context


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


class Ticket(Struct, frozen=True):
    """What the actor needs to run a worker for a server elsewhere."""

    address: str  # where the bridge listens
    port: int
    certificate: str  # of the bridge, PEM
    model: str
    path: str  # of the model's folder on the server


class Host:
    """The actor. It runs one worker, then ends."""

    def __init__(self) -> None:
        self._identity = Identity.new()

    async def introduce(self) -> tuple[str, str]:
        """This side's certificate (PEM) and the machine's name."""
        return self._identity.certificate, socket.gethostname()

    async def run(self, ticket: Ticket) -> int:
        """Run the worker to its end and return its exit status. The worker exits when the bridge does."""
        context = self._identity.context(ssl.PROTOCOL_TLS_CLIENT, ticket.certificate)
        link = await asyncio.open_connection(ticket.address, ticket.port, ssl=context)
        log = await asyncio.open_connection(ticket.address, ticket.port, ssl=context)
        for (_, writer), word in ((link, LINK), (log, LOG)):
            watch(writer)
            writer.write(word)
            await writer.drain()
        ours, theirs = socket.socketpair()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pippin", "worker", ticket.model, ticket.path),
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        theirs.close()
        assert process.stderr is not None
        own = await asyncio.open_connection(sock=ours)

        async def end_if_stopped() -> None:  # as the server does on its own machine
            if await until_stopped(process.pid):
                process.kill()

        watching = asyncio.create_task(end_if_stopped())
        try:
            await asyncio.gather(pump(link[0], own[1]), pump(own[0], link[1]), pump(process.stderr, log[1]))
            return await process.wait()
        finally:
            watching.cancel()
