"""The rules of the house, held by reading the source: who may import whom, how rooms are built, who may print what."""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

from tests import source
from tests.source import MODULES, SOURCE

TESTS = Path(__file__).parent

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
    "service": {"core", "config", "catalog", "runtime", "mcp"},
    "api": {"core", "config", "service", "mcp"},
    "cli": {"core", "config", "output", "mcp", "runtime", "service", "catalog", "api"},
    "__main__": {"cli"},
    "__init__": set(),
}

ONLY_IN = {
    "mlx": {"engines"},
    "mlx_lm": {"engines"},
    "pippin_kernels": {"engines"},
    "mlx_vlm": {"engines"},
    "mlx_audio": {"engines", "catalog"},  # there its registry of names alone, which imports no MLX
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
    "pickle": set(),
    "dill": set(),
}

# Houses whose rooms, and the files beside them, import each other one way.
ONE_WAY = (
    "pippin.engines",
    "pippin.engines.language",
    "pippin.engines.language.step",
    "pippin.api",
    "pippin.api.dialects",
    "pippin.runtime",
    "pippin.config",
    "pippin.output",
)

MOST_ARROWS = {"pippin.api": 80}  # between the rooms of a house and the files beside them

MOST_MODULES = 15  # in one folder, beside its `__init__`
SHELVES = {
    "engines/language/upstream/mlx_lm",
    "engines/language/upstream/mlx_vlm",
    "output/tool_parsers",
}
"""Folders of like things, which may hold more."""

LONGEST_FUNCTION = 55

MOST_FILES_OF_A_REQUEST = 45


def room(path: Path) -> str:
    part = path.relative_to(SOURCE).parts[0]
    return part.removesuffix(".py")


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in source.nodes(tree):
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


@pytest.fixture(scope="module")
def trees() -> dict[Path, ast.Module]:
    """Each rule is one test: a test for each file takes more time than its reading."""
    return source.trees()


Offences = Iterator[tuple[int, str]]  # line, and what is wrong there


def check(trees: dict[Path, ast.Module], rule: Callable[[str, ast.Module], Offences]) -> None:
    """Apply a rule to each module, given with the room it lies in."""
    found = [
        f"{relative(path)}:{line}: {what}"
        for path, tree in trees.items()
        for line, what in rule(room(path), tree)
    ]
    assert not found, "\n".join(found)


def test_a_room_imports_only_rooms_below_it(trees: dict[Path, ast.Module]) -> None:
    def rule(own: str, tree: ast.Module) -> Offences:
        for line, name in imports(tree):
            if not name.startswith("pippin.") or name == "pippin.__version__":
                continue
            if name.split(".")[1] not in MAY_IMPORT[own] | {own}:
                yield line, f"imports {name}"

    check(trees, rule)


def test_a_library_stays_in_its_rooms(trees: dict[Path, ast.Module]) -> None:
    def rule(own: str, tree: ast.Module) -> Offences:
        for line, name in imports(tree):
            if (top := name.split(".")[0]) in ONLY_IN and own not in ONLY_IN[top]:
                yield line, f"imports {name}"

    check(trees, rule)


def test_only_the_command_line_prints_and_only_config_reads_the_environment(
    trees: dict[Path, ast.Module],
) -> None:
    def rule(own: str, tree: ast.Module) -> Offences:
        for node in source.nodes(tree):
            match node:
                case ast.Call(func=ast.Name(id="print")) if own != "cli":
                    yield node.lineno, "print"
                case ast.Attribute(value=ast.Name(id="os"), attr="environ" | "getenv") if own != "config":
                    yield node.lineno, f"os.{node.attr}"
                case _:
                    pass

    check(trees, rule)


