"""Matches names from requests and people against the names of models."""

import difflib
import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

from pippin.core.errors import ServerError

LONGEST: Final = 512
LEAST_PARTIAL: Final = 3  # characters; fewer would match by accident
FEW: Final = 5  # an error lists all models if there are at most this many
REPOSITORY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")


def is_repository(name: str) -> bool:
    """Whether the name has the Hub's form org/name."""
    return REPOSITORY.fullmatch(name) is not None and ".." not in name and "--" not in name


def check_name(name: str) -> None:
    """Raise `ServerError` for names that no model can have, such as paths out of the model folders."""
    if not name or len(name) > LONGEST or any(ord(character) < 32 for character in name):
        raise ServerError(
            "model_not_found",
            f"`model` must be a model's name of 1 to {LONGEST} printable characters.",
            "model",
        )
    if name.startswith(("/", "~")) or "\\" in name or ".." in name.split("/"):
        raise ServerError(
            "model_not_found",
            "`model` must be the name of a model, not a path, or a path inside a folder that the operator opened with "
            "--model-root. GET /v1/models lists the names; the operator can add folders with --model-dir.",
            "model",
        )


def check_path(name: str) -> None:
    """Raise `ServerError` for an operator's name that can only be a path but leads to no model folder."""
    path = Path(name).expanduser()
    if path.suffix.lower() == ".gguf" and path.is_file():
        message = f"{name} is a GGUF file. `pippin import {name}` makes an MLX model of it."
    elif path.suffix.lower() == ".gguf" or name.startswith(("/", "~", "./", "../")):
        message = f"{name} {'is no folder' if path.exists() else 'is not there'}. Give the path of a model's folder."
    else:
        return
    raise ServerError("model_not_found", message, "model")


def match_partial(name: str, ids: Collection[str]) -> list[str]:
    """The ids that an inexact name matches, at the closest level only: equal but for case, then equal to the part after
    the slash, then containing the name. A repository's name is complete, so it never matches a longer one."""
    wanted = name.lower()
    for matches in (
        [known for known in ids if known.lower() == wanted],
        [known for known in ids if known.lower().rpartition("/")[2] == wanted],
        [known for known in ids if wanted in known.lower()]
        if len(wanted) >= LEAST_PARTIAL and "/" not in wanted
        else [],
    ):
        if matches:
            return sorted(matches)
    return []


def not_found(name: str, ids: Collection[str], hint: str) -> ServerError:
    """The error for an unknown name, with similar names."""
    known = {item.lower(): item for item in ids} | {item.lower().rpartition("/")[2]: item for item in ids}
    close = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    nearest = list(dict.fromkeys(known[match] for match in close))
    sentence = f" Close to it: {', '.join(nearest)}." if nearest else ""
    if not nearest and 0 < len(ids) <= FEW:
        sentence = f" Those that do: {', '.join(ids)}."
    return ServerError(
        "model_not_found", f"The model {name!r} does not exist here.{sentence} {hint}", "model"
    )
