"""The models on this machine and on the hub: `pippin list`, `search`, `pull`, `rm` and `import`."""

import asyncio
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pippin.cli.arguments import JSON, argument, number, of_catalog, switch, verb
from pippin.cli.local import open_catalog, roots, settings_of
from pippin.cli.terminal import ago, as_json, progress, say, size, table
from pippin.config.settings import GivenFlag
from pippin.core.errors import ServerError

if TYPE_CHECKING:
    from pippin.catalog import CatalogEntry

MOST: Final = 20  # models of a search


@verb(
    "list",
    argument("name", nargs="?", default="", help="only models whose name contains this"),
    JSON,
    switch("-q", "--quiet", help="print only the names"),
    of_catalog,
)
def list_models(parsed: Namespace) -> int:
    catalog = open_catalog(settings_of(parsed))
    entries = [entry for entry in catalog.entries() if parsed.name.lower() in entry.found.id.lower()]
    if parsed.json:
        print(as_json([_facts_of(entry) for entry in entries]))
    elif parsed.quiet:
        for entry in entries:
            print(entry.found.id)
    elif entries:
        headings = ("NAME", "KIND", "SIZE", "WEIGHTS", "WINDOW", "CHANGED", "FROM")
        print(table(headings, [_listed(entry) for entry in entries]))
    elif parsed.name:
        print(f"No model's name contains `{parsed.name}`. `pippin list` shows those that are here.")
    else:
        print("No models here. Fetch one with `pippin pull REPOSITORY`, or serve a folder: pippin serve PATH")
    return 0


def _listed(entry: "CatalogEntry") -> tuple[str, ...]:
    info = entry.info
    if info is None:
        state = "incomplete" if entry.incomplete else "not usable"
        state = entry.found.source if entry.found.is_gguf else state
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


def _facts_of(entry: "CatalogEntry") -> dict[str, object]:
    info = entry.info
    place: dict[str, object] = {"id": entry.found.id, "source": entry.found.source}
    if info is None:
        error = entry.error.message if entry.error else None
        return {**place, "error": error, "incomplete": entry.incomplete}
    names = ("id", "kind", "path", "size_bytes", "quantization", "context_window")
    return place | {name: getattr(info, name) for name in names}


@verb(
    "search",
    argument("words", nargs="+", help="words of a model's name"),
    number("--limit", least=1, default=MOST, metavar="COUNT", help=f"how many (default: {MOST})"),
    switch("--all", help="models without the tag mlx too"),
    JSON,
    of_catalog,
)
def search(parsed: Namespace) -> int:
    catalog = open_catalog(settings_of(parsed))
    found = asyncio.run(catalog.search(" ".join(parsed.words), limit=parsed.limit, mlx_only=not parsed.all))
    if parsed.json:
        say(as_json(found))
    elif found:
        rows = [(each.id, f"{each.downloads:,}", each.task or "-") for each in found]
        say(table(("MODEL", "DOWNLOADS", "TASK"), rows))
        say(f"Will it fit? pippin fit {found[0].id}    Fetch it: pippin pull {found[0].id}")
    else:
        more = "" if parsed.all else " --all looks among models without the tag mlx too."
        say(f"The hub has no model with these words.{more} `pippin recommend` names models for this machine.")
    return 0 if found else 1


@verb(
    "pull",
    argument("model", help="a repository (org/name) or an alias"),
    argument("--timeout", metavar="SECONDS", help="seconds without data before a new try"),
    argument("--retries", metavar="COUNT", help="tries after a failed one"),
    switch("--mllm", help="accepted and not needed"),
    of_catalog,
)
def pull(parsed: Namespace) -> int:
    for flag, text in (("--download-timeout", parsed.timeout), ("--download-retries", parsed.retries)):
        if text is not None:
            parsed.given.append(GivenFlag(flag, text))
    catalog = open_catalog(settings_of(parsed))
    try:
        with progress("Downloading", bytes_counted=True) as tell:
            info = asyncio.run(catalog.fetch(parsed.model, tell))
    except KeyboardInterrupt:
        say(f"Stopped. `pippin pull {parsed.model}` goes on from here.", sys.stderr)
        raise
    say(f"{info.id} is here ({size(info.size_bytes)}).")
    chats = info.kind == "language" and info.capabilities.chat
    talk = f"Talk to it: pippin run {info.id}    " if chats else ""
    say(f"{talk}Serve it: pippin serve {info.id}")
    return 0


@verb(
    "rm",
    argument("model", nargs="+", help="a model's whole name; a folder of your own is never deleted"),
    switch("-y", "--yes", help="do not ask"),
    of_catalog,
)
def rm(parsed: Namespace) -> int:
    catalog = open_catalog(settings_of(parsed))
    for name in parsed.model:
        # Scripts are not asked.
        asked = not parsed.yes and sys.stdin.isatty()
        if asked and input(f"Delete {name}? [y/N] ").strip().lower() not in ("y", "yes"):
            print(f"{name} stays.")
            continue
        print(f"{catalog.remove(name).found.id} is deleted.")
    return 0


@verb(
    "import",
    argument("file", help="the GGUF file, or its name in `pippin list`"),
    argument("--name", help="the model's name; the file's if not given"),
    switch("--if-missing", help="do nothing if the name is taken"),
)
def import_model(parsed: Namespace) -> int:
    places = roots()
    imports, file, left = places.imports, Path(parsed.file), list[str]()
    name = parsed.name or file.stem.lower()
    if not file.exists():
        from pippin.catalog.scan import imported_as, layers_of, scan_hub, scan_others, unread

        called = (parsed.file, f"{parsed.file}:latest")  # as Ollama's own commands read a name
        here = (*scan_hub(places.hub), *scan_others(places.others))
        found = next((each for each in here if each.id in called), None)
        if found is not None and found.is_gguf:
            if (why := unread(found)) is not None:
                raise ServerError("model_not_found", why)
            file, name = found.folder, parsed.name or imported_as(found.id)
            left = sorted(layers_of(found.root).keys() & {"params", "projector", "system"})
    if parsed.if_missing and (imports / name / "config.json").is_file():
        return 0
    from pippin.catalog.gguf import import_gguf

    with progress(f"Importing {name}:", bytes_counted=True) as tell:
        info = import_gguf(file, imports, name, tell)
    beside = f" Without what lies beside it: {', '.join(left)}." if left else ""
    print(f"{name} is imported ({size(info.size_bytes)}).{beside} Serve it: pippin serve {name}")
    return 0
