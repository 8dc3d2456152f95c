"""Tiny models under the names of the examples, and examples of the command line run as they are typed."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.engines.tiny_models import tiny_model

SECONDS = 120


def cache_of(home: Path, repositories: Iterable[str], architecture: str = "qwen3") -> None:
    """Put one tiny model under each of these names into the Hugging Face cache below `home`."""
    hub = home / ".cache" / "huggingface" / "hub"
    first: Path | None = None
    for repository in repositories:
        root = hub / ("models--" + repository.replace("/", "--"))
        folder = root / "snapshots" / "main"
        if first is None:
            first = tiny_model(architecture, folder)
        else:
            shutil.copytree(first, folder)
        (root / "refs").mkdir(parents=True, exist_ok=True)
        (root / "refs" / "main").write_text("main")


def typed(address: str, example: str) -> str:
    """What the example of a document prints, its address alone being another."""
    command = re.sub(r"https?://(localhost|127\.0\.0\.1|0\.0\.0\.0):\d+", address, example)
    environment = {"PATH": os.environ["PATH"], "no_proxy": "*"}
    done = subprocess.run(
        ["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=SECONDS, check=True
    )
    return done.stdout


def answered(address: str, example: str) -> Any:
    """As `typed`, read as JSON."""
    return json.loads(typed(address, example))


def events(text: str) -> list[Any]:
    """The data of a printed stream of server-sent events, without the `[DONE]` at its end."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]
