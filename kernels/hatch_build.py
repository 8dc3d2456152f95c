"""Compiles the kernels while the package is built, with the machine's C compiler or else with ziglang's."""

import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Kernels(BuildHookInterface):  # type: ignore[misc]
    def dependencies(self) -> list[str]:
        """A compiler, where the machine has none."""
        sys.path.insert(0, self.root)
        from compile import system_compiler

        return [] if system_compiler() else ["ziglang>=0.13"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        library = root / "build" / "libpippin_kernels.so"
        subprocess.run([sys.executable, str(root / "compile.py"), str(library)], check=True)
        build_data["pure_python"] = False
        # The library is called through its C ABI: one wheel serves every Python.
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        build_data["force_include"][str(library)] = "pippin_kernels/libpippin_kernels.so"
