"""What the page's console and settings are told: the table of options, the log, what fits this machine."""

import asyncio
import logging
from typing import Any, cast

from pippin.config.options.declaration import options
from pippin.core.logs import RECENT
from tests.api.fakes import FakeService, application, client_of


def ask(path: str, status: int = 200, headers: dict[str, str] | None = None, **given: Any) -> dict[str, Any]:
    async def main() -> dict[str, Any]:
        async with client_of(application(FakeService(), **given)) as client:
            reply = await client.get(path, headers=headers)
            assert reply.status_code == status
            return cast(dict[str, Any], reply.json())

    return asyncio.run(main())


def test_settings_come_with_what_an_operator_must_know_of_each() -> None:
    told = ask("/v1/settings")
    by_name = {each["name"]: each for each in told["options"]}
    assert by_name.keys() == told["current"].keys() & options().keys()
    level = by_name["log_level"]
    assert (level["section"], level["hot"], level["default"]) == ("Address and log", True, "info")
    assert level["help"] == "Least severe line to log."
    assert "api_keys" not in by_name


def test_the_log_is_read_line_by_line_by_who_manages_the_server(tmp_path: Any) -> None:
    for text in ("one", "two"):
        RECENT.handle(logging.makeLogRecord({"msg": text, "levelname": "INFO"}))
    *_, one, two = ask("/v1/logs")["data"]
    assert (one["text"], one["level"], two["number"]) == ("one", "info", one["number"] + 1)
    assert ask(f"/v1/logs?after={one['number']}")["data"] == [two]
    keys = tmp_path / "keys.yaml"
    keys.write_text("root: {key: sk-root, role: admin}\nalice: {key: sk-alice}\n")
    ask("/v1/logs", 403, {"x-api-key": "sk-alice"}, api_key_file=str(keys))


def test_models_that_fit_are_told_by_purpose() -> None:
    told = ask("/v1/models/recommended?for=code", memory_budget_gb=20)
    assert told["memory_bytes"] == 20_000_000_000
    assert [each["id"] for each in told["data"]] == ["org/for-code"]
    assert "for" in ask("/v1/models/recommended?for=nothing", 400)["error"]["message"]
