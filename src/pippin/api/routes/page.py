"""`/` and `/page/...`: the web page for users, and its files."""

from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.staticfiles import StaticFiles

from pippin.api.access.guards import PAGE
from pippin.api.routes.status import welcome
from pippin.api.routing import Api

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; media-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify"
)
"""What a browser lets the page do. A script in a model's answer is not a file of ours and does not run; text becomes
HTML only through DOMPurify; nothing is loaded from or sent to other sites."""

PERMISSIONS: Final = "microphone=(self), camera=(), display-capture=(), geolocation=(), payment=(), usb=()"
"""The permissions that the page may request: only the microphone, for spoken questions."""

HEADERS: Final = {
    "content-security-policy": POLICY,
    "cache-control": "no-cache",  # revalidated each time; the answer is 304 if nothing has changed
    "permissions-policy": PERMISSIONS,
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}

FOLDERS: Final = ("static", "vendor")

TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
"""Set explicitly because Python's guesses depend on the machine. Files of other types are served as plain text."""


def routes(api: Api) -> list[BaseRoute]:
    if not api.options.page:
        return [Route("/", welcome, methods=["GET"])]
    folder = Path(str(files("pippin.api.page")))
    page = Page(StaticFiles(directory=folder))
    return [
        Route("/", page.first, methods=["GET"]),
        Route(PAGE.rstrip("/"), to_the_page, methods=["GET"]),
        Route(PAGE + "{path:path}", page.file, methods=["GET"]),
    ]


async def to_the_page(request: Request) -> Response:
    # Relative: a proxy may have the server in a folder.
    return RedirectResponse("../" if request.scope["raw_path"].endswith(b"/") else "./")


class Page(Struct, frozen=True):
    files: StaticFiles

    async def first(self, request: Request) -> Response:
        """The page for browsers, which explicitly accept HTML; for other clients the answer of `/v1`."""
        if "text/html" in request.headers.get("accept", ""):
            reply = await self._read("static/index.html", request)
        else:
            reply = await welcome(request)
        reply.headers["vary"] = "accept"
        return reply

    async def file(self, request: Request) -> Response:
        path = request.path_params["path"]
        steps = path.split("/")
        if steps[0] not in FOLDERS or ".." in steps:
            raise HTTPException(404)
        return await self._read(path, request)

    async def _read(self, path: str, request: Request) -> Response:
        reply = await self.files.get_response(path, request.scope)
        kind = TYPES.get(PurePosixPath(path).suffix, "text/plain; charset=utf-8")
        reply.headers.update(HEADERS | {"content-type": kind})
        return reply
