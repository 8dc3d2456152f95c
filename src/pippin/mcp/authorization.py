"""OAuth at MCP servers, by the library's own providers.

A server of Pippin's asks nobody: it shows what a login brought, renews it, and says what to do where that is not
enough. `pippin mcp login` has a person beside it, who grants in a browser what is then kept.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

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
TOKEN_EXCHANGE: Final = {
    "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
    "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
    "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
}
"""RFC 8693, with the token types of OpenID Connect and of MCP's enterprise-managed authorization (SEP-990)."""


class LoginNeeded(Exception):
    """Nobody has logged in at the server yet."""


class Person(Protocol):
    """Whoever grants access in a browser."""

    @property
    def redirect_uri(self) -> str:
        """Where the browser is sent with the answer."""
        ...

    async def ask(self, address: str) -> None:
        """Have the person open this address."""
        ...

    async def answer(self) -> Granted:
        """What the browser brought to `redirect_uri`. Raises `NotGranted`."""
        ...


class Nobody:
    """The person beside a server."""

    redirect_uri = "http://127.0.0.1/callback"

    def __init__(self, needed: Callable[[], None]) -> None:
        self._needed = needed

    async def ask(self, address: str) -> None:
        self._needed()
        raise LoginNeeded

    async def answer(self) -> Granted:
        raise LoginNeeded


class KeptLogin:
    """The library's `TokenStorage`, over a file.

    With the tokens it keeps when they end and where they are renewed, which the library only remembers while it runs.
    """

    def __init__(self, path: Path, client: OAuthClientInformationFull | None, login: Login) -> None:
        """`client`: the registration that the operator has made; None has Pippin register itself. `login`: what to
        begin with; the file is written only once there are tokens."""
        self.context: OAuthContext | None = None  # of the provider that uses this
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
    """What authorises requests to a server; None where nobody has said that it needs that.

    `needed` is called where a person would have to grant something, and nobody is there to ask. Raises `LoginNeeded`
    where that is known at once.
    """
    oauth = server.oauth
    path = login_file(server)
    if oauth is not None and oauth.grant == "client_credentials":
        return _as_itself(server, oauth, path)
    if oauth is not None and oauth.grant == "identity_assertion":
        return _vouched_for(server, oauth, path)
    login = Login()  # a registration of an earlier login names another address for the answer
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
    """The registration that the operator has made at the authorization server."""
    if oauth is None or oauth.client_id is None:
        return None
    return OAuthClientInformationFull(
        client_id=oauth.client_id,
        client_secret=oauth.client_secret,
        redirect_uris=[redirect],
        token_endpoint_auth_method="client_secret_basic" if oauth.client_secret else "none",
        issuer=oauth.issuer,
    )


def _granted(server: McpServer, storage: KeptLogin, redirect: AnyUrl, person: Person) -> OAuthClientProvider:
    """With what a person grants, now or earlier."""
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


def _as_itself(server: McpServer, oauth: OAuth, path: Path) -> OAuthClientProvider:
    """By the grant `client_credentials`, which needs no person."""
    assert oauth.client_id is not None
    storage = KeptLogin(path, None, read_login(path))
    provider: OAuthClientProvider
    if oauth.private_key_file is not None:
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
    return provider


def _vouched_for(server: McpServer, oauth: OAuth, path: Path) -> httpx2.Auth:
    """By an assertion of the identity provider, which a login there is exchanged for; here nobody is asked."""
    assert oauth.client_id is not None
    assert oauth.client_secret is not None
    assert oauth.issuer is not None

    async def assertion(audience: str, resource: str) -> str:
        return await exchanged(oauth, audience, resource)

    return IdentityAssertionOAuthProvider(
        server.url,
        KeptLogin(path, None, Login()),
        oauth.client_id,
        oauth.client_secret,
        oauth.issuer,
        assertion,
        scope=oauth.scope,
        token_endpoint_auth_method="client_secret_basic",
    )


async def exchanged(oauth: OAuth, audience: str, resource: str) -> str:
    """The assertion for an authorization server (`audience`) and an MCP server (`resource`) that the identity provider
    gives for the token in the operator's file, which is read anew each time. Raises `OAuthTokenError`."""
    assert oauth.id_token_file is not None
    assert oauth.idp_token_endpoint is not None
    file = Path(oauth.id_token_file)
    try:
        token = await asyncio.to_thread(lambda: file.expanduser().read_text())
    except OSError as error:
        raise OAuthTokenError(f"`id_token_file` can't be read: {error.strerror}.") from None
    asked = {
        "subject_token": token.strip(),
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
