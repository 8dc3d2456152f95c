"""An MCP server that lets in whoever shows a token, and the authorization server beside it that gives tokens."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

CLIENT = ("machine", "secret of the machine")
TOOLS = [{"name": "get_secret", "description": "Tells it.", "inputSchema": {"type": "object"}}]


class Guarded(ThreadingHTTPServer):
    """What it gave out, and how it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{self.server_port}"
        self.grants: list[str] = []  # of each token, in their order
        self.valid: set[str] = set()  # tokens
        self.lifetime = 3600
        self.says_no = False

    def give(self, grant: str) -> dict[str, Any]:
        self.grants.append(grant)
        token = f"token-{len(self.grants)}"
        self.valid = {token}
        again = {} if grant == "client_credentials" else {"refresh_token": f"again-{len(self.grants)}"}
        return {"access_token": token, "token_type": "Bearer", "expires_in": self.lifetime, **again}


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
            case "/mcp" if self.shows_token():
                self.message(json.loads(body))
            case "/mcp":
                about = f"{self.server.origin}/.well-known/oauth-protected-resource/mcp"
                self.reply(401, {}, {"www-authenticate": f'Bearer resource_metadata="{about}"'})
            case _:
                self.reply(404, {})

    def shows_token(self) -> bool:
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        return scheme == "Bearer" and token in self.server.valid

    def token(self, asked: dict[str, str]) -> None:
        grant = asked["grant_type"]
        own = "Basic " + base64.b64encode(f"{CLIENT[0]}:{'%20'.join(CLIENT[1].split())}".encode()).decode()
        if grant == "client_credentials" and self.headers.get("authorization") != own:
            self.reply(401, {"error": "invalid_client"})
        elif grant == "refresh_token" and asked["refresh_token"] != f"again-{len(self.server.grants)}":
            self.reply(400, {"error": "invalid_grant"})
        else:
            self.reply(200, self.server.give(grant))

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
