"""`pippin cache`: the prefix caches of the running server, and their files on disk."""

import json
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pippin.cli.arguments import Parser, some_options
from pippin.cli.local import settings_of
from pippin.cli.running import address, ask, client_parser, is_there
from pippin.cli.terminal import ago, size, table
from pippin.config.cache_folder import cache_files, delete, model_folders
from pippin.core.errors import ServerError


def new_parser() -> Parser:
    parser = client_parser(
        "pippin cache",
        "Show or clear the prefix caches: those of the running server, if there is one, and the files of their disk "
        "tier (cache_dir), those of models that are not loaded too. A server that uses the files goes on without.",
    )
    parser.add_argument("action", choices=("show", "clear"), help="what to do")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--memory", action="store_true", help="the server's memory alone, no files")
    either.add_argument(
        "--cache-dir", metavar="DIR", help="the files in this folder alone, instead of the configured one"
    )
    some_options(parser, ("config",))
    return parser


def run(arguments: Sequence[str]) -> int:
    parsed = new_parser().parse(arguments)
    folders = [] if parsed.memory else _folders(parsed)
    asks = parsed.cache_dir is None and is_there(parsed)
    if not asks and not folders:
        raise ServerError(
            "not_found",
            "No server runs here, and no cache_dir is configured: name a folder with --cache-dir.",
        )
    found = (_clear if parsed.action == "clear" else _show)(parsed, folders, asks=asks)
    if parsed.json:
        print(json.dumps(found, indent=2))
    return 0


def _folders(parsed: Namespace) -> list[Path]:
    """The folders of the disk tier: the given one, or all configured ones."""
    if parsed.cache_dir is not None:
        folder = Path(parsed.cache_dir).expanduser()
        if not folder.is_dir():
            raise ServerError("not_found", f"There is no folder {folder}.")
        return [folder]
    server = settings_of(parsed).server
    named = [server.model_defaults.cache_dir, *(entry.options.cache_dir for entry in server.models)]
    folders = dict.fromkeys(Path(name).expanduser() for name in named if name)
    return [folder for folder in folders if folder.is_dir()]


def _clear(parsed: Namespace, folders: list[Path], *, asks: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if asks:
        answer = ask(parsed, "DELETE", "/v1/cache/prefix" if parsed.memory else "/v1/cache")
        found["cleared"] = answer["cleared"]
        if not parsed.json:
            print(
                f"{address(parsed)} has cleared {', '.join(answer['cleared']) or 'nothing: no model is in memory'}."
            )
    for folder in folders:
        files = [file for model in model_folders(folder) for file in cache_files(model)]
        count, deleted = delete(files)
        found.setdefault("deleted", {})[str(folder)] = {"files": count, "bytes": deleted}
        if not parsed.json:
            print(f"{folder}: {count} files ({size(deleted)}) are deleted.")
    return found


def _show(parsed: Namespace, folders: list[Path], *, asks: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if asks:
        found["models"] = ask(parsed, "GET", "/v1/cache/stats")["models"]
    kept = {str(folder): [_model(model) for model in model_folders(folder)] for folder in folders}
    found["folders"] = {name: [model for model in models if model["files"]] for name, models in kept.items()}
    if not parsed.json:
        _print(found)
    return found


def _model(folder: Path) -> dict[str, Any]:
    files = [file for file in cache_files(folder) if file.finished]
    return {
        "name": folder.name,
        "files": len(files),
        "bytes": sum(file.size for file in files),
        "used": max((file.used for file in files), default=0.0),
    }


def _print(found: dict[str, Any]) -> None:
    if models := found.get("models"):
        rows = [
            (name, str(each["entry_count"]), size(each["resident_bytes"]), f"{each['token_hit_rate']:.0%}")
            for name, each in models.items()
        ]
        print(table(("MODEL", "BLOCKS", "MEMORY", "TOKENS FOUND"), rows))
    elif models is not None:
        print("No model is in memory.")
    for folder, kept in found["folders"].items():
        print(f"{folder}: {size(sum(model['bytes'] for model in kept))}")
        if kept:
            rows = [
                (model["name"], str(model["files"]), size(model["bytes"]), ago(time.time() - model["used"]))
                for model in kept
            ]
            print(table(("FINGERPRINT", "FILES", "SIZE", "USED"), rows))
