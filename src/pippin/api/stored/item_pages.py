"""Lists items page by page, as OpenAI's list endpoints do."""

from collections.abc import Mapping
from typing import Any

from pippin.core.errors import ServerError

MOST = 100


def page_of(items: list[dict[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """`items` oldest first; `query` has `after` (an item's id), `limit` and `order` (newest first if not set)."""
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise ServerError("invalid_request", "`order` must be `asc` or `desc`.", "order")
    limit = _limit(query.get("limit", "20"))
    ordered = items if order == "asc" else items[::-1]
    if (after := query.get("after")) is not None:
        ids = [item.get("id") for item in ordered]
        if after not in ids:
            raise ServerError("invalid_request", "`after` must be the id of one of the items.", "after")
        ordered = ordered[ids.index(after) + 1 :]
    data = ordered[:limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0].get("id") if data else "",
        "last_id": data[-1].get("id") if data else "",
        "has_more": len(ordered) > limit,
    }


def _limit(text: str) -> int:
    limit = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
    if not 1 <= limit <= MOST:
        raise ServerError("invalid_request", f"`limit` must be a number from 1 to {MOST}.", "limit")
    return limit