def test_functions_are_short(trees: dict[Path, ast.Module]) -> None:
    def rule(_: str, tree: ast.Module) -> Offences:
        for node in source.nodes(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > LONGEST_FUNCTION:
                    yield node.lineno, f"{node.name} has {length} lines"

    check(trees, rule)


def test_every_module_says_what_it_owns(trees: dict[Path, ast.Module]) -> None:
    def rule(_: str, tree: ast.Module) -> Offences:
        if not ast.get_docstring(tree):
            yield 1, "has no docstring"

    check(trees, rule)


def test_nobody_evaluates_text_or_writes_to_globals(trees: dict[Path, ast.Module]) -> None:
    def rule(_: str, tree: ast.Module) -> Offences:
        for node in source.nodes(tree):
            match node:
                case ast.Global():
                    yield node.lineno, "global"
                case ast.Call(func=ast.Name(id="eval" | "exec" as name)):
                    yield node.lineno, name
                case _:
                    pass

    check(trees, rule)


def test_one_file_alone_gives_modules_other_classes(trees: dict[Path, ast.Module]) -> None:
    found = {
        relative(path)
        for path, tree in trees.items()
        for node in source.nodes(tree)
        if isinstance(node, ast.Attribute) and node.attr == "__class__" and isinstance(node.ctx, ast.Store)
    }
    assert found == {"engines/language/upstream/classes.py"}


def inside(name: str, house: str) -> str | None:
    """The room of a house, or the file beside its rooms, in which a module lies; None for one that is elsewhere."""
    return name.removeprefix(f"{house}.").split(".")[0] if name.startswith(f"{house}.") else None


def imported_modules(tree: ast.Module, names: set[str]) -> Iterator[str]:
    """Modules of Pippin that a module imports; `from package import module` imports the module."""
    for node in source.nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in names else node.module


@pytest.mark.parametrize("house", ONE_WAY)
def test_imports_between_the_rooms_of_a_house_run_one_way(house: str, trees: dict[Path, ast.Module]) -> None:
    modules = {
        ".".join(("pippin", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in MODULES
    }
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        if (own := inside(name, house)) is None:
            continue
        for imported in imported_modules(trees[path], set(modules)):
            other = inside(imported, house)
            if other not in (None, own):
                graph.setdefault(own, set()).add(other)
    assert 0 < sum(map(len, graph.values())) <= MOST_ARROWS.get(house, 100)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"{house}: {' <- '.join(error.args[1])}", pytrace=False)


@pytest.mark.parametrize("room", ["kv_cache", "prefix_cache", "step"])
def test_what_computes_a_model_is_nothing_to_its_caches_and_its_step(room: str) -> None:
    found = [
        f"{relative(path)}:{number}: {line.strip()}"
        for path in sorted((SOURCE / "engines" / "language" / room).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if re.search(r"kernel|blas|cpu\b", line, re.IGNORECASE)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("top", [SOURCE, TESTS], ids=["src", "tests"])
def test_a_folder_holds_no_more_than_someone_can_keep_in_mind(top: Path) -> None:
    crowded = {
        str(folder.relative_to(top)): count
        for folder in (top, *(path for path in top.rglob("*") if path.is_dir()))
        if (count := sum(path.name != "__init__.py" for path in folder.glob("*.py"))) > MOST_MODULES
    }
    assert not set(crowded) - SHELVES, crowded


def test_a_room_says_what_it_owns_and_where_to_begin(trees: dict[Path, ast.Module]) -> None:
    found = [
        f"{relative(path)} {fault}"
        for path, tree in trees.items()
        if path.name == "__init__.py" and (fault := fault_of_a_room(path.parent, ast.get_docstring(tree)))
    ]
    assert not found, "\n".join(found)


def fault_of_a_room(room: Path, docstring: str | None) -> str | None:
    if not docstring:
        return "has no docstring"
    begin = re.search(r"[Bb]egin with `([\w./]+)`", docstring)
    if begin is not None:
        return None if (room / begin[1]).exists() else f"begins with {begin[1]}, which is not there"
    is_small = sum(path.name != "__init__.py" for path in room.rglob("*.py")) <= 3
    return None if is_small or relative(room) in SHELVES else "says not where to begin"


def test_a_step_asks_no_part_whether_it_is_there() -> None:
    """What an engine does without (a prefix cache, proposals, pictures) has a class that does nothing."""
    found = []
    for path in sorted((SOURCE / "engines/language/step").glob("*.py")):
        if path.stem in ("decoder", "sequences"):  # of one request, which may have no grammar and no media
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot):
                asked = ast.unparse(node.left)
                if re.fullmatch(r"self\.\w+", asked) and ast.unparse(node.comparators[0]) == "None":
                    found.append(f"{path.name}:{node.lineno} {asked}")
    assert not found


@pytest.mark.model
@pytest.mark.timeout(600)
def test_a_streamed_chat_crosses_few_files(demo_model: Path) -> None:
    command = [sys.executable, "-m", "scripts.trace_request", "--model", str(demo_model)]
    traced = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=True).stdout
    [files] = re.findall(r"^together +(\d+)", traced, re.MULTILINE)
    assert int(files) <= MOST_FILES_OF_A_REQUEST, traced


MOST_PRIVATE: Final = 60
"""How often tests may read or replace what a class or a module of the source keeps to itself."""


def is_private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__") and name != "_"


def privates_of(tree: ast.Module) -> set[str]:
    """The private names that a module defines or sets."""
    found: set[str] = set()
    for node in source.nodes(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
    return {name for name in found if is_private(name)}


def privates_used(tree: ast.Module, known: set[str]) -> list[str]:
    """The private names of the source that a test reads, replaces or imports; its own classes' `self` is its own."""
    used: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls") | ast.Call(func=ast.Name(id="super"))):
                continue
            case ast.Attribute(attr=name):
                used.append(name)
            case ast.Call(func=ast.Attribute(attr="setattr" | "delattr"), args=given):
                names = [each.value for each in given[:2] if isinstance(each, ast.Constant)]
                used += [str(name).rpartition(".")[2] for name in names]
            case ast.Call(
                func=ast.Name(id="getattr" | "setattr" | "hasattr"), args=[_, ast.Constant(value=name), *_]
            ):
                used.append(str(name))
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("pippin"):
                used += [each.name for each in names]
    return [name for name in used if is_private(name) and name in known]


def of_body(tree: ast.Module) -> set[str]:
    """The modules that a file imports as it is imported."""
    return {name for node in tree.body for _, name in imports(ast.Module([node], [])) if not is_later(node)}


def is_later(node: ast.stmt) -> bool:
    """Whether a statement of a file's body is a definition, or for type checkers alone."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.If)


def test_tests_are_collected_where_no_kernel_was_compiled(trees: dict[Path, ast.Module]) -> None:
    """Kernels are for CPUs alone: on a Mac there are none, and `make collect` runs while they are compiled."""
    of_modules = {
        "pippin."
        + ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): of_body(tree)
        for path, tree in trees.items()
    }
    needing = {"pippin_kernels"}
    while more := {name for name, imported in of_modules.items() if imported & needing} - needing:
        needing |= more
    assert "pippin.engines.language.kernels.decoder" in needing
    found = [
        str(path.relative_to(TESTS))
        for path in sorted(TESTS.rglob("*.py"))
        if of_body(ast.parse(text := path.read_text("utf-8"))) & needing
        and 'importorskip("pippin_kernels"' not in text
    ]
    assert not found


def test_tests_ask_what_the_source_does_and_not_how(trees: dict[Path, ast.Module]) -> None:
    known = set[str]().union(*map(privates_of, trees.values()))
    texts = {path: path.read_text("utf-8") for path in TESTS.rglob("*.py")}
    used = {
        path: privates_used(ast.parse(text), known)
        for path, text in texts.items()
        if not known.isdisjoint(re.findall(r"\b_[A-Za-z]\w*", text))
    }
    assert sum(map(len, used.values())) <= MOST_PRIVATE, {
        path.name: names for path, names in used.items() if names
    }
