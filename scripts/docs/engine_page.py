"""The part of docs/engine.md that compares answers with those of transformers, by what `make test-oracle` found."""

import json
import re
from pathlib import Path
from typing import Any, Final

import yaml

from scripts.docs.marked import marked

ROOT: Final = Path(__file__).resolve().parents[2]
ORACLES: Final = ROOT / "tests" / "oracles"
UNREAD: Final = re.compile(r"cannot be loaded: (\w+) .*is not read")


def engine_page() -> str:
    """The page with fresh verdicts. Raises `ValueError` where the marks around them are missing."""
    return marked("engine.md", "tests/oracles/text_verdicts.json", _verdicts())


def _verdicts() -> str:
    known: dict[str, str] = json.loads((ORACLES / "text_verdicts.json").read_text("utf-8"))
    settings: dict[str, Any] = yaml.safe_load((ORACLES / "text.yaml").read_text("utf-8"))
    by_type: dict[str, list[str]] = {}
    for name, verdict in known.items():
        by_type.setdefault(name.partition("-")[0], []).append(verdict)
    rows: dict[str, list[str]] = {"equal": [], "mended": [], "refused": []}
    for kind, verdicts in by_type.items():
        own = {*verdicts} & {"equal", "mended"}
        rows["mended" if "mended" in own else "equal" if own else "refused"].append(kind)
    lines = ["| answers | architectures |", "|---|---|"]
    lines += [f"| {row} | {_listed(kinds)} |" for row, kinds in rows.items() if kinds]
    lines += [
        f"| not comparable: {why} | {_listed(kinds)} |" for why, kinds in settings["not comparable"].items()
    ]
    refused = {found[1] for verdict in known.values() if (found := UNREAD.search(verdict))}
    left = {*settings["differing"].values()}
    return "\n".join(
        [*lines, "", f"Refused by name: {_listed(refused)}.", f"Left: {'; '.join(sorted(left))}.", ""]
    )


def _listed(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))
