"""What stands in an operator's way: configuration errors, and the command that adds what is not installed."""

import difflib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from pippin.config.installed import folders
from pippin.core.logs import without_secrets
from pippin.core.published import object_in

LONGEST_LINE = 500


class ConfigError(Exception):
    """An invalid value or name. The message gives its place and the remedy, in one line without secrets."""

    def __init__(self, message: str) -> None:
        line = "".join(letter if letter.isprintable() else " " for letter in message)
        super().__init__(without_secrets(" ".join(line.split()))[:LONGEST_LINE])


def nearest(name: str, names: Iterable[str]) -> str:
    """` Did you mean ...?`, or an empty string if no name is close."""
    known = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    return f" Did you mean `{known[close[0]]}`?" if close else ""


CONTAINER: Final = Path("/opt/pippin")
"""Where Pippin's own container images keep the environment."""


def install_command(extra: str) -> str:
    """The command that adds the extra `extra`.

    An environment that `make` made in a clone is the Makefile's, and another one with a clone in it is pip's there. In
    a container of Pippin's, and in an environment of `uv tool` or pipx, which have no pip, it is the command that makes
    them. `direct_url.json` (PEP 610) tells what the package was installed from.
    """
    prefix = Path(sys.prefix)
    origin, is_editable = _origin()
    if is_editable and prefix == Path(unquote(urlsplit(origin).path)) / ".venv":
        return f"make serve EXTRAS={extra}"
    if is_editable:
        return f'pip install -e ".[{extra}]"'
    if prefix == CONTAINER:
        kind = ".cuda" if "mlx-cuda-13" in folders() else ""
        return f"docker build --build-arg EXTRAS={extra} -f packaging/containers/Dockerfile{kind} -t pippin ."
    requirement = f"pippin[{extra}]" + (f" @ {origin}" if origin else "")
    if (prefix / "uv-receipt.toml").is_file():
        return f'uv tool install --force "{requirement}"'
    if (prefix / "pipx_metadata.json").is_file():
        return f'pipx install --force "{requirement}"'
    return f'pip install "{requirement}"'


def kernels_command() -> str:
    """The command that adds the kernels for CPUs, which are a package of their own."""
    origin, is_editable = _origin()
    if is_editable and Path(sys.prefix) == Path(unquote(urlsplit(origin).path)) / ".venv":
        return "make kernels"
    return "pip install ./kernels" if is_editable else "pip install pippin-kernels"


def _origin() -> tuple[str, bool]:
    """The address that this package was installed from, empty for an index, and whether it is a folder in place."""
    # Source that is only on Python's path has no such folder.
    folder = folders().get("pippin")
    told = {} if folder is None else object_in(folder / "direct_url.json")
    return told.get("url", ""), told.get("dir_info", {}).get("editable", False)
