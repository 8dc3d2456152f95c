"""Packages whose modules are imported without the rest of them."""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Bare(ModuleType):
    """A package whose `__init__` runs when something of it is asked for that is no imported module."""

    def __init__(self, spec: ModuleSpec) -> None:
        super().__init__(spec.name)
        self.__spec__ = spec
        self.__file__, self.__path__ = spec.origin, spec.submodule_search_locations or []
        self.__package__ = spec.name
        self._begun = False

    def __getattr__(self, name: str) -> Any:
        loader = self.__spec__.loader if self.__spec__ else None
        if self._begun or loader is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self._begun = True
        loader.exec_module(self)
        return getattr(self, name)


def import_bare(name: str) -> None:
    """Import a package without its `__init__`, unless it is imported. A package that is missing stays so."""
    spec = importlib.util.find_spec(name)
    if name not in sys.modules and spec is not None:
        sys.modules[name] = _Bare(spec)
