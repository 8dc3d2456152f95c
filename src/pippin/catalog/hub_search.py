"""Searches the hub for models by words in their names."""

from typing import Final

import msgspec
from msgspec import Struct

from pippin.core.decoding import from_json
from pippin.core.errors import ServerError
from pippin.core.models import HubModel

SECONDS: Final = 30.0
MLX: Final = "mlx"  # the hub's tag for models with MLX weights


class _Line(Struct, frozen=True):
    """The fields that are read of the hub's answer for each model."""

    id: str
    downloads: int | None = None
    pipeline_tag: str | None = None


def search_hub(words: str, *, limit: int, mlx_only: bool) -> list[HubModel]:
    """The most downloaded models whose names contain these words. Raises `ServerError` if the hub does not answer."""
    import httpx
    from huggingface_hub import constants, get_token

    asked = {"search": words, "sort": "downloads", "direction": "-1", "limit": str(limit)}
    token = get_token()
    try:
        reply = httpx.get(
            f"{constants.ENDPOINT}/api/models",
            params=asked | ({"filter": MLX} if mlx_only else {}),
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=SECONDS,
            follow_redirects=True,
        )
        reply.raise_for_status()
        lines = from_json(reply.content, list[_Line])
    except httpx.HTTPStatusError as error:
        raise ServerError(
            "load_failed", f"The hub answered {error.response.status_code}. Try again in a while."
        ) from None
    except (httpx.HTTPError, msgspec.DecodeError):
        raise ServerError(
            "load_failed", "The hub cannot be reached. `pippin list` shows what is here."
        ) from None
    return [HubModel(id=each.id, downloads=each.downloads or 0, task=each.pipeline_tag) for each in lines]
