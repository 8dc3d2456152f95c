"""How each architecture of mlx-lm runs, by the table in docs/engine.md."""

import re
from pathlib import Path

ENGINE = Path(__file__).parents[4] / "docs" / "engine.md"
BEGIN, END = "<!-- architectures -->", "<!-- /architectures -->"
WITH_PROPOSALS = "with proposals"
"""How the names end of ways in which sequences check proposals."""


def told() -> dict[str, str]:
    """The first column of the table, by architecture."""
    table = ENGINE.read_text("utf-8").split(BEGIN)[1].split(END)[0]
    rows = re.findall(r"^\| ([\w ,]+) \| (`.*) \|$", table, re.MULTILINE)
    named = [(name, way) for way, names in rows for name in re.findall(r"`([^`]+)`", names)]
    assert len(dict(named)) == len(named), "an architecture is named twice"
    return dict(named)
