"""What MLX computes on, told from what is installed."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from pippin.config import accelerator as module
from pippin.config.accelerator import (
    accelerator,
    card_memory,
    device_memory,
    memory_budget,
    told_budget,
    working_set,
)
from pippin.config.options.server import ServerOptions

CARD = 80 * 10**9


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    accelerator.cache_clear()
    card_memory.cache_clear()
    yield
    accelerator.cache_clear()
    card_memory.cache_clear()


@pytest.mark.parametrize(
    ("program", "found"),
    [("echo 81559", 81559 << 20), ("echo '[N/A]'", None), ("exit 9", None), (None, None)],
)
def test_the_cards_memory_is_the_drivers_word_or_none(
    program: str | None, found: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if program is not None:
        path = tmp_path / "nvidia-smi"
        path.write_text(f"#!/bin/sh\n{program}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert card_memory() == found


@pytest.mark.parametrize(
    ("visible", "found"), [(None, 24), ("", 24), ("2,0", 80), (" 2 ", 80), ("GPU-5ae1,0", 40)]
)
def test_the_card_is_the_first_that_programs_may_see(
    visible: str | None, found: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "nvidia-smi"
    cards = "".join(
        f"*--id={card}) echo {size};; " for card, size in (("0", 24), ("2", 80), ("GPU-5ae1", 40))
    )
    path.write_text(f'#!/bin/sh\ncase "$*" in {cards}esac\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert card_memory() == found << 20


@pytest.mark.parametrize(
    ("platform", "driver", "build", "found"),
    [
        ("darwin", False, False, "metal"),
        ("linux", True, True, "cuda"),
        ("linux", True, False, "cpu"),
        ("linux", False, True, "cpu"),
    ],
)
def test_cuda_takes_a_driver_and_a_build_for_it(
    platform: str, driver: bool, build: bool, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.sys, "platform", platform)
    monkeypatch.setattr(module, "DRIVER", tmp_path if driver else tmp_path / "absent")
    monkeypatch.setattr(module.installed, "folders", lambda: {"mlx-cuda-13": tmp_path} if build else {})
    assert accelerator() == found


def test_models_share_the_cards_memory_where_they_lie_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "accelerator", lambda: "cuda")
    monkeypatch.setattr(module, "card_memory", lambda: CARD)
    assert device_memory() == CARD
    monkeypatch.setattr(module, "card_memory", lambda: None)
    assert device_memory() != CARD


@pytest.mark.parametrize(
    ("gigabytes", "said", "expected"), [(16, "0", 10.67), (64, "0", 48), (128, "0", 96), (128, "114688", 112)]
)
def test_models_on_a_mac_stay_within_the_gpus_working_set(
    gigabytes: int,
    said: str,
    expected: float,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "machine_memory", lambda: gigabytes << 30)
    monkeypatch.setattr(module, "accelerator", lambda: "metal")
    monkeypatch.setattr(module.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=f"{said}\n"))
    working_set.cache_clear()
    assert working_set() / 2**30 == pytest.approx(expected, abs=0.01)
    for share in (0.8, 1.0):
        assert memory_budget(ServerOptions(memory_percent=share)) <= 0.9 * working_set()
    assert memory_budget(ServerOptions(memory_percent=0.1)) == int(0.1 * (gigabytes << 30))
    for asked, budget in ((1, 10**9), (1000, int(0.9 * working_set()))):
        assert told_budget(ServerOptions(memory_budget_gb=asked)) == budget
        assert ("memory_budget_gb is 1000" in caplog.text) == ("wired_limit_mb" in caplog.text) == (asked > 1)
    working_set.cache_clear()
