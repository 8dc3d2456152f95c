"""Finds the dialects: those of every package of this folder that has a module `dialect`."""

import importlib
import importlib.util
import itertools
import pkgutil
from collections.abc import Iterable, Mapping

from pippin.api import dialects
from pippin.api.dialects.base import AnyDialect

VERSION = "/v1"
UNVERSIONED = "/api/"


def address_of(path: str) -> str:
    """Where a dialect's bodies are posted: with the version, unless the API that it speaks has none."""
    return path if path.startswith(UNVERSIONED) else VERSION + path


def find_dialects() -> Mapping[str, AnyDialect]:
    """The dialects by their paths, which are without the version."""
    found: dict[str, AnyDialect] = {}
    for package in pkgutil.iter_modules(dialects.__path__):
        name = f"{dialects.__name__}.{package.name}.dialect"
        if package.ispkg and importlib.util.find_spec(name) is not None:
            module = importlib.import_module(name)
            own: Iterable[AnyDialect] = getattr(module, "dialects", None) or (module.dialect,)
            found |= {dialect.path: dialect for dialect in own}
    return found


def run_id_of(dialects: Mapping[str, AnyDialect], name: str) -> str:
    """The id of a run, of the id that its answer has in any dialect; other names are given back as they are."""
    for dialect in dialects.values():
        if name.startswith(dialect.id_prefix):
            return name.removeprefix(dialect.id_prefix)
    return name


def dialect_of_path(dialects: Mapping[str, AnyDialect], path: str, *, anthropic: bool = False) -> AnyDialect:
    """The dialect in which errors at a path are drawn: the one whose path begins alike, else Chat Completions, or
    Messages for a client that says by its headers that it is `anthropic`'s.

    What has a version under `/api` is LM Studio's, whose answers are in OpenAI's form.
    """
    parts = path.removeprefix(VERSION).split("/")

    def alike(own: str) -> int:
        pairs = zip(own.split("/"), parts, strict=False)
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))

    nearest = max(dialects, key=alike)
    if path.startswith(("/api/v0/", "/api/v1/")):
        return dialects["/chat/completions"]
    if alike(nearest) < 2:
        return dialects["/messages" if anthropic else "/chat/completions"]
    return dialects[nearest]
