"""A scripted server and a browser for the tests of the page, once for all."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.catalog.fake_hub import FakeHub, serving
from tests.catalog.folders import write_model
from tests.page.browser import ELSEWHERE, Opener, Profile, opening, running_browser
from tests.running_server import ROOT, running_server

MARKDOWN = r"""# Sorting

A **short** answer with `code`, a [link](https://example.org/) and a table:

| name | cost |
|---|---|
| merge | $n \log n$ |

```python
def halves(items: list[int]) -> tuple[list[int], list[int]]:
    middle = len(items) // 2  # rounds down
    return items[:middle], items[middle:]
```

$$\int_0^1 x^2\,dx = \frac{1}{3}$$

It costs $5 or $6.
"""

HOSTILE = """<script>window.broken = 1</script><img src=x onerror="window.broken = 2">
[a](javascript:window.broken=3) ![p](https://evil.example/x.png?secret) <svg onload="window.broken=4"></svg>
<span class="math">\\href{javascript:window.broken=5}{x}</span> $\\href{javascript:window.broken=6}{x}$

```html"><img src=x onerror=window.broken=7>
<b>bold</b>
```
"""

TABLE = """| a very long heading | number | middle |
|---|---:|:---:|
| merge quick | 12 | x |
"""

LINES = 3500
FENCE = "```python\n" + "".join(f"value_{n} = compute({n})\n" for n in range(LINES)) + "```\n"
"""Code of more than 28,000 tokens, which does not repeat itself: the server ends what does."""

SCRIPT: dict[str, Any] = {
    "context_window": 1 << 20,
    "rules": [
        {"when": {"user": "markdown"}, "say": MARKDOWN},
        {"when": {"user": "hostile"}, "say": HOSTILE},
        {"when": {"user": "think"}, "think": "Twice two, carried over.", "say": "It is 4."},
        {"when": {"tool_result": "rain"}, "say": "Take an umbrella."},
        {"when": {"user": "weather"}, "calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]},
        {"when": {"tool_result": "42"}, "say": "It is forty-two."},
        {"when": {"user": "sum"}, "calls": [{"name": "example__add", "arguments": {"a": 20, "b": 22}}]},
        {"when": {"user": "table"}, "say": TABLE},
        {"when": {"user": "fence"}, "say": FENCE},
        {"when": {"user": "slow"}, "say": " ".join(f"word{n}" for n in range(600)), "gap": 0.05},
        {"when": {"user": "brief"}, "say": " ".join(f"word{n}" for n in range(30)), "gap": 0.05},
        {
            "when": {"user": "code"},
            "say": "```python\n" + "x = 1  # one more line\n" * 60 + "```\n\nDone.",
            "gap": 0.01,
        },
        {"when": {"system": "pirate"}, "say": "Arr!"},
    ],
}


DEAF: dict[str, Any] = {
    "capabilities": {"chat": True, "audio": False},
    "rules": [{"when": {"user": "recording.wav"}, "say": "I read it."}, {"say": "The other one answers."}],
}


@pytest.fixture(scope="package")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The one server of these tests: two models, of which `deaf` hears nothing, the tools of an MCP server, and a hub
    that has one repository, whose bytes come slowly. A browser may call it by the name of another machine."""
    folder = tmp_path_factory.mktemp("page")
    staged = write_model(folder / "staged")
    files = {path.name: path.read_bytes() for path in staged.iterdir()}
    files["model-2.safetensors"] = os.urandom(3_000_000)
    example = {
        "command": sys.executable,
        "args": ["-m", "tests.mcp.example_server"],
        "allowed_tools": ["add"],
    }
    example["env"] = {"PYTHONPATH": str(ROOT)}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"example": example}}))
    models = {"demo": SCRIPT, "deaf": DEAF}
    for name, script in models.items():
        (folder / f"{name}.script.json").write_text(json.dumps(script))
    words = [str(folder / f"{name}.script.json") for name in models]
    words += ["--mcp-config", str(folder / "mcp.json"), "--allowed-host", ELSEWHERE]
    with serving(FakeHub(files, pace=0.25)) as hub:
        variables = {"HF_ENDPOINT": hub.address, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        with running_server(folder, *words, variables=variables, ready="deaf is ready after") as address:
            yield address


@pytest.fixture(scope="package")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that asks for a key, as `sk-root`, an administrator's."""
    folder = tmp_path_factory.mktemp("keyed")
    (folder / "demo.script.json").write_text(json.dumps(SCRIPT))
    (folder / "keys.yaml").write_text(
        "root: {key: sk-root, role: admin}\n"
        "alice: {key: sk-alice, rate_limit: 60, kinds: [language]}\n"
        "nightly: {key: sk-night, token_rate_limit: 100000, endpoints: [/v1/batches], mcp_tools: true}\n"
    )
    words = (str(folder / "demo.script.json"), "--api-key-file", str(folder / "keys.yaml"))
    with running_server(folder, *words) as address:
        yield address


@pytest.fixture(scope="package")
def playwright() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright


@pytest.fixture(scope="package")
def browser(playwright: Any) -> Iterator[Any]:
    """One browser for all tests."""
    with running_browser(playwright) as browser:
        yield browser


@pytest.fixture(scope="package")
def free() -> list[Profile]:
    """The browser's profiles that no test uses now."""
    return []


@pytest.fixture
def opened(browser: Any, free: list[Profile]) -> Iterator[Opener]:
    with opening(browser, free) as opener:
        yield opener


@pytest.fixture(scope="module")
def opened_once(browser: Any, free: list[Profile]) -> Iterator[Opener]:
    """The same for pages that several tests of a file look at in turn, as it was left."""
    with opening(browser, free) as opener:
        yield opener


@pytest.fixture
def axe() -> str:
    """The source of axe-core, which checks accessibility."""
    path = Path(__file__).parent / "axe" / "axe.min.js"
    return path.read_text("utf-8")
