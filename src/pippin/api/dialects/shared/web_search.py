"""What dialects tell of web searches that Pippin makes for the model: the pages, and where an answer cites them."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from pippin.api.dialects.shared.fields import invalid
from pippin.core.conversation import WEB_SEARCH, FoundPage, WebSearch
from pippin.core.decoding import from_json

Word = Annotated[str, Meta(max_length=253)]
Domains = Annotated[tuple[Annotated[Word, Meta(min_length=1)], ...], Meta(max_length=100)]
ContextSize = Literal["low", "medium", "high"] | None
RESULTS: Final[dict[ContextSize, int]] = {"low": 3, None: 5, "medium": 5, "high": 10}


class SearchFilters(Struct, kw_only=True):
    allowed_domains: Domains | None = None
    blocked_domains: Domains | None = None


class Location(Struct, kw_only=True):
    """Where the user is, about."""

    type: Literal["approximate"] = "approximate"
    city: Word | None = None
    region: Word | None = None
    country: Word | None = None
    timezone: Word | None = None


class ChatLocation(Struct, kw_only=True):
    type: Literal["approximate"] = "approximate"
    approximate: Location | None = None


class ChatSearch(Struct, kw_only=True):
    """The options of a search in Chat Completions."""

    search_context_size: ContextSize = None
    user_location: ChatLocation | None = None

    @property
    def wanted(self) -> WebSearch:
        location = self.user_location.approximate if self.user_location else None
        return wish(None, None, location, self.search_context_size)


class SearchTool(Struct, kw_only=True):
    """The tool of Responses that searches."""

    type: str
    search_context_size: ContextSize = None
    user_location: Location | None = None
    filters: SearchFilters | None = None
    search_content_types: tuple[Literal["text"], ...] | None = None
    external_web_access: Literal[True] | None = None  # the operator's search is of the web as it is

    @property
    def wanted(self) -> WebSearch:
        filters = self.filters or SearchFilters()
        return wish(
            filters.allowed_domains, filters.blocked_domains, self.user_location, self.search_context_size
        )


def wish(
    allowed: Domains | None, blocked: Domains | None, location: Location | None, size: ContextSize = None
) -> WebSearch:
    named = location or Location()
    words = filter(None, (named.city, named.region, named.country, named.timezone))
    return WebSearch(allowed or (), blocked or (), RESULTS[size], ", ".join(words))


def place_of_search(given: Sequence[dict[str, Any]], param: str = "tools") -> int | None:
    """Which of the tools searches the web. Raises `ServerError` for a second one."""
    places = [place for place, spec in enumerate(given) if str(spec.get("type")).startswith(WEB_SEARCH)]
    if len(places) > 1:
        raise invalid(f"{param}[{places[1]}].type", "is a second search of the web; send one.")
    return next(iter(places), None)


def pages_of(text: str) -> list[FoundPage]:
    """The pages in the result of a search; none in that of one that failed."""
    try:
        return from_json(text, list[FoundPage])
    except msgspec.MsgspecError:
        return []


def citations_of(text: str, pages: list[FoundPage]) -> list[dict[str, Any]]:
    """Where a text names the address of a page: the indexes of the first character, and of that after the last."""
    found = []
    for page in pages:
        start = text.find(page.url)
        if start >= 0:
            place = {"start_index": start, "end_index": start + len(page.url)}
            found.append({**place, "url": page.url, "title": page.title})
    return sorted(found, key=lambda each: each["start_index"])
