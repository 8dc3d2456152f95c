"""What each key has used of each model, over restarts and beside other servers."""

import asyncio
import re
from pathlib import Path

import anthropic
import httpx

from pippin.api.answers.answer import Usage, Used
from pippin.api.telemetry.ledger import Ledger
from tests.api.live_server import MODEL, live_server


def test_figures_outlive_the_server_and_add_up_over_several(tmp_path: Path) -> None:
    async def one_life(requests: int) -> None:
        new = Usage(Used)
        keeping = asyncio.create_task(Ledger(new).keep(tmp_path / "usage.sqlite3"))
        await asyncio.sleep(0.1)
        for _ in range(requests):
            new["ann", "m"].add(Used(requests=1, prompt_tokens=10, completion_tokens=3, seconds=0.5))
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    async def main() -> dict[tuple[str, str], Used]:
        await asyncio.gather(one_life(2), one_life(3))
        new = Usage(Used)
        last = Ledger(new)
        keeping = asyncio.create_task(last.keep(tmp_path / "usage.sqlite3"))
        await asyncio.sleep(0.1)
        new["", "m"].add(Used(requests=1))
        found = last.read()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        return found

    found = asyncio.run(main())
    assert found == {
        ("", "m"): Used(requests=1),
        ("ann", "m"): Used(requests=5, prompt_tokens=50, completion_tokens=15, seconds=2.5),
    }


def test_a_folder_that_can_not_be_written_stops_no_server(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    new = Usage(Used)
    ledger = Ledger(new)
    asyncio.run(ledger.keep(tmp_path / "file" / "usage.sqlite3"))
    new["ann", "m"].add(Used(requests=1))
    assert ledger.read() == {("ann", "m"): Used(requests=1)}


def test_an_administrator_sees_all_keys_and_a_user_the_own(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(
        "- {key: aaaa, name: ann}\n- {key: bbbb, name: bob}\n- {key: cccc, name: carl, role: admin}\n"
    )
    with live_server(tmp_path, {}, api_key_file=str(keys), enable_metrics=True) as address:
        for key in ("aaaa", "aaaa", "bbbb"):
            client = anthropic.Anthropic(base_url=address, api_key=key)
            client.messages.create(
                model=MODEL, max_tokens=9, messages=[{"role": "user", "content": "one two"}]
            )

        def seen(key: str) -> dict[str, int]:
            reply = httpx.get(f"{address}/v1/usage", headers={"x-api-key": key}).raise_for_status()
            return {row["key"]: row["requests"] for row in reply.json()["data"]}

        assert seen("cccc") == {"ann": 2, "bob": 1}
        assert seen("bbbb") == {"bob": 1}
        for key, names in (("cccc", {"ann", "bob"}), ("bbbb", {"bob"}), ("none", set())):
            text = httpx.get(f"{address}/metrics", headers={"x-api-key": key}).raise_for_status().text
            told = re.findall(r'pippin_usage_requests_total\{key="(.*)",model=.*\} [12]\.0', text)
            assert set(told) == names
    assert (tmp_path / "usage.sqlite3").exists()
