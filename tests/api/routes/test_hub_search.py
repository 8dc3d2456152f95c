"""`/v1/models/search`: models of the hub, for whoever may fetch them."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.fakes import MODEL, FakeService, application, client_of


def search(body: dict[str, Any], key: str | None = None, **options: Any) -> httpx.Response:
    async def main() -> httpx.Response:
        async with client_of(application(FakeService(), **options)) as client:
            headers = {"authorization": f"Bearer {key}"} if key else {}
            return await client.post("/v1/models/search", json=body, headers=headers)

    return asyncio.run(main())


def test_what_is_found_says_whether_it_is_here() -> None:
    found = search({"search": "tiny"}).json()
    assert found["object"] == "list"
    assert found["data"] == [
        {"id": "org/tiny", "downloads": 7, "task": None, "here": False},
        {"id": MODEL.id, "downloads": 5, "task": "x", "here": True},
    ]
    assert len(search({"search": "tiny", "limit": 1}).json()["data"]) == 1


@pytest.mark.parametrize("body", [{}, {"search": ""}, {"search": "x", "limit": 0}, {"search": "x" * 201}])
def test_a_search_that_can_not_be_made_is_refused_by_name(body: dict[str, Any]) -> None:
    refused = search(body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] in ("search", "limit")


def test_a_users_key_may_not_search_with_the_operators_token(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("root: {key: k-root, role: admin}\nalice: k-alice\n")
    assert search({"search": "tiny"}, "k-alice", api_key_file=str(keys)).status_code == 403
    assert search({"search": "tiny"}, "k-root", api_key_file=str(keys)).status_code == 200
