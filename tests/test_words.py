"""The words of the source: docstrings are sentences that name what exists, and a reason stands above its code."""

import ast
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path

from tests.source import MODULES, SOURCE, nodes, trees

ROOT = SOURCE.parents[1]

FRAGMENTS = {"As", "At", "By", "For", "From", "In", "Into", "Nothing", "Of", "Those", "With"}
"""Words with which a docstring begins that leaves out its subject or its verb."""
OPEN_TO_ALL = ("engines/language", "api/dialects")
"""Houses whose own rooms count, where elsewhere a room is two folders deep."""
LONGEST_NAME = 90
PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*|[\w-]+\.py)`")
TRAILING = re.compile(r"\S.*#(?! noqa| type:)")
Described = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
METHOD = re.compile(r"`([A-Z]\w+)\.([a-z_]\w*)`")


@cache
def described(module: Path) -> list[Described]:
    """The module, its classes and its functions."""
    return [node for node in nodes(trees()[module]) if isinstance(node, Described)]


def docstrings(module: Path) -> Iterator[tuple[int, str]]:
    for node in described(module):
        text = ast.get_docstring(node)
        if text:
            yield getattr(node, "lineno", 1), text


def place(module: Path, line: int) -> str:
    return f"{module.relative_to(SOURCE)}:{line}"


def test_a_docstring_is_a_sentence() -> None:
    found = [
        f"{place(module, line)}: {text.splitlines()[0]}"
        for module in MODULES
        for line, text in docstrings(module)
        if text.split()[0].strip(",:") in FRAGMENTS
    ]
    assert not found, "\n".join(found)


def test_a_docstring_names_files_and_methods_that_exist() -> None:
    found = [
        f"{place(module, line)}: {name}"
        for module in MODULES
        for line, text in docstrings(module)
        for name in (*missing_paths(module, text), *missing_methods(text))
    ]
    assert not found, "\n".join(found)


def missing_paths(module: Path, text: str) -> Iterator[str]:
    folders = [ROOT, *(parent for parent in module.parents if ROOT in parent.parents)]
    for name in PATH.findall(text):
        first = name.split("/")[0]
        is_ours = name.endswith(".py") or any((folder / first).is_dir() for folder in folders)
        if is_ours and not any((folder / name).exists() for folder in folders):
            yield name


def missing_methods(text: str) -> Iterator[str]:
    members = members_of_classes()
    for owner, name in METHOD.findall(text):
        if owner in members and name not in members[owner]:
            yield f"{owner}.{name}"


@cache
def members_of_classes() -> dict[str, set[str]]:
    """What the classes of each name have, in their bodies or by assignment to `self`, and what their bases have."""
    classes = [node for module in MODULES for node in described(module) if isinstance(node, ast.ClassDef)]
    members: dict[str, set[str]] = {}
    for node in classes:
        members.setdefault(node.name, set()).update(_members(node))
    for _ in range(4):  # as deep as classes of this house inherit
        for node in classes:
            for base in node.bases:
                members[node.name] |= members.get(ast.unparse(base).partition("[")[0].split(".")[-1], set())
    return members


def _members(owner: ast.ClassDef) -> Iterator[str]:
    for node in ast.walk(owner):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name
            case _:
                pass


def test_a_room_has_one_class_of_a_name() -> None:
    counted = Counter(
        (room_of(module), node.name)
        for module in MODULES
        for node in trees()[module].body
        if isinstance(node, ast.ClassDef)
    )
    found = [f"{room}: {name}" for (room, name), times in counted.items() if times > 1]
    assert not found, "\n".join(found)


def room_of(module: Path) -> str:
    folder = module.relative_to(SOURCE).parent
    if "upstream" in folder.parts:  # whose classes have the names of those that they mend
        return str(module)
    deep = 3 if any(str(folder).startswith(house) for house in OPEN_TO_ALL) else 2
    return "/".join(folder.parts[:deep])


def test_the_name_of_a_test_is_short() -> None:
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    names = [name for path in tests for name in re.findall(r"def (test_\w+)", path.read_text("utf-8"))]
    assert [name for name in names if len(name) > LONGEST_NAME] == []


def test_a_reason_stands_above_its_code() -> None:
    """A comment at the end of a line within a call, a subscript or a wrapped value makes the formatter wrap it."""
    found = [place(module, line) for module in MODULES for line in wrapped_reasons(module)]
    assert not found, "\n".join(found)


def wrapped_reasons(module: Path) -> Iterator[int]:
    if not TRAILING.search(module.read_text("utf-8")):
        return
    with tokenize.open(module) as file:
        tokens = [token for token in tokenize.generate_tokens(file.readline) if token.type != tokenize.NL]
    in_values: list[bool] = []  # for each open bracket, whether it holds arguments or one value
    for place, token in enumerate(tokens):
        if token.type == tokenize.OP and token.string in "([{":
            before = tokens[place - 1]
            calls = before.type == tokenize.NAME and before.string not in KEYWORDS
            calls = calls or before.string in (")", "]")
            in_values.append(token.string != "{" and (calls or is_wrapped(tokens, place)))
        elif token.type == tokenize.OP and token.string in ")]}":
            in_values.pop()
        elif is_reason(token) and in_values and in_values[-1]:
            yield token.start[0]


def is_reason(token: tokenize.TokenInfo) -> bool:
    """Whether the token is a comment at the end of a line of code that no tool reads."""
    trails = token.type == tokenize.COMMENT and token.line[: token.start[1]].strip() != ""
    return trails and not token.string.startswith(("# type:", "# noqa"))


KEYWORDS = {
    "in",
    "return",
    "yield",
    "and",
    "or",
    "not",
    "if",
    "else",
    "assert",
    "await",
    "case",
    "from",
    "import",
}


def is_wrapped(tokens: list[tokenize.TokenInfo], opening: int) -> bool:
    """Whether a parenthesis holds one value: no comma lies directly within."""
    depth = 0
    for token in islice(tokens, opening, None):
        if token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")
            if depth == 0:
                return tokens[opening].string == "("
            if depth == 1 and token.string == ",":
                return False
    return False
