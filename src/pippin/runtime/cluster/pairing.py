"""TLS between two processes that exchanged their certificates beforehand and trust nothing else.

The certificates are exchanged through Ray, which knows who belongs to the cluster. Private keys never leave the machine
that made them.
"""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from tempfile import NamedTemporaryFile
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

EITHER_WAY: Final = timedelta(days=365)
"""A certificate's validity before and after now: enough for clock skew. It is needed only while a connection opens."""


@dataclass(frozen=True)
class Identity:
    """One side of a connection, as PEM."""

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

    def listens_to(self, certificate: str) -> ssl.SSLContext:
        """The context for the accepting side; only the holder of the other certificate's key can connect."""
        return self._context(ssl.PROTOCOL_TLS_SERVER, certificate)

    def speaks_to(self, certificate: str) -> ssl.SSLContext:
        """The context for the connecting side."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT, certificate)

    def _context(self, protocol: int, other: str) -> ssl.SSLContext:
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
