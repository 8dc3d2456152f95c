"""What dialects tell of web searches that Pippin makes for the model: the pages, and where an answer cites them."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from pippin.api.dialects.shared.fields import Unused
from pippin.core.conversation import FoundPage, WebSearch
from pippin.core.decoding import from_json

Domains = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=253)], ...], Meta(max_length=100)]
RESULTS = {"low": 3, "medium": 5, "high": 10}


class SearchFilters(Struct, kw_only=True):
    allowed_domains: Domains | None = None
    blocked_domains: Domains | None = None


class WebSearchOptions(Struct, kw_only=True):
    """OpenAI's options of a search."""

    search_context_size: Literal["low", "medium", "high"] | None = None
    user_location: Unused = None

    @property
    def results(self) -> int:
        return RESULTS[self.search_context_size or "medium"]


class FilteredSearch(WebSearchOptions, kw_only=True):
    filters: SearchFilters | None = None

    @property
    def wanted(self) -> WebSearch:
        filters = self.filters or SearchFilters()
        return WebSearch(filters.allowed_domains or (), filters.blocked_domains or (), self.results)


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
