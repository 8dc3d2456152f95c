"""What benchmarks import from the house is there. Most import it once they run, which no other test does."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_what_benchmarks_import_is_there() -> None:
    missing = [
        f"{path.name}:{node.lineno} {node.module}.{alias.name}"
        for path in sorted((ROOT / "benchmarks").glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("tests", "benchmarks")
        for alias in node.names
        if alias.name not in names_of(node.module or "")
    ]
    assert not missing


def names_of(module: str) -> set[str]:
    """The names that a module has, with those of the modules in a package."""
    place = ROOT / module.replace(".", "/")
    source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    inside = {path.stem for path in place.glob("*")} if place.is_dir() else set()
    return inside | set(_bound(ast.parse(source.read_text()))) if source.exists() else inside


def _bound(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.alias():
                yield node.asname or node.name
