"""Access tokens bound to a key of Pippin's (DPoP, RFC 9449): a stolen token is useless.

The MCP library does not support them, so this module wraps its providers. Each request with such a token, and each
request for one, carries a proof: a JWT that identifies the request and is signed with the key.
"""

import base64
import hashlib
import re
import time
from collections.abc import AsyncGenerator
from typing import Any, Final, Protocol
from uuid import uuid4

import httpx2
import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from jwt.algorithms import ECAlgorithm
from mcp.client.auth.utils import extract_field_from_www_auth

ALGORITHM: Final = "ES256"
"""The signature algorithm. Every known server that takes proofs supports it."""
SCHEME: Final = "DPoP"
NONCE: Final = "DPoP-Nonce"
NONCE_WANTED: Final = "use_dpop_nonce"
CHALLENGE: Final = re.compile(rf"(?:^|,)\s*{SCHEME}(?:\s|,|$)", re.IGNORECASE)
"""Finds the scheme among the challenges of a server."""
FORM: Final = "application/x-www-form-urlencoded"


class KeyStorage(Protocol):
    """Stores the key for as long as the tokens that are bound to it."""

    bound_to: str | None
    """A private key as PEM; None for plain bearer tokens. Saved when tokens are next set."""


class BoundTokens(httpx2.Auth):
    """Wraps another authorization, and binds its tokens to a key if the MCP server asks for that.

    Otherwise nothing changes: an authorization server may bind the tokens of any client that offers a proof, and an MCP
    server that does not support them would then refuse them.
    """

    def __init__(self, inner: httpx2.Auth, storage: KeyStorage) -> None:
        self._inner = inner
        self._storage = storage
        self._key: ec.EllipticCurvePrivateKey | None = None
        self._wanted = False  # the MCP server asks for bound tokens
        self._nonces: dict[str, str] = {}  # the latest per origin, for the next proof

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """The inner authorization's requests with proofs added; a request is repeated once if its proof needs a
        nonce."""
        flow = self._inner.async_auth_flow(request)
        try:
            outgoing = await anext(flow)
            while True:
                proven = self._prove(outgoing)
                response = yield outgoing
                if proven and await self._wants_nonce(response):
                    self._prove(outgoing)
                    response = yield outgoing
                if outgoing is request:
                    self._note_challenge(response)
                elif await _is_resource_metadata(response):
                    self._wanted = self._wanted or _asks_for_proofs(response.json())
                outgoing = await flow.asend(await self._as_bearer(response) if proven else response)
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()

    def _prove(self, request: httpx2.Request) -> bool:
        """Add a fresh proof if the request asks for a token or shows a bound one; returns whether it does."""
        request.headers.pop(SCHEME, None)  # left over from a redirected request
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if _asks_for_token(request):
            if not (self._wanted or self._storage.bound_to):
                return False
            token = ""
        elif self._storage.bound_to is None or scheme not in ("Bearer", SCHEME):
            return False
        else:
            request.headers["authorization"] = f"{SCHEME} {token}"
        request.headers[SCHEME] = self._proof(request, token)
        return True

    def _proof(self, request: httpx2.Request, token: str) -> str:
        """A JWT as in RFC 9449, section 4.2. `token`: the access token that is shown; empty if none is."""
        claims = {
            "jti": str(uuid4()),
            "htm": request.method,
            "htu": str(request.url.copy_with(query=None, fragment=None)),
            "iat": int(time.time()),
        }
        if token:
            digest = hashlib.sha256(token.encode()).digest()
            claims["ath"] = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if (nonce := self._nonces.get(_origin(request.url))) is not None:
            claims["nonce"] = nonce
        key = self._signing_key()
        public = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
        return jwt.encode(claims, key, ALGORITHM, headers={"typ": "dpop+jwt", "jwk": public})

    def _signing_key(self) -> ec.EllipticCurvePrivateKey:
        """The key of the stored tokens, or a new one for tokens to be requested."""
        if self._key is None:
            kept = self._storage.bound_to
            self._key = ec.generate_private_key(ec.SECP256R1()) if kept is None else _read_key(kept)
        return self._key

    async def _wants_nonce(self, response: httpx2.Response) -> bool:
        """Whether the request was refused because its proof lacks the nonce that the answer carries (sections 8 and
        9)."""
        nonce = response.headers.get(NONCE)
        if nonce is None:
            return False
        origin = _origin(response.request.url)
        was_shown = self._nonces.get(origin) == nonce
        self._nonces[origin] = nonce
        if was_shown or response.status_code not in (400, 401):
            return False
        if extract_field_from_www_auth(response, "error") == NONCE_WANTED:
            return True
        return (await _fields(response)).get("error") == NONCE_WANTED

    def _note_challenge(self, response: httpx2.Response) -> None:
        if response.status_code == 401:
            challenges = response.headers.get("www-authenticate", "")
            self._wanted = self._wanted or CHALLENGE.search(challenges) is not None

    async def _as_bearer(self, response: httpx2.Response) -> httpx2.Response:
        """Present a token response as type Bearer, the only type that the library knows. The real type is recorded in
        the storage."""
        if response.status_code not in (200, 201) or not _asks_for_token(response.request):
            return response
        given = await _fields(response)
        is_bound = str(given.get("token_type", "")).lower() == SCHEME.lower()
        self._storage.bound_to = _pem(self._signing_key()) if is_bound else None
        if not is_bound:
            return response
        told = given | {"token_type": "Bearer"}
        return httpx2.Response(response.status_code, json=told, request=response.request)


def _asks_for_token(request: httpx2.Request) -> bool:
    """Among an authorization's requests, only those for tokens are forms."""
    return request.method == "POST" and request.headers.get("content-type") == FORM


async def _is_resource_metadata(response: httpx2.Response) -> bool:
    return response.status_code == 200 and "resource" in await _fields(response)


def _asks_for_proofs(metadata: dict[str, Any]) -> bool:
    """Whether an MCP server's metadata says that it takes bound tokens (RFC 9728, section 2)."""
    taken = metadata.get("dpop_signing_alg_values_supported")
    return metadata.get("dpop_bound_access_tokens_required") is True or (
        isinstance(taken, list) and ALGORITHM in taken
    )


async def _fields(response: httpx2.Response) -> dict[str, Any]:
    """The fields of a JSON object; empty for anything else."""
    await response.aread()
    try:
        found = response.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _origin(url: httpx2.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode()}"


def _read_key(pem: str) -> ec.EllipticCurvePrivateKey:
    key = ECAlgorithm(ECAlgorithm.SHA256).prepare_key(pem)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def _pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
