"""OAuth at MCP servers, with the library's own providers.

A server cannot ask anybody: it uses and renews the tokens of an earlier login, and reports what to do if that is not
enough. During `pippin mcp login` a person grants access in a browser, and the result is stored.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthTokenError
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import (
    JWT_BEARER_GRANT_TYPE,
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl, BaseModel

from pippin.config.mcp_file import McpServer, OAuth
from pippin.mcp.bound_tokens import BoundTokens
from pippin.mcp.browser import Granted
from pippin.mcp.logins import Login, login_file, read_login, write_login

CLIENT_NAME = "Pippin"
TOKEN_EXCHANGE: Final = {
    "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
    "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
    "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
}
"""RFC 8693, with the token types of OpenID Connect and of MCP's enterprise-managed authorization (SEP-990)."""


class LoginNeeded(Exception):
    """Nobody has logged in at the server yet."""


class Person(Protocol):
    """Grants access in a browser."""

    @property
    def redirect_uri(self) -> str:
        """The address to which the browser is redirected with the answer."""
        ...

    async def ask(self, address: str) -> None:
        """Make the person open this address."""
        ...

    async def answer(self) -> Granted:
        """The data that the browser delivered to `redirect_uri`. Raises `NotGranted`."""
        ...


class Nobody:
    """Stands in for a person when Pippin runs as a server."""

    redirect_uri = "http://127.0.0.1/callback"

    def __init__(self, needed: Callable[[], None]) -> None:
        self._needed = needed

    async def ask(self, address: str) -> None:
        self._needed()
        raise LoginNeeded

    async def answer(self) -> Granted:
        raise LoginNeeded


class KeptLogin:
    """The library's `TokenStorage`, backed by a file.

    Also stores the tokens' expiry and where to renew them, which the library only keeps in memory.
    """

    def __init__(self, path: Path, client: OAuthClientInformationFull | None, login: Login) -> None:
        """`client`: the operator's registration; None lets Pippin register itself. `login`: the initial state; the file
        is written only once there are tokens."""
        self.context: OAuthContext | None = None  # of the provider that uses this storage
        self.bound_to = login.key
        self._path = path
        self._client = client
        self._login = login

    async def get_tokens(self) -> OAuthToken | None:
        login = self._login
        if login.tokens is None:
            return None
        if self.context is not None:
            self.context.token_expiry_time = login.expires_at
            if login.metadata is not None:
                self.context.oauth_metadata = OAuthMetadata.model_validate(login.metadata)
            if login.resource is not None:
                found = ProtectedResourceMetadata.model_validate(login.resource)
                self.context.protected_resource_metadata = found
                self.context.auth_server_url = str(found.authorization_servers[0])
        return OAuthToken.model_validate(login.tokens)

    async def set_tokens(self, tokens: OAuthToken) -> None:
        login = self._login
        login.tokens = _plain(tokens)
        login.key = self.bound_to
        login.expires_at = None if tokens.expires_in is None else time.time() + tokens.expires_in
        if self.context is not None:
            login.metadata = _plain(self.context.oauth_metadata)
            login.resource = _plain(self.context.protected_resource_metadata)
        await asyncio.to_thread(write_login, self._path, login)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        if self._client is not None or self._login.client is None:
            return self._client
        return OAuthClientInformationFull.model_validate(self._login.client)

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._login.client = _plain(client_info)


class WorkloadProvider(PrivateKeyJWTOAuthProvider):
    """Workload identity (SEP-1933): the assertion that the platform signed is the grant itself (RFC 7523, section 2.1).
    In the library's provider it only authenticates the client (section 2.2)."""

    async def _exchange_token_client_credentials(self) -> httpx2.Request:
        request = await super()._exchange_token_client_credentials()
        asked = dict(parse_qsl(request.content.decode()))
        del asked["client_assertion_type"]
        asked["grant_type"] = JWT_BEARER_GRANT_TYPE
        asked["assertion"] = asked.pop("client_assertion")
        asked["client_id"] = self._fixed_client_info.client_id or ""
        return httpx2.Request("POST", request.url, data=asked)


def _plain(value: BaseModel | None) -> dict[str, Any] | None:
    return None if value is None else value.model_dump(mode="json", exclude_none=True)


def provider_of(server: McpServer, person: Person | None, needed: Callable[[], None]) -> httpx2.Auth | None:
    """The authorization for requests to a server; None if none is configured or stored.

    `needed` is called when a person would have to grant something and none is present. Raises `LoginNeeded` if that is
    known at once.
    """
    oauth = server.oauth
    path = login_file(server)
    if oauth is not None and oauth.grant in ("client_credentials", "workload_identity"):
        return _as_itself(server, oauth, path)
    if oauth is not None and oauth.grant == "identity_assertion":
        return _vouched_for(server, oauth, path)
    login = Login()  # an earlier login's registration has another redirect address
    if person is None:
        login = read_login(path)
        if login.tokens is None:
            if oauth is None:
                return None
            needed()
            raise LoginNeeded
        person = Nobody(needed)
    redirect = AnyUrl(person.redirect_uri)
    return _granted(server, KeptLogin(path, _registered(oauth, redirect), login), redirect, person)


