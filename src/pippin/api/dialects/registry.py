"""Finds the dialects in all packages of this folder that have a module `dialect`."""

import importlib
import importlib.util
import pkgutil
from collections.abc import Iterable, Mapping
from posixpath import commonprefix

from pippin.api import dialects
from pippin.api.dialects.base import AnyDialect

VERSION = "/v1"
UNVERSIONED = ("/api/", "/v1beta/")


def address_of(path: str) -> str:
    """The address of a dialect's requests: its path with the version, unless the API has none."""
    return path if path.startswith(UNVERSIONED) else VERSION + path


def unversioned(path: str) -> str:
    """An address without the version; `/v1beta` is the beginning of others."""
    return path[len(VERSION) :] if path == VERSION or path.startswith(VERSION + "/") else path


def find_dialects() -> Mapping[str, AnyDialect]:
    """The dialects by path, without the version."""
    found: dict[str, AnyDialect] = {}
    for package in pkgutil.iter_modules(dialects.__path__):
        name = f"{dialects.__name__}.{package.name}.dialect"
        if package.ispkg and importlib.util.find_spec(name) is not None:
            module = importlib.import_module(name)
            own: Iterable[AnyDialect] = getattr(module, "dialects", None) or (module.dialect,)
            found |= {dialect.path: dialect for dialect in own}
    return found


def run_id_of(dialects: Mapping[str, AnyDialect], name: str) -> str:
    """The run id in the id of an answer of any dialect; other names are returned unchanged."""
    prefixes = (dialect.id_prefix for dialect in dialects.values() if name.startswith(dialect.id_prefix))
    return name.removeprefix(next(prefixes, ""))


def dialect_of_path(dialects: Mapping[str, AnyDialect], path: str, *, anthropic: bool = False) -> AnyDialect:
    """The dialect that encodes errors at a path: the one whose path shares its beginning, else Chat Completions, or
    Messages if the headers show an `anthropic` client.

    Paths with a version under `/api` are LM Studio's, whose errors are in OpenAI's form.
    """
    parts = unversioned(path).split("/")
    alike = {own: len(commonprefix([own.split("/"), parts])) for own in dialects}
    nearest = max(alike, key=alike.__getitem__)
    if path.startswith(("/api/v0/", "/api/v1/")):
        return dialects["/chat/completions"]
    if alike[nearest] < 2:
        return dialects["/messages" if anthropic else "/chat/completions"]
    return dialects[nearest]
