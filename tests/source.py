"""The modules of the source, parsed once for all rules that read them."""

import ast
import gc
from functools import cache
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parents[1] / "src" / "pippin"
MODULES: Final = sorted(SOURCE.rglob("*.py"))


@cache
def trees() -> dict[Path, ast.Module]:
    gc.disable()  # a collection would look through millions of nodes, and find nothing, again and again
    try:
        return {path: ast.parse(path.read_text("utf-8")) for path in MODULES}
    finally:
        gc.enable()


@cache
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """All nodes of a module: a dozen rules look at each, and to walk takes longer than to look."""
    return tuple(ast.walk(tree))
