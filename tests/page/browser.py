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
    "--disable-gpu",
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


class Profile:
    """A profile of the browser with one page, which tests use in turn: each finds it as empty as a new one.

    A new profile costs a process that draws and all scripts compiled once more, which takes longer than most tests.
    """

    def __init__(self, browser: Any, *, touched: bool) -> None:
        self._browser = browser
        self.touched = touched
        self._context: Any = None
        self._page: Any = None
        self._address = ""
        self._wrong: list[str] = []

    def page(
        self, address: str, path: str, size: dict[str, int], colours: str, allowed: tuple[str, ...]
    ) -> Any:
        """The page, at the address."""
        if self._context is None:
            self._make()
        page, self._address = self._page, address
        if ELSEWHERE not in address:  # whose pages can be granted nothing
            self._context.grant_permissions(["clipboard-read", "clipboard-write", *allowed], origin=address)
        page.set_viewport_size(size)
        page.emulate_media(color_scheme=colours)
        page.set_default_timeout(20_000)
        page.goto(address + path)
        return page

    def _make(self) -> None:
        self._context = self._browser.new_context(has_touch=self.touched)
        self._page = page = self._context.new_page()
        page.on("pageerror", lambda error: self._wrong.append(str(error)))
        page.on("console", lambda said: _check_policy(said.text, self._wrong))
        page.on("request", lambda asked: _check_address(asked.url, self._address, self._wrong))

    def leave(self) -> list[str]:
        """Empty the profile, or give it up where its page was closed; gives what went wrong since it was opened."""
        if self._page.is_closed():
            self.close()
        else:
            self._empty()
        wrong, self._wrong = self._wrong, []
        return wrong

    def _empty(self) -> None:
        page = self._page
        for each in self._context.pages:
            if each is not page:
                each.close()
        page.unroute_all(behavior="ignoreErrors")
        # A document of the same origin that runs nothing: what it keeps can be reached, and nobody writes any more.
        page.goto(f"{self._address}/page/static/icon.svg")
        page.evaluate("sessionStorage.clear()")
        session = self._context.new_cdp_session(page)
        session.send("Storage.clearDataForOrigin", {"origin": self._address, "storageTypes": "all"})
        session.detach()
        kept = page.evaluate(
            "async () => [localStorage.length, sessionStorage.length, (await indexedDB.databases()).length]"
        )
        assert kept == [0, 0, 0], kept
        self._context.clear_cookies()
        self._context.clear_permissions()

    def close(self) -> None:
        self._context.close()
        self._context = None


@contextmanager
def opening(browser: Any, free: list[Profile] | None = None) -> Iterator[Opener]:
    """Gives what opens a page at an address, in an empty profile of its own: one of `free`, to which it is given back.
    A page that breaks its policy or has an uncaught error fails the test."""
    profiles = [] if free is None else free
    taken: list[Profile] = []

    def opened(
        address: str,
        *,
        size: dict[str, int] = WIDE,
        dark: bool = False,
        path: str = "/",
        allowed: tuple[str, ...] = (),
    ) -> Any:
        touched = size["width"] <= PHONE["width"]
        found = next((each for each in profiles if each.touched is touched), None)
        if found is None:
            found = Profile(browser, touched=touched)
        else:
            profiles.remove(found)
        taken.append(found)
        return found.page(address, path, size, "dark" if dark else "light", allowed)

    try:
        yield opened
    finally:
        wrong = [each for profile in taken for each in profile.leave()]
        profiles += taken
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
