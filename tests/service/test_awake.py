"""The machine stays awake while requests run, with programs on PATH that stand in for the system's."""

import asyncio
import functools
import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from pippin.service.awake import Awake, keeping_awake

Test = Callable[..., Coroutine[Any, Any, None]]


def in_a_loop(test: Test) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


SCRIPT = """#!/bin/sh
echo "$@" >> {folder}/begun
shift $(($# - 1))
"$@"
echo ended >> {folder}/ended
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Both programs; they note how they were called, and when what they run has ended."""
    for name in ("caffeinate", "systemd-inhibit"):
        path = tmp_path / name
        path.write_text(SCRIPT.format(folder=tmp_path))
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


async def until(seen: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(
    ("system", "called"),
    [
        ("darwin", "-i cat"),
        ("linux", "--what=idle --who=pippin --why=A model answers a request cat"),
    ],
)
@in_a_loop
async def test_the_systems_program_runs_while_requests_do(programs: Path, system: str, called: str) -> None:
    awake = keeping_awake(wanted=True, system=system, systemd=programs)
    assert awake is not None
    awake.working()
    awake.working()
    await until(lambda: lines(programs / "begun") == [called])
    assert lines(programs / "ended") == []
    await awake.close()
    assert lines(programs / "ended") == ["ended"]


@in_a_loop
async def test_it_ends_a_while_after_the_last_request_and_begins_again(programs: Path) -> None:
    awake = Awake(("caffeinate", "-i", "cat"), grace=0.2)
    awake.working()
    awake.resting()
    awake.working()  # within the grace
    await asyncio.sleep(0.5)
    assert lines(programs / "ended") == []
    awake.resting()
    await until(lambda: len(lines(programs / "ended")) == 1)
    await asyncio.sleep(0.05)
    awake.working()
    await until(lambda: len(lines(programs / "begun")) == 2)
    await awake.close()


def test_nothing_runs_where_it_is_not_wanted_or_not_there(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for system, wanted in (("darwin", False), ("linux", False), ("win32", True)):
        assert keeping_awake(wanted=wanted, system=system) is None
    monkeypatch.setenv("PATH", str(programs / "nowhere"))
    assert keeping_awake(wanted=True, system="darwin") is None


def test_where_systemd_does_not_run_nothing_is_tried_and_nothing_said(programs: Path) -> None:
    (programs / "systemd-inhibit").touch(mode=0o755)
    assert keeping_awake(wanted=True, system="linux", systemd=programs) is not None
    assert keeping_awake(wanted=True, system="linux", systemd=programs / "nowhere") is None


@pytest.mark.parametrize("command", [("no-such-program-anywhere",), ("false",)])
@in_a_loop
async def test_a_program_that_fails_is_tried_once_and_is_no_error(
    command: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    awake = Awake(command, grace=0.0)
    for _ in range(3):
        awake.working()
        await until(lambda: bool(caplog.records))
        awake.resting()
        await asyncio.sleep(0.02)
    await awake.close()
    assert len(caplog.records) == 1
    assert "may go to sleep" in caplog.text
