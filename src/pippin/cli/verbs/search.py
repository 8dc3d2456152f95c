"""`pippin search`: MLX models on the hub."""

import json
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from pippin.cli.arguments import Parser, some_options
from pippin.cli.local import OPTIONS, settings_of
from pippin.cli.terminal import say, table
from pippin.core.decoding import from_json
from pippin.core.errors import ServerError

MOST: Final = 20
SECONDS: Final = 30.0


def run(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="pippin search", description="Find MLX models on the hub, the most downloaded first."
    )
    parser.add_argument("words", nargs="+", help="words of a model's name")
    parser.add_argument(
        "--limit", type=int, default=MOST, metavar="COUNT", help=f"how many (default: {MOST})"
    )
    parser.add_argument("--all", action="store_true", help="models without the tag mlx too")
    parser.add_argument("--json", action="store_true", help="as JSON")
    some_options(parser, OPTIONS)
    parsed = parser.parse(arguments)
    if settings_of(parsed).server.offline:
        raise ServerError("permission", "--offline forbids to ask the hub. `pippin list` shows what is here.")
    found = _search(" ".join(parsed.words), None if parsed.all else "mlx", max(1, parsed.limit))
    if parsed.json:
        say(json.dumps(found, indent=2))
    elif found:
        rows = [(each["id"], _thousands(each["downloads"]), each["task"] or "-") for each in found]
        say(table(("MODEL", "DOWNLOADS", "TASK"), rows))
        say(f"Will it fit? pippin fit {found[0]['id']}    Fetch it: pippin pull {found[0]['id']}")
    else:
        more = "" if parsed.all else " --all looks among models without the tag mlx too."
        say(f"The hub has no model with these words.{more} `pippin recommend` names models for this machine.")
    return 0 if found else 1


def _search(words: str, tag: str | None, limit: int) -> list[dict[str, Any]]:
    import httpx
    from huggingface_hub import constants, get_token

    asked = {"search": words, "sort": "downloads", "direction": "-1", "limit": str(limit)}
    token = get_token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        reply = httpx.get(
            f"{constants.ENDPOINT}/api/models",
            params=asked | ({"filter": tag} if tag else {}),
            headers=headers,
            timeout=SECONDS,
            follow_redirects=True,
        )
        reply.raise_for_status()
        models = from_json(reply.content, list[dict[str, Any]])
    except httpx.HTTPStatusError as error:
        raise ServerError(
            "load_failed", f"The hub answered {error.response.status_code}. Try again in a while."
        ) from None
    except (httpx.HTTPError, msgspec.DecodeError) as error:
        raise ServerError(
            "load_failed",
            f"The hub cannot be reached ({type(error).__name__}). `pippin list` shows what is here.",
        ) from None
    return [
        {"id": each.get("id"), "downloads": each.get("downloads") or 0, "task": each.get("pipeline_tag")}
        for each in models
    ]


def _thousands(count: int) -> str:
    return f"{count:,}"
