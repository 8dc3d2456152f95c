"""Finds the dialects: every package of this folder that has a module `dialect`."""

import importlib
import importlib.util
import pkgutil
from collections.abc import Mapping

from pippin.api import dialects
from pippin.api.dialects.base import AnyDialect

VERSION = "/v1"


def find_dialects() -> Mapping[str, AnyDialect]:
    """The dialects by their paths, which are without the version."""
    found: dict[str, AnyDialect] = {}
    for module in pkgutil.iter_modules(dialects.__path__):
        name = f"{dialects.__name__}.{module.name}.dialect"
        if module.ispkg and importlib.util.find_spec(name) is not None:
            dialect: AnyDialect = importlib.import_module(name).dialect
            found[dialect.path] = dialect
    return found


def run_id_of(dialects: Mapping[str, AnyDialect], name: str) -> str:
    """The id of a run, of the id that its answer has in any dialect; other names are given back as they are."""
    for dialect in dialects.values():
        if name.startswith(dialect.id_prefix):
            return name.removeprefix(dialect.id_prefix)
    return name


def dialect_of_path(dialects: Mapping[str, AnyDialect], path: str) -> AnyDialect:
    """The dialect in which errors at a path are drawn: the one that is served there, else Chat Completions."""
    bare = path.removeprefix(VERSION)
    for own, dialect in dialects.items():
        if bare == own or bare.startswith(own + "/"):
            return dialect
    return dialects["/chat/completions"]
