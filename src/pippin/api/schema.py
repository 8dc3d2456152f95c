"""`/openapi.json` and `/docs`: a description of the API, generated from the structs that decode requests."""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from pippin import __version__
from pippin.api.dialects.base import AnyDialect
from pippin.api.dialects.ollama.dialect import LINES
from pippin.api.dialects.registry import UNVERSIONED, VERSION, dialect_of_path, unversioned
from pippin.api.http.forms import FORM
from pippin.api.routing import DocumentedRoute
from pippin.core.decoding import from_json

REFERENCE: Final = "#/components/schemas/{name}"
JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
TAGS: Final = {
    "v1beta": "Gemini",
    **dict.fromkeys(("load", "unload", "cache", "settings"), "Management"),
    **dict.fromkeys(("health", "status", "queue", "metrics", "requests"), "State"),
}


def schema_routes(routes: Sequence[BaseRoute], dialects: Mapping[str, AnyDialect]) -> list[BaseRoute]:
    @lru_cache(maxsize=1)
    def document() -> bytes:
        return msgspec.json.encode(openapi(routes, dialects))

    async def schema(request: Request) -> Response:
        """This document."""
        drawn = await asyncio.to_thread(document)  # slow the first time
        return Response(drawn, media_type="application/json")

    async def docs(request: Request) -> Response:
        """A page that shows this document; it loads nothing from elsewhere."""
        page = files("pippin.api").joinpath("docs.html").read_text()
        return HTMLResponse(page, headers={"content-security-policy": "default-src 'self' 'unsafe-inline'"})

    return [
        Route("/openapi.json", schema, methods=["GET"]),
        Route(f"{VERSION}/openapi.json", schema, methods=["GET"]),
        Route("/docs", docs, methods=["GET"]),
    ]


_QUALIFIED: Final = re.compile(r"pippin\.api\.\w+\.(\w+)(?:\.\w+)*\.(\w+)")


def openapi(routes: Iterable[BaseRoute], dialects: Mapping[str, AnyDialect]) -> dict[str, Any]:
    """An OpenAPI 3.1 document. Addresses without the version are duplicates, and left out."""
    documented = [
        route
        for route in routes
        if isinstance(route, DocumentedRoute) and route.path.startswith((VERSION, *UNVERSIONED))
    ]
    structs: list[Any] = [dialect.failure for dialect in dialects.values()]
    structs += [
        struct
        for route in documented
        for struct in (route.contents.get("body"), route.contents.get("answer"))
        if struct
    ]
    structs += [dialect.contract.body for dialect in dialects.values()]
    structs = list(dict.fromkeys(structs))
    found = msgspec.json.encode(msgspec.json.schema_components(structs, ref_template=REFERENCE)).decode()
    # Structs of one name in several rooms are called after these: generators of clients read no module names.
    named = _QUALIFIED.sub(lambda match: match[1].title().replace("_", "") + match[2], found)
    references, components = from_json(named)
    for name, component in components.items():
        component["title"] = name
    reference_of = dict(zip(structs, references, strict=True))
    _describe(components)
    paths: dict[str, dict[str, Any]] = {}
    for route in documented:
        address = re.sub(r":path}", "}", route.path)
        for method in sorted((route.methods or set()) - {"HEAD"}):
            operation = _operation(route, address, method, reference_of, dialects)
            paths.setdefault(address, {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Pippin",
            "version": __version__,
            "description": "Serves MLX models behind the OpenAI and Anthropic APIs. "
            "Every address also answers without /v1.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"key": []}],
    }


def _describe(components: dict[str, Any]) -> None:
    """Move the description of a type that may be null to its field, where readers look for it."""
    for component in components.values():
        for field in component.get("properties", {}).values():
            for kind in field.get("anyOf", ()):
                if "description" in kind:
                    field.setdefault("description", kind.pop("description"))


def _operation(
    route: DocumentedRoute,
    address: str,
    method: str,
    reference_of: dict[Any, Any],
    dialects: Mapping[str, AnyDialect],
) -> dict[str, Any]:
    dialect = dialects.get(unversioned(address)) if method == "POST" else None
    contents = route.contents
    body = dialect.contract.body if dialect is not None else contents.get("body")
    words = [word for word in re.split(r"[^A-Za-z0-9]+", unversioned(address)) if word]
    types = [media.partition(";")[0] for media in contents.get("media", ())]
    text, binary = {"type": "string"}, {"type": "string", "format": "binary"}
    replies: dict[str, Any] = {
        media: {"schema": text if media.startswith("text/") else binary} for media in types
    }
    if (answer := contents.get("answer")) is not None or not replies:
        replies[JSON] = {"schema": reference_of.get(answer, {"type": "object"})}
    if body is not None and "stream" in {field.encode_name for field in msgspec.structs.fields(body)}:
        streams = LINES if address.startswith("/api/") else EVENTS
        replies[streams] = {"schema": text}
    operation: dict[str, Any] = {
        "operationId": "_".join([method.lower(), *words]),
        "summary": route.help.partition("\n")[0] or " ".join(words).capitalize(),
        "tags": [TAGS.get(words[0], words[0].capitalize()) if words else "State"],
        "responses": {
            "200": {"description": "The answer.", "content": replies},
            "default": {
                "description": "An error, in the shape of the API that is spoken here.",
                "content": {JSON: {"schema": reference_of[dialect_of_path(dialects, address).failure]}},
            },
        },
    }
    if names := re.findall(r"{(\w+)}", address):
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in names
        ]
    if body is not None or method == "PATCH":
        schema = reference_of.get(body, {"type": "object"})
        if dialect is not None and dialect.contract.required:
            schema = schema | {"required": sorted(dialect.contract.required)}
        content = {FORM: {"schema": schema}} if contents.get("form") else {JSON: {"schema": schema}}
        operation["requestBody"] = {"required": not contents.get("optional", False), "content": content}
    return operation
