"""`threats.md` names tests that exist, for every known attack and every promise; dependencies are locked."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = (TESTS / "security/threats.md").read_text("utf-8")
PROMISES = (
    (TESTS.parent / "SECURITY.md")
    .read_text("utf-8")
    .partition("## What is promised")[2]
    .partition("\n## ")[0]
)

KNOWN = (
    1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 18, 19, 20, 21, 23, 24, 25, 27, 28, 29, 30, 32,
    33, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 46, 47, 48, 50, 51, 52, 54, 55, 57, 60, 61, 62, 63, 64,
    66, 69, 70, 71, 73, 74, 75, 76, 78, 79, 80, 82, 83, 84, 85, 86, 87, 89, 91, 92, 94, 95, 96, 97, 98,
    101, 102, 103, 104, 105, 106, 107,
    121, 122, 123, 124, 125, 126, 127, 128, 129, 130, 131, 132, 133,
    134, 135, 136, 137, 138, 139, 140, 141, 142, 143, 144, 145, 146, 147, 150, 151, 152,
)  # fmt: skip
"""The project's list of threats, by number."""


def rows(text: str) -> list[list[str]]:
    found = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [cells for cells in found if "---" not in cells[0] and cells[0] not in ("#", "promise")]


THREATS = {int(number): held_by for number, _, held_by in rows(PAGE.partition("## Promises")[0])}
SHOWN = dict(rows(PAGE.partition("## Promises")[2]))


@cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((TESTS / file).read_text())
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def check(held_by: str) -> None:
    places = re.findall(r"`([\w/]+\.py)::(\w+)`", held_by)
    assert places or held_by.endswith("."), held_by
    assert len(places) == held_by.count("::")
    for file, name in places:
        assert name.startswith("test_")
        assert name in names_in(file), f"{file}::{name}"


@pytest.mark.parametrize("number", KNOWN)
def test_a_threat_has_tests_that_exist_or_a_reason(number: int) -> None:
    check(THREATS[number])


def test_no_row_is_of_an_unknown_threat() -> None:
    assert set(THREATS) == set(KNOWN)


@pytest.mark.parametrize("promise", SHOWN)
def test_a_promise_is_shown_by_tests_that_exist(promise: str) -> None:
    check(SHOWN[promise])


def test_every_paragraph_of_the_promises_is_in_the_table() -> None:
    """A promise that is added here must be added there."""
    assert len(SHOWN) >= PROMISES.count("\n- ") + PROMISES.count("\n\n")


def test_every_dependency_is_locked_with_its_hash() -> None:
    lock = tomllib.loads((TESTS.parent / "uv.lock").read_text())
    for package in lock["package"]:
        if "registry" in package["source"]:
            files = [*package.get("wheels", ()), *filter(None, [package.get("sdist")])]
            assert files, package["name"]
            assert all(file["hash"].startswith("sha256:") for file in files), package["name"]
