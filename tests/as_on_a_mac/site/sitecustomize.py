"""In a worker of a test server as on a Mac: what asks for the machine's facts is told the Mac's, and computes as it.

MLX must not be imported before the worker has chosen its BLAS, so nothing happens until the facts are asked for.
"""

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any

DEVICE = "pippin.engines.device"


def told() -> Any:
    from tests.as_on_a_mac.mac import chosen_mac
    from tests.as_on_a_mac.process import take

    mac = chosen_mac()
    assert mac is not None
    take(mac)
    return mac.facts


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if name != DEVICE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.loader is not None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            vars(module)["find_facts"] = told

        vars(spec.loader)["exec_module"] = exec_module
        return spec


sys.meta_path.insert(0, Finder())
