"""The part of docs/engine.md that compares answers with those of transformers, by what `make test-oracle` found."""

import json
import re
from pathlib import Path
from typing import Any, Final

import yaml

from scripts.docs.marked import marked

ROOT: Final = Path(__file__).resolve().parents[2]
ORACLES: Final = ROOT / "tests" / "oracles"
UNREAD: Final = re.compile(r"(?:cannot|can't) be loaded[^:]*: (\w+) .*is not read")


def engine_page() -> str:
    """The page with fresh verdicts. Raises `ValueError` where the marks around them are missing."""
    return marked("engine.md", "tests/oracles/*_verdicts.json", _verdicts())


def _verdicts() -> str:
    known = _known("text")
    settings: dict[str, Any] = yaml.safe_load((ORACLES / "text.yaml").read_text("utf-8"))
    lines = ["| answers | architectures |", "|---|---|", *_rows(known)]
    lines += [
        f"| not comparable: {why} | {_listed(kinds)} |" for why, kinds in settings["not comparable"].items()
    ]
    encoders = _known("encoder")
    for kind in ("embeddings", "rerankers"):
        own = {name.partition("/")[2]: each for name, each in encoders.items() if name.startswith(kind)}
        lines += _rows(own, f"{kind}: ")
    vision = {name: verdict.partition(":")[0] for name, verdict in _known("vision").items()}
    vision = {name: each for name, each in vision.items() if "-" not in name or not each.startswith("equal")}
    for verdict in sorted({*vision.values()}):
        kinds = {name.partition("-")[0] for name in vision if vision[name] == verdict}
        lines.append(f"| pictures: {verdict} | {_listed(kinds)} |")
    seen: dict[str, Any] = yaml.safe_load((ORACLES / "vision.yaml").read_text("utf-8"))
    lines += [
        f"| pictures: not comparable: {why} | {_listed(kinds)} |"
        for why, kinds in seen["not comparable"].items()
    ]
    every = [*known.values(), *encoders.values()]
    refused = {found[1] for verdict in every if (found := UNREAD.search(verdict))}
    left = {*settings["differing"].values(), *seen["differing"].values()}
    return "\n".join(
        [*lines, "", f"Refused by name: {_listed(refused)}.", f"Left: {'; '.join(sorted(left))}.", ""]
    )


def _known(kind: str) -> dict[str, str]:
    found: dict[str, str] = json.loads((ORACLES / f"{kind}_verdicts.json").read_text("utf-8"))
    return found


def _rows(known: dict[str, str], of: str = "") -> list[str]:
    """Architectures by what is said of the best of their checkpoints; `of` begins each row."""
    by_type: dict[str, list[str]] = {}
    for name, verdict in known.items():
        kind = name if name in ("xlm-roberta", "deberta-v2") else name.partition("-")[0]
        by_type.setdefault(kind, []).append(verdict)
    rows: dict[str, list[str]] = {"equal": [], "mended": [], "refused": [], "transformers fails": []}
    for kind, verdicts in by_type.items():
        own = next((row for row in ("mended", "equal", "transformers fails") if row in verdicts), "refused")
        rows[own].append(kind)
    return [f"| {of}{row} | {_listed(kinds)} |" for row, kinds in rows.items() if kinds]


def _listed(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))
