"""An MCP server that lets in whoever shows a token, and the authorization server beside it that gives tokens."""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt

CLIENT = ("machine", "secret of the machine")
TOOLS = [{"name": "get_secret", "description": "Tells it.", "inputSchema": {"type": "object"}}]


JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
WORKLOAD = "signed by the platform"


class Guarded(ThreadingHTTPServer):
    """What it gave out, and how it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{self.server_port}"
        self.grants: list[str] = []  # of each token, in their order
        self.valid: set[str] = set()  # tokens
        self.exchanges: list[dict[str, str]] = []  # that were asked for at the identity provider
        self.lifetime = 3600
        self.says_no = False
        self.challenge = "Bearer"
        self.bound: dict[str, str] = {}  # tokens, and the thumbprints of the keys that they are bound to
        self.nonce: str | None = None  # that proofs must show
        self.proofs: list[dict[str, Any]] = []  # that were shown

    def give(self, grant: str, key: str | None) -> dict[str, Any]:
        self.grants.append(grant)
        token = f"token-{len(self.grants)}"
        self.valid = {token}
        if key is not None:
            self.bound[token] = key
        again = {} if grant == "client_credentials" else {"refresh_token": f"again-{len(self.grants)}"}
        kind = "Bearer" if key is None else "DPoP"
        return {"access_token": token, "token_type": kind, "expires_in": self.lifetime, **again}

    def key_of(self, proof: str, method: str, path: str, token: str = "") -> str:
        """The thumbprint of the key that signed a proof, which must be fresh and for this request."""
        head = jwt.get_unverified_header(proof)
        assert head["typ"] == "dpop+jwt"
        assert "d" not in head["jwk"]
        claims: dict[str, Any] = jwt.decode(proof, jwt.PyJWK(head["jwk"]), algorithms=["ES256"])
        assert (claims["htm"], claims["htu"]) == (method, self.origin + path)
        digest = base64.urlsafe_b64encode(hashlib.sha256(token.encode()).digest()).rstrip(b"=").decode()
        assert claims.get("ath", digest) == digest
        assert ("ath" in claims) == bool(token)
        assert claims["jti"] not in {each["jti"] for each in self.proofs}
        self.proofs.append(claims)
        return json.dumps(head["jwk"], sort_keys=True)


class Handler(BaseHTTPRequestHandler):
    server: Guarded

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        issuer = f"{self.server.origin}/authority"
        match parts.path:
            case "/.well-known/oauth-protected-resource/mcp":
                self.reply(200, {"resource": f"{self.server.origin}/mcp", "authorization_servers": [issuer]})
            case "/.well-known/oauth-authorization-server/authority":
                self.reply(
                    200,
                    {
                        "issuer": issuer,
                        "authorization_endpoint": f"{issuer}/authorize",
                        "token_endpoint": f"{issuer}/token",
                        "registration_endpoint": f"{issuer}/register",
                        "response_types_supported": ["code"],
                        "code_challenge_methods_supported": ["S256"],
                    },
                )
            case "/authority/authorize":
                asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
                told = {"error": "access_denied"} if self.server.says_no else {"code": "the-code"}
                self.send_response(302)
                self.send_header(
                    "location", f"{asked['redirect_uri']}?{urlencode(told | {'state': asked['state']})}"
                )
                self.send_header("content-length", "0")
                self.end_headers()
            case _:
                self.reply(404, {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        match self.path:
            case "/authority/register":
                self.reply(201, json.loads(body) | {"client_id": "registered", "client_secret": "s"})
            case "/authority/token":
                self.token({name: values[0] for name, values in parse_qs(body.decode()).items()})
            case "/idp/token":
                self.exchange({name: values[0] for name, values in parse_qs(body.decode()).items()})
            case "/mcp" if self.shows_token():
                if not self.wants_nonce():
                    self.message(json.loads(body))
            case "/mcp":
                about = f"{self.server.origin}/.well-known/oauth-protected-resource/mcp"
                self.reply(
                    401, {}, {"www-authenticate": f'{self.server.challenge} resource_metadata="{about}"'}
                )
            case _:
                self.reply(404, {})

    def shows_token(self) -> bool:
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        if token not in self.server.valid:
            return False
        if token not in self.server.bound:
            return scheme == "Bearer"
        key = self.server.key_of(self.headers["dpop"], "POST", "/mcp", token)
        return scheme == "DPoP" and key == self.server.bound[token]

    def wants_nonce(self) -> bool:
        """Whether the last proof lacks the nonce, and is refused for it."""
        nonce = self.server.nonce
        if nonce is None or self.server.proofs[-1].get("nonce") == nonce:
            return False
        headers = {"dpop-nonce": nonce}
        if self.path == "/mcp":
            headers["www-authenticate"] = 'DPoP error="use_dpop_nonce"'
        self.reply(401 if self.path == "/mcp" else 400, {"error": "use_dpop_nonce"}, headers)
        return True

    def token(self, asked: dict[str, str]) -> None:
        key = None
        if "dpop" in self.headers:
            key = self.server.key_of(self.headers["dpop"], "POST", self.path)
            if self.wants_nonce():
                return
        grant = asked["grant_type"]
        own = "Basic " + base64.b64encode(f"{CLIENT[0]}:{'%20'.join(CLIENT[1].split())}".encode()).decode()
        assertion = asked.get("assertion", "vouched")
        shows_secret = self.headers.get("authorization") == own
        if assertion == WORKLOAD and asked["client_id"] == CLIENT[0] and grant == JWT_BEARER:
            self.reply(200, self.server.give(grant, key))
        elif grant in ("client_credentials", JWT_BEARER) and not (shows_secret and assertion == "vouched"):
            self.reply(401, {"error": "invalid_client"})
        elif grant == "refresh_token" and asked["refresh_token"] != f"again-{len(self.server.grants)}":
            self.reply(400, {"error": "invalid_grant"})
        else:
            self.reply(200, self.server.give(grant, key))

    def exchange(self, asked: dict[str, str]) -> None:
        """As the identity provider of a company."""
        if asked["subject_token"] != "the-id-token":
            self.reply(400, {"error": "invalid_grant"})
            return
        self.server.exchanges.append(asked)
        self.reply(200, {"access_token": "vouched", "token_type": "N_A"})

    def message(self, message: dict[str, Any]) -> None:
        match message["method"]:
            case "initialize":
                told = {"name": "guarded", "version": "1"}
                result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": told}
            case "tools/list":
                result = {"tools": TOOLS}
            case "tools/call":
                result = {"content": [{"type": "text", "text": "It is 42."}]}
            case _ if "id" not in message:
                self.reply(202, None)
                return
            case _:
                self.reply(
                    200, {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "No."}}
                )
                return
        self.reply(200, {"jsonrpc": "2.0", "id": message["id"], "result": result})

    def reply(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def guarded_server() -> Iterator[Guarded]:
    server = Guarded()
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