def _registered(oauth: OAuth | None, redirect: AnyUrl) -> OAuthClientInformationFull | None:
    """The registration that the operator made at the authorization server."""
    if oauth is None or oauth.client_id is None:
        return None
    return OAuthClientInformationFull(
        client_id=oauth.client_id,
        client_secret=oauth.client_secret,
        redirect_uris=[redirect],
        token_endpoint_auth_method="client_secret_basic" if oauth.client_secret else "none",
        issuer=oauth.issuer,
    )


def _granted(server: McpServer, storage: KeptLogin, redirect: AnyUrl, person: Person) -> httpx2.Auth:
    """The authorization by a person's grant, made now or earlier."""
    oauth = server.oauth or OAuth()

    async def answered() -> AuthorizationCodeResult:
        granted = await person.answer()
        return AuthorizationCodeResult(code=granted.code, state=granted.state, iss=granted.issuer)

    provider = OAuthClientProvider(
        server.url,
        OAuthClientMetadata(client_name=CLIENT_NAME, redirect_uris=[redirect], scope=oauth.scope),
        storage,
        redirect_handler=person.ask,
        callback_handler=answered,
        client_metadata_url=oauth.client_metadata_url,
    )
    storage.context = provider.context
    return BoundTokens(provider, storage)


def _as_itself(server: McpServer, oauth: OAuth, path: Path) -> httpx2.Auth:
    """The authorization by `client_credentials` or `workload_identity`, which need no person."""
    assert oauth.client_id is not None
    storage = KeptLogin(path, None, read_login(path))
    provider: OAuthClientProvider
    if oauth.assertion_file is not None:
        provider = WorkloadProvider(
            server.url,
            storage,
            client_id=oauth.client_id,
            assertion_provider=partial(_read_assertion, Path(oauth.assertion_file)),
            scope=oauth.scope,
            issuer=oauth.issuer,
        )
    elif oauth.private_key_file is not None:
        key = SignedJWTParameters(
            issuer=oauth.client_id,
            subject=oauth.client_id,
            signing_algorithm=oauth.algorithm,
            signing_key=Path(oauth.private_key_file).expanduser().read_text(),
        )
        provider = PrivateKeyJWTOAuthProvider(
            server.url,
            storage,
            client_id=oauth.client_id,
            assertion_provider=key.create_assertion_provider(),
            scope=oauth.scope,
            issuer=oauth.issuer,
        )
    else:
        assert oauth.client_secret is not None
        provider = ClientCredentialsOAuthProvider(
            server.url,
            storage,
            client_id=oauth.client_id,
            client_secret=oauth.client_secret,
            scope=oauth.scope,
            issuer=oauth.issuer,
        )
    storage.context = provider.context
    return BoundTokens(provider, storage)


async def _read_assertion(file: Path, audience: str) -> str:
    """The assertion that the platform writes to a file for this program and renews there. Raises `OAuthTokenError`.

    `audience` is unused: the platform was configured to put it into the assertion."""
    return await asyncio.to_thread(_read_token, file, "assertion_file")


def _read_token(file: Path, key: str) -> str:
    try:
        return file.expanduser().read_text().strip()
    except OSError as error:
        raise OAuthTokenError(f"`{key}` can't be read: {error.strerror}.") from None


def _vouched_for(server: McpServer, oauth: OAuth, path: Path) -> httpx2.Auth:
    """The authorization by an identity provider's assertion, obtained in exchange for the token of a login there."""
    assert oauth.client_id is not None
    assert oauth.client_secret is not None
    assert oauth.issuer is not None

    async def assertion(audience: str, resource: str) -> str:
        return await exchanged(oauth, audience, resource)

    storage = KeptLogin(path, None, Login())
    provider = IdentityAssertionOAuthProvider(
        server.url,
        storage,
        oauth.client_id,
        oauth.client_secret,
        oauth.issuer,
        assertion,
        scope=oauth.scope,
        token_endpoint_auth_method="client_secret_basic",
    )
    return BoundTokens(provider, storage)


async def exchanged(oauth: OAuth, audience: str, resource: str) -> str:
    """The identity provider's assertion for an authorization server (`audience`) and an MCP server (`resource`), in
    exchange for the token in the operator's file, which is read again each time. Raises `OAuthTokenError`."""
    assert oauth.id_token_file is not None
    assert oauth.idp_token_endpoint is not None
    asked = {
        "subject_token": await asyncio.to_thread(_read_token, Path(oauth.id_token_file), "id_token_file"),
        "audience": audience,
        "resource": resource,
        "client_id": oauth.idp_client_id,
    }
    async with httpx2.AsyncClient() as http:
        reply = await http.post(oauth.idp_token_endpoint, data=TOKEN_EXCHANGE | asked)
    if reply.status_code != 200:
        raise OAuthTokenError(f"The identity provider refused the exchange with {reply.status_code}.")
    given = reply.json().get("access_token")
    if not isinstance(given, str):
        raise OAuthTokenError("The identity provider answered without an assertion.")
    return given
