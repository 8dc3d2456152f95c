"""The rules of the house, held by reading the source: who may import whom, who may read or print what."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "pippin"
MODULES = sorted(SOURCE.rglob("*.py"))

# What each room may import of Pippin. A room may always import itself.
MAY_IMPORT = {
    "core": set(),
    "config": {"core"},
    "output": {"core"},
    "catalog": {"core", "config"},
    "runtime": {"core", "config"},
    "engines": {"core", "config", "output"},
    "worker": {"core", "config", "engines"},
    "mcp": {"core", "config"},
    "service": {"core", "config", "runtime", "mcp"},
    "api": {"core", "config", "service", "mcp"},
    "cli": {"core", "config", "service", "catalog", "api"},
    "__main__": {"cli"},
    "__init__": set(),
}

ONLY_IN = {
    "mlx": {"engines"},
    "mlx_lm": {"engines"},
    "mlx_vlm": {"engines"},
    "mlx_audio": {"engines"},
    "mflux": {"engines"},
    "transformers": {"engines"},
    "tokenizers": {"engines", "catalog"},
    "llguidance": {"engines"},
    "torch": set(),
    "fastapi": {"api"},
    "starlette": {"api"},
    "uvicorn": {"api"},
    "rich": {"cli"},
    "mcp": {"mcp"},
    "mcp_types": {"mcp"},
    "opentelemetry": {"api"},
    "pickle": set(),
    "dill": set(),
}

LONGEST_FILE = 400
LONGEST_FUNCTION = 60


def room(path: Path) -> str:
    part = path.relative_to(SOURCE).parts[0]
    return part.removesuffix(".py")


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                if module == "pippin":
                    yield from ((node.lineno, f"pippin.{alias.name}") for alias in names)
                else:
                    yield node.lineno, module
            case _:
                pass


def relative(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@pytest.fixture(scope="module", params=MODULES, ids=relative)
def module(request: pytest.FixtureRequest) -> tuple[Path, ast.Module]:
    path: Path = request.param
    return path, ast.parse(path.read_text())


def test_a_room_imports_only_rooms_below_it(module: tuple[Path, ast.Module]) -> None:
    path, tree = module
    own = room(path)
    strangers = [
        f"line {line}: {name}"
        for line, name in imports(tree)
        if name.startswith("pippin.")
        and name.split(".")[1] not in MAY_IMPORT[own] | {own}
        and name != "pippin.__version__"
    ]
    assert not strangers, f"{relative(path)} imports {strangers}"


def test_a_library_stays_in_its_rooms(module: tuple[Path, ast.Module]) -> None:
    path, tree = module
    strangers = [
        f"line {line}: {name}"
        for line, name in imports(tree)
        if (top := name.split(".")[0]) in ONLY_IN and room(path) not in ONLY_IN[top]
    ]
    assert not strangers, f"{relative(path)} imports {strangers}"


def test_only_the_command_line_prints_and_only_config_reads_the_environment(
    module: tuple[Path, ast.Module],
) -> None:
    path, tree = module
    found: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="print")) if room(path) != "cli":
                found.append(f"line {node.lineno}: print")
            case ast.Attribute(value=ast.Name(id="os"), attr="environ" | "getenv") if room(path) != "config":
                found.append(f"line {node.lineno}: os.{node.attr}")
            case _:
                pass
    assert not found, f"{relative(path)}: {found}"


def test_files_and_functions_keep_to_their_budget(module: tuple[Path, ast.Module]) -> None:
    path, tree = module
    assert path.read_text().count("\n") <= LONGEST_FILE, relative(path)
    long = [
        f"{node.name} ({length} lines)"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > LONGEST_FUNCTION
    ]
    assert not long, f"{relative(path)}: {long}"


def test_every_module_says_what_it_owns(module: tuple[Path, ast.Module]) -> None:
    path, tree = module
    if path.name == "__init__.py" and not tree.body:
        return
    assert ast.get_docstring(tree), f"{relative(path)} has no docstring"


def test_nobody_evaluates_text_or_writes_to_globals(module: tuple[Path, ast.Module]) -> None:
    path, tree = module
    found: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.Global() | ast.Call(func=ast.Name(id="eval" | "exec")):
                found.append(f"line {node.lineno}")
            case _:
                pass
    assert not found, f"{relative(path)}: {found}"
