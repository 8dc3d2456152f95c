"""OAuth at MCP servers, with the library's own providers.

A server cannot ask anybody: it uses and renews the tokens of an earlier login, and reports what to do if that is not
enough. During `pippin mcp login` a person grants access in a browser, and the result is stored.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl, BaseModel

from pippin.config.mcp_file import McpServer, OAuth
from pippin.mcp.browser import Granted
from pippin.mcp.logins import Login, login_file, read_login, write_login

CLIENT_NAME = "Pippin"


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


def _plain(value: BaseModel | None) -> dict[str, Any] | None:
    return None if value is None else value.model_dump(mode="json", exclude_none=True)


def provider_of(server: McpServer, person: Person | None, needed: Callable[[], None]) -> httpx2.Auth | None:
    """The authorization for requests to a server; None if none is configured or stored.

    `needed` is called when a person would have to grant something and none is present. Raises `LoginNeeded` if that is
    known at once.
    """
    oauth = server.oauth
    path = login_file(server)
    if oauth is not None and oauth.grant == "client_credentials":
        return _as_itself(server, oauth, path)
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
    return provider


def _as_itself(server: McpServer, oauth: OAuth, path: Path) -> httpx2.Auth:
    """The authorization by `client_credentials`, which needs no person."""
    assert oauth.client_id is not None
    assert oauth.client_secret is not None
    storage = KeptLogin(path, None, read_login(path))
    provider = ClientCredentialsOAuthProvider(
        server.url,
        storage,
        client_id=oauth.client_id,
        client_secret=oauth.client_secret,
        scope=oauth.scope,
        issuer=oauth.issuer,
    )
    storage.context = provider.context
    return provider
