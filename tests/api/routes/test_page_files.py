"""How the page is served: to whom, with which headers, and from which files."""

import asyncio
import hashlib
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest

from tests.api.fakes import FakeService, application, client_of

PAGE = Path(str(files("pippin.api.page")))
BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
LIBRARIES: list[dict[str, Any]] = json.loads((PAGE / "vendor" / "VENDORED.json").read_text())
KEPT = {"MIT", "BSD-3-Clause", "MPL-2.0 OR Apache-2.0"}


def ask(path: str, headers: dict[str, str] | None = None, **options: Any) -> httpx.Response:
    async def main() -> httpx.Response:
        async with client_of(application(FakeService(), **options)) as client:
            return await client.get(path, headers=headers)

    return asyncio.run(main())


def test_browsers_get_the_page_and_others_what_they_always_got() -> None:
    page = ask("/", BROWSER)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.text.startswith("<!doctype html>")
    other = ask("/", {"accept": "*/*"})
    assert other.json()["name"] == "pippin"
    assert page.headers["vary"] == other.headers["vary"] == "accept"


def test_no_page_leaves_neither_the_page_nor_its_files() -> None:
    assert ask("/", BROWSER, page=False).json()["name"] == "pippin"
    assert ask("/page/static/main.js", page=False).status_code == 404


def test_the_page_needs_no_key_for_it_asks_for_one_itself() -> None:
    keyed = {"api_keys": ("sk-one",)}
    assert ask("/", BROWSER, **keyed).status_code == 200
    assert ask("/page/static/main.js", **keyed).status_code == 200
    assert ask("/v1/models", **keyed).status_code == 401


@pytest.mark.parametrize("path", ["/", "/page/static/main.js", "/page/vendor/katex/katex.min.css"])
def test_nothing_runs_and_nothing_loads_but_what_is_served_here(path: str) -> None:
    headers = ask(path, BROWSER).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in headers["content-security-policy"]
    assert policy["require-trusted-types-for"] == "'script'"
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/page/__init__.py",
        "/page/static/../__init__.py",
        "/page/static/%2e%2e/__init__.py",
        "/page/static/..%2f..%2fapp.py",
        "/page/static/%2e%2e/%2e%2e/app.py",
        "/page//etc/passwd",
        "/page/static",
    ],
)
def test_no_other_file_is_served(path: str) -> None:
    assert ask(path).status_code == 404


def test_the_page_works_in_a_folder_of_a_proxy() -> None:
    """No address in it begins at the root; those of the API are resolved against the page's own."""
    index = (PAGE / "static" / "index.html").read_text()
    assert not re.search(r'(?:href|src)="/', index)
    scripts = {path: path.read_text() for path in (PAGE / "static").rglob("*.js")}
    assert {path.name for path, text in scripts.items() if "fetch(" in text} == {"server.js"}
    assert "new URL(`.${path}`, document.baseURI)" in scripts[PAGE / "static" / "server.js"]


def test_the_folder_leads_to_the_page() -> None:
    for path in ("/page/", "/page"):
        assert urljoin(path, ask(path).headers["location"]) == "/"


def test_a_file_that_has_not_changed_is_not_sent_again() -> None:
    first = ask("/page/static/main.js")
    again = ask("/page/static/main.js", {"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library["folder"])
def test_a_library_is_what_its_makers_published_with_its_licence(library: dict[str, Any]) -> None:
    folder = PAGE / "vendor" / library["folder"]
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    assert set(found) == set(library["files"])
    assert "LICENSE" in found
    assert library["licence"] in KEPT
    for name, path in found.items():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == library["files"][name]["sha256"], name


def test_every_library_is_recorded() -> None:
    folders = {path.name for path in (PAGE / "vendor").iterdir() if path.is_dir()}
    assert folders == {library["folder"] for library in LIBRARIES}


def test_the_page_names_nothing_from_elsewhere() -> None:
    for path in (PAGE / "static").rglob("*"):
        if path.is_file():
            text = path.read_text().replace("http://www.w3.org/", "")  # names of XML, which nobody loads
            assert "http://" not in text, path
            assert "https://" not in text, path
            assert "innerHTML" not in text, path
