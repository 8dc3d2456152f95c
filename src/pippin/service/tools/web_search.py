"""The tool `web_search`, if the operator names what searches: a tool of an MCP server, or an address.

Whatever searches answers in a form of its own; found addresses with their titles and texts are picked out of that.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from html import unescape
from typing import Any, Final
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import structs

from pippin.core.conversation import WEB_SEARCH, FoundPage, Inline, Toolset, WebSearch
from pippin.core.errors import ServerError
from pippin.mcp.connection import CallResult, RemoteTool
from pippin.mcp.tools import OfferedTool, ToolServers

Fetch = Callable[[str, str], Awaitable[Inline]]
"""Fetches an address by the rules for media; the other text names it in refusals."""

MCP: Final = "mcp:"
LONGEST_QUERY, LONGEST_TITLE, LONGEST_TEXT, LONGEST_URL = 400, 300, 2000, 2048  # characters
MOST_READ: Final = 1 << 20  # bytes of a fetched page
HIDDEN: Final = frozenset({"script", "style", "noscript", "template", "svg", "title"})
DEEPEST: Final = 4  # levels of JSON in which results are looked for
ADDRESSES, TITLES = ("url", "link", "href"), ("title", "name")
TEXTS: Final = ("content", "snippet", "description", "text")
_ADDRESS: Final = re.compile(r"https?://[^\s<>\"')\]]+")

TOOL: Final = RemoteTool(
    name=WEB_SEARCH,
    description="Searches the web. Cite pages that you use by their whole address.",
    parameters={"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    read_only=True,
)


@dataclass(frozen=True)
class WebSearcher:
    """Makes the tool `web_search` for a request, and calls it in the place of an MCP server."""

    named: str | None  # `mcp:SERVER/TOOL`, or an address with `{query}` in it
    servers: ToolServers
    fetch: Fetch

    def tool(self, wanted: WebSearch) -> OfferedTool:
        place = f" The user is in {wanted.location}." if wanted.location else ""
        tool = structs.replace(TOOL, description=TOOL.description + place)
        return OfferedTool(WEB_SEARCH, WEB_SEARCH, partial(self.search, wanted), tool)

    async def search(self, wanted: WebSearch, _: str, arguments: dict[str, Any]) -> CallResult:
        query = arguments.get("query")
        if not isinstance(query, str) or not query.strip():
            return CallResult("`query` must be a text.", True)
        try:
            answer = await self._answer(query.strip()[:LONGEST_QUERY])
        except ServerError as error:
            return CallResult(f"The search failed: {error}", True)
        # In a thread: an answer may be as large as a fetched file.
        found = await asyncio.to_thread(pages_in, answer)
        pages = [page for page in found if wants(wanted, page)][: wanted.results]
        read = await asyncio.gather(*map(self.read, pages))
        return CallResult(msgspec.json.encode(read).decode(), False)

    async def read(self, page: FoundPage) -> FoundPage:
        """The page with its text, which is fetched where the search told none of it."""
        if page.text:
            return page
        try:
            found = await self.fetch(page.url, "The page")
        except ServerError:
            return page
        return FoundPage(page.url, page.title, await asyncio.to_thread(text_of, found))

    async def _answer(self, query: str) -> str:
        """What the operator's search answers. Raises `ServerError`."""
        named = self.named or ""
        if not named.startswith(MCP):
            found = await self.fetch(named.replace("{query}", quote(query, safe="")), "The search")
            return found.data.decode(errors="replace")
        server, _, tool = named.removeprefix(MCP).partition("/")
        offered = await self.servers.offered((Toolset(server, (tool,)),))
        if not offered:
            raise ServerError("not_found", f"The search tool {named.removeprefix(MCP)} is not there.")
        [searching] = offered.values()
        # Not by `servers.call`, which counts calls at once: this is made within one.
        result = await searching.call(tool, {"query": query})
        if result.is_error:
            raise ServerError("internal", result.text)
        return result.text


def wants(wanted: WebSearch, page: FoundPage) -> bool:
    host = urlsplit(page.url).hostname or ""

    def within(domains: tuple[str, ...]) -> bool:
        return any(host == each or host.endswith(f".{each}") for each in domains)

    return not within(wanted.blocked) and (not wanted.allowed or within(wanted.allowed))


def text_of(page: Inline) -> str:
    """The words of a page of HTML or text; none of other files."""
    mime, text = page.mime or "text/html", page.data[:MOST_READ].decode(errors="replace")
    if mime == "text/plain":
        return text[:LONGEST_TEXT]
    if mime not in ("text/html", "application/xhtml+xml"):
        return ""
    # Not by `html.parser`, which takes quadratic time for tags that are not closed.
    said, hidden = list[str](), ""
    for piece in f">{text}".split("<"):
        tag, _, shown = piece.partition(">")
        name = next(iter(tag.lower().split()), "")
        if hidden:
            hidden = "" if name == f"/{hidden}" else hidden
        elif name in HIDDEN:
            hidden = name
        said += [] if hidden else [shown]
    return " ".join(unescape(" ".join(said)).split())[:LONGEST_TEXT]


def pages_in(answer: str) -> list[FoundPage]:
    """The pages that a search has found, in their order: those of a list in JSON, or each paragraph with an address."""
    try:
        entries = _entries(json.loads(answer), DEEPEST)
    except (ValueError, RecursionError):
        entries = list(_paragraphs(answer))
    found: dict[str, FoundPage] = {}
    for entry in entries:
        url, title, text = (_first(entry, names) for names in (ADDRESSES, TITLES, TEXTS))
        if len(url) <= LONGEST_URL and _ADDRESS.fullmatch(url):
            found.setdefault(url, FoundPage(url, (title or url)[:LONGEST_TITLE], text[:LONGEST_TEXT]))
    return list(found.values())


def _entries(value: Any, depth: int) -> list[dict[str, Any]]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if isinstance(value, list) and (found := [each for each in value if _first(each, ADDRESSES)]):
        return found
    return next((found for each in inner if depth and (found := _entries(each, depth - 1))), [])


def _first(entry: Any, names: tuple[str, ...]) -> str:
    texts = (entry.get(name) for name in names) if isinstance(entry, dict) else ()
    return next((each for each in texts if isinstance(each, str) and each), "")


def _paragraphs(answer: str) -> Iterator[dict[str, str]]:
    for paragraph in re.split(r"\n\s*\n", answer):
        if address := _ADDRESS.search(paragraph):
            title = paragraph.strip().partition("\n")[0].removeprefix("Title:").strip()
            yield {"url": address[0].rstrip(".,;"), "title": title, "content": paragraph.strip()}
