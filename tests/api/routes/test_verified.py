"""A model tells what `pippin verify` found of it last."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pippin.config.verified import keep
from pippin.core.verification import Finding, Report, Section
from tests.api.fakes import MODEL, FakeService, application, client_of


def described() -> dict[str, Any]:
    async def main() -> dict[str, Any]:
        async with client_of(application(FakeService())) as client:
            found: dict[str, Any] = (await client.get(f"/v1/models/{MODEL.id}")).json()
            return found

    return asyncio.run(main())


def test_a_model_tells_the_last_verdict_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIPPIN_HOME", str(tmp_path))
    assert described()["verification"] is None
    found = (
        Finding(code="bos-twice", severity="fault", text="."),
        Finding(code="x", severity="note", text="."),
    )
    keep(Report(model=MODEL.id, folder="/secret", at=7, sections=(Section(name="tokens", findings=found),)))
    told = {"verdict": "1 fault, 0 warnings", "faults": 1, "warnings": 0, "at": 7}
    told["findings"] = [msgspec.to_builtins(each) for each in found]
    assert described()["verification"] == told
    keep(Report(model=MODEL.id, folder="/secret", at=8, sections=()))
    assert described()["verification"]["verdict"] == "no fault found"
