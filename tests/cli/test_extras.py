"""What a migrant is told to install."""

import importlib.util
from typing import Any

import pytest

from pippin.cli.extras import PARTS, missing_parts
from pippin.config.compat.servers import servers
from pippin.config.errors import install_command


def test_what_is_missing_is_one_sentence_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    there: set[str] = {"mlx_vlm"}

    def find(name: str, *rest: Any) -> object | None:
        return object() if name in there else None

    monkeypatch.setattr(importlib.util, "find_spec", find)
    said = missing_parts("vllm-mlx")
    assert said is not None
    assert "speech, MCP servers" in said
    assert "pictures" not in said
    assert install_command("vllm-mlx") in said
    assert missing_parts("mlx-server") is None
    assert missing_parts(None) is None


def test_every_profile_says_what_its_server_served() -> None:
    assert PARTS.keys() == servers().keys()
