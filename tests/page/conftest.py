"""A scripted server and a browser for the tests of the page, once for all of a file."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.page.browser import Opener, opening, running_browser
from tests.running_server import running_server

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

CODE = "```python\n" + "x = 1  # one more line\n" * 60 + "```\n\nDone."

SCRIPT: dict[str, Any] = {
    "rules": [
        {"when": {"user": "markdown"}, "say": MARKDOWN},
        {"when": {"user": "hostile"}, "say": HOSTILE},
        {"when": {"user": "think"}, "think": "Twice two, carried over.", "say": "It is 4."},
        {"when": {"tool_result": "rain"}, "say": "Take an umbrella."},
        {"when": {"user": "weather"}, "calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]},
        {"when": {"user": "slow"}, "say": " ".join(f"word{n}" for n in range(600)), "gap": 0.05},
        {"when": {"user": "brief"}, "say": " ".join(f"word{n}" for n in range(30)), "gap": 0.05},
        {
            "when": {"user": "code"},
            "say": "```python\n" + "x = 1  # one more line\n" * 60 + "```\n\nDone.",
            "gap": 0.01,
        },
        {"when": {"system": "pirate"}, "say": "Arr!"},
    ]
}


@contextmanager
def scripted(folder: Path, *words: str) -> Iterator[str]:
    """`pippin serve` of the script above, as a user starts it."""
    script = folder / "demo.script.json"
    script.write_text(json.dumps(SCRIPT))
    with running_server(folder, str(script), *words) as address:
        yield address


@pytest.fixture(scope="package")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with scripted(tmp_path_factory.mktemp("page")) as address:
        yield address


@pytest.fixture(scope="package")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that asks for the key `sk-page`."""
    with scripted(tmp_path_factory.mktemp("keyed"), "--api-key", "sk-page") as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for all tests of a file: to start it takes a second."""
    with running_browser() as browser:
        yield browser


@pytest.fixture
def opened(browser: Any) -> Iterator[Opener]:
    with opening(browser) as opener:
        yield opener


@pytest.fixture
def axe() -> str:
    """The source of axe-core, which checks accessibility."""
    path = Path(__file__).parent / "axe" / "axe.min.js"
    return path.read_text("utf-8")
