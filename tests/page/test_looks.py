"""How the page looks: closed to nobody, in both themes and three widths, with room on a phone, and one system."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.page.browser import MIDDLE, PHONE, SMALL_PHONE, WIDE, Opener, needs_browser
from tests.page.chatting import ready, say

pytestmark = needs_browser

STATIC = Path(__file__).parents[2] / "src/pippin/api/page/static"
TOLD = {"resultTypes": ["violations"], "selectors": False, "preload": False}
"""What is wanted of axe: to write down what is right takes longer than to look at it."""
PARTS = {
    "chat": "#chat-input",
    "console": "#console td",
    "try": "#try textarea",
    "settings": "#setting-log_level",
}


@pytest.mark.parametrize("sizes", [(WIDE, MIDDLE), (PHONE,)], ids=["clicked", "touched"])
def test_no_part_is_closed_to_anybody(
    address: str, opened: Opener, axe: str, sizes: tuple[dict[str, int], ...]
) -> None:
    """The parts of many elements come last, for what is begun stays in the document, where all rules look at it."""
    page = opened(address, size=sizes[0])
    for text in ("markdown", "think"):
        say(page, text)
    page.wait_for_selector(".katex-display")
    page.evaluate(axe)
    check(page, "conversation", sizes[:1])
    page.evaluate("location.hash = 'chat'")
    page.wait_for_selector("#chat-empty h2")
    check(page, "chat", sizes)
    page.click("[data-opens=chat-side]")
    check(page, "parameters", sizes)
    page.keyboard.press("Escape")
    page.keyboard.press("Control+/")
    check(page, "dialog", sizes)
    page.keyboard.press("Escape")
    for part in ("console", "try", "settings"):
        page.evaluate(f"location.hash = '{part}'")
        page.wait_for_selector(PARTS[part], state="attached")
        if part == "settings":  # rows are all alike
            page.fill("[aria-label='Search the settings']", "log")
        check(page, part, sizes)


def check(page: Any, part: str, sizes: tuple[dict[str, int], ...]) -> None:
    """All rules in light, and in the dark those of colours, which alone differ; the widths of windows that are clicked
    have the same colours."""
    for size in sizes:
        page.set_viewport_size(size)
        every = [("light", {}), ("dark", {"runOnly": ["color-contrast"]})]
        for colours, rules in every if size == sizes[0] else every[:1]:
            page.emulate_media(color_scheme=colours)
            found = page.evaluate("options => axe.run(document, options)", TOLD | rules)["violations"]
            assert not found, [
                (part, colours, size, each["id"], each["nodes"][0]["html"][:200]) for each in found
            ]
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (part, size)
    page.set_viewport_size(sizes[0])


@pytest.mark.parametrize("size", [PHONE, SMALL_PHONE], ids=["phone", "small phone"])
def test_a_phone_keeps_its_height_for_the_conversation(
    address: str, opened: Opener, size: dict[str, int]
) -> None:
    page = opened(address, size=size)
    say(page, "think")
    kept = page.evaluate("document.getElementById('chat-scroll').getBoundingClientRect().height")
    assert kept >= 0.85 * size["height"]


def test_targets_are_large_enough_for_a_finger(address: str, opened: Opener) -> None:
    page = opened(address, size=PHONE)
    say(page, "think")
    for part, content in PARTS.items():
        page.evaluate(f"location.hash = '{part}'")
        page.wait_for_selector(content, state="attached")
        small = page.evaluate(
            "[...document.querySelectorAll('button, select, summary, nav a, .file-button, input:not([type=checkbox])')]"
            ".filter(each => each.checkVisibility({ visibilityProperty: true }) && !each.closest('.file-button input'))"
            ".map(each => [each.outerHTML.slice(0, 80), each.getBoundingClientRect().height])"
            ".filter(([, height]) => height > 1 && height < 44)"
        )
        assert not [each for each in small if 'type="range"' not in each[0]], part


def test_drawers_close_in_three_ways_and_give_the_focus_back(address: str, opened: Opener) -> None:
    page = opened(address, size=PHONE)
    ready(page)
    closers = (
        lambda: page.click("#chat-side .closes"),
        lambda: page.keyboard.press("Escape"),
        lambda: page.mouse.click(5, 400),
    )
    for closed in closers:
        page.click("[data-opens=chat-side]")
        page.wait_for_selector("#chat-side", state="visible")
        closed()
        page.wait_for_selector("#chat-side", state="hidden")
    page.click("#open-menu")
    page.click("#tab-settings")
    assert not page.is_visible("#menu")


def test_a_title_has_the_room_of_buttons_that_are_not_shown(address: str, opened: Opener) -> None:
    page = opened(address)
    say(page, "think of a title that is long enough for any menu, and then of some more words")
    page.mouse.move(640, 400)
    title, menu = (page.locator(each).bounding_box()["width"] for each in ("#chat-list .title", "#chat-list"))
    assert title >= menu - 4
    page.hover("#chat-list .title")
    assert page.locator("#chat-list .icon >> nth=0").bounding_box()["width"] == 28
    page.keyboard.press("Control+k")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert "Rename" in page.evaluate("document.activeElement.ariaLabel")


def test_the_colours_are_chosen_and_kept(address: str, opened: Opener) -> None:
    page = opened(address)
    page.click("#more summary")
    page.select_option("#theme", "dark")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
    page.click("#more summary")
    page.select_option("#theme", "light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark


def test_one_action_of_a_view_is_the_primary_one(address: str, opened: Opener) -> None:
    page = opened(address)
    ready(page)
    counts = {}
    for part, content in PARTS.items():
        page.evaluate(f"location.hash = '{part}'")
        page.wait_for_selector(content, state="attached")
        counts[part] = page.locator("button.main:visible").count()
    assert counts == {"chat": 1, "console": 1, "try": 1, "settings": 0}


def test_lengths_are_steps_of_four_pixels() -> None:
    """Lines of 1 and 2 pixels, and strokes, are no lengths of the layout."""
    for path in STATIC.glob("*.css"):
        text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        lengths = {int(each) for each in re.findall(r"(?<![\w.#-])-?(\d+)px", text)}
        assert {each for each in lengths if each % 4 and each > 2} <= {14}, path.name  # letters of 14


def test_no_width_has_colours_of_its_own() -> None:
    """So what is seen of them in two widths holds in all."""
    for path in STATIC.glob("*.css"):
        text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        for block in re.findall(r"@media \(m\w+-width:[^{]*\{((?:[^{}]*\{[^{}]*\})*)", text):
            assert not re.search(r"(?<![\w-])(?:color|background|opacity|filter)\b|-color\b", block), (
                path.name,
                block,
            )
