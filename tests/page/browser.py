"""A browser for the tests, where one is found: Chromium, driven by Playwright."""

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDE = {"width": 1280, "height": 800}
MIDDLE = {"width": 1024, "height": 768}
PHONE = {"width": 390, "height": 780}
SMALL_PHONE = {"width": 360, "height": 640}
"""Windows of these sizes are touched, not clicked."""

ELSEWHERE = "home.test"
"""A name of this machine that browsers do not take for it: a page from there is one from another machine."""

ARGUMENTS = [
    f"--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1",
    "--no-sandbox",
    "--use-fake-device-for-media-stream",
    "--autoplay-policy=no-user-gesture-required",
]
"""The microphone beeps once a second; whether a page may hear it is said by `opened(..., allowed=("microphone",))`."""

Opener = Callable[..., Any]


def found_browser() -> str | None:
    """Where Chromium lies; None where there is none or no Playwright."""
    # Not imported: every process that collects the tests asks, and one of them runs those of the page.
    if importlib.util.find_spec("playwright") is None:
        return None
    return next(filter(None, map(shutil.which, NAMES)), None)


REQUIRED = os.environ.get("PIPPIN_BROWSER") == "required"
"""Whether a missing browser fails the tests, as in CI, rather than to skip them."""

needs_browser = pytest.mark.skipif(
    found_browser() is None and not REQUIRED, reason="needs Chromium of the system, and Playwright"
)


@contextmanager
def running_browser(playwright: Any, *arguments: str) -> Iterator[Any]:
    """Chromium, until the block is left; `arguments` are for it, beside its usual ones."""
    browser = playwright.chromium.launch(executable_path=found_browser(), args=[*ARGUMENTS, *arguments])
    try:
        yield browser
    finally:
        browser.close()


@contextmanager
def opening(browser: Any) -> Iterator[Opener]:
    """Gives what opens a page at an address, in a profile of its own. A page that breaks its policy or has an uncaught
    error fails the test."""
    wrong: list[str] = []
    contexts: list[Any] = []

    def opened(
        address: str,
        *,
        size: dict[str, int] = WIDE,
        dark: bool = False,
        path: str = "/",
        allowed: tuple[str, ...] = (),
    ) -> Any:
        colours = "dark" if dark else "light"
        context = browser.new_context(
            viewport=size, color_scheme=colours, has_touch=size["width"] <= PHONE["width"]
        )
        contexts.append(context)
        if ELSEWHERE not in address:  # whose pages can be granted nothing
            context.grant_permissions(["clipboard-read", "clipboard-write", *allowed], origin=address)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: _check_policy(said.text, wrong))
        page.on("request", lambda asked: _check_address(asked.url, address, wrong))
        page.goto(address + path)
        return page

    try:
        yield opened
    finally:
        for context in contexts:
            context.close()
    assert not wrong, wrong


def _check_policy(said: str, wrong: list[str]) -> None:
    """A policy that is broken is wrong; that one of them does not count by plain HTTP is no fault of the page's."""
    if "Policy" in said and "header has been ignored" not in said:
        wrong.append(said)


def _check_address(url: str, address: str, wrong: list[str]) -> None:
    if not url.startswith((address, "data:", "blob:")):
        wrong.append(f"The page asked for {url}.")


def picture(page: Any, name: str) -> None:
    """Keep a picture of the page for the documents, where `PIPPIN_PICTURES` asks for it, and else check that one can be
    taken: pixels differ from machine to machine, so they are not compared."""
    taken = page.screenshot()
    assert taken.startswith(b"\x89PNG")
    if os.environ.get("PIPPIN_PICTURES"):
        PICTURES.mkdir(exist_ok=True)
        (PICTURES / f"{name}.png").write_bytes(taken)
    assert (PICTURES / f"{name}.png").exists(), "take it with PIPPIN_PICTURES=1"
