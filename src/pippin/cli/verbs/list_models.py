"""`pippin list`: the models on this machine."""

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pippin.cli.arguments import Parser, some_options
from pippin.cli.local import OPTIONS, open_catalog, settings_of
from pippin.cli.terminal import ago, size, table

if TYPE_CHECKING:
    from pippin.catalog import CatalogEntry


def new_parser() -> Parser:
    parser = Parser(prog="pippin list", description="List the models on this machine.")
    parser.add_argument("name", nargs="?", default="", help="only models whose name contains this")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="print only the names")
    some_options(parser, OPTIONS)
    return parser


def run(arguments: Sequence[str]) -> int:
    parsed = new_parser().parse(arguments)
    catalog = open_catalog(settings_of(parsed))
    entries = [entry for entry in catalog.entries() if parsed.name.lower() in entry.found.id.lower()]
    if parsed.json:
        print(json.dumps([_facts(entry) for entry in entries], indent=2))
    elif parsed.quiet:
        for entry in entries:
            print(entry.found.id)
    elif entries:
        headings = ("NAME", "KIND", "SIZE", "WEIGHTS", "WINDOW", "CHANGED", "FROM")
        print(table(headings, [_row(entry) for entry in entries]))
    elif parsed.name:
        print(f"No model's name contains `{parsed.name}`. `pippin list` shows those that are here.")
    else:
        print("No models here. Fetch one with `pippin pull REPOSITORY`, or serve a folder: pippin serve PATH")
    return 0


def _row(entry: "CatalogEntry") -> tuple[str, ...]:
    info = entry.info
    if info is None:
        state = "incomplete" if entry.incomplete else "not usable"
        state = f"of {entry.found.source}" if entry.found.is_gguf else state
        return (entry.found.id, *5 * ("-",), f"{state}: {entry.error.message if entry.error else '-'}")
    return (
        info.id,
        info.kind,
        size(info.size_bytes),
        info.quantization or info.dtype or "-",
        str(info.context_window or "-"),
        ago(time.time() - info.created) if info.created else "-",
        entry.found.source,
    )


def _facts(entry: "CatalogEntry") -> dict[str, object]:
    info, place = entry.info, {"id": entry.found.id, "source": entry.found.source}
    if info is None:
        error = entry.error.message if entry.error else None
        return {**place, "error": error, "incomplete": entry.incomplete}
    return {
        **place,
        "id": info.id,
        "kind": info.kind,
        "path": info.path,
        "size_bytes": info.size_bytes,
        "quantization": info.quantization,
        "context_window": info.context_window,
    }
