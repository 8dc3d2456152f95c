"""What the tests of the page do in a chat."""

from typing import Any


def ready(page: Any) -> None:
    """Wait until the page knows the server's models."""
    page.wait_for_selector("#chat-model option", state="attached")


def ask(page: Any, text: str, first: str) -> None:
    """Send a message and wait for the first words of its answer."""
    ready(page)
    page.fill("#chat-input", text)
    page.keyboard.press("Enter")
    page.wait_for_selector(f"text={first}")


def say(page: Any, text: str) -> None:
    """Send a message and wait for the whole answer."""
    ready(page)
    page.fill("#chat-input", text)
    page.keyboard.press("Enter")
    done(page)


def done(page: Any) -> None:
    page.wait_for_selector("#chat-send[aria-label=Send]")
    page.wait_for_selector(".message:last-child[aria-busy=false]")


def last(page: Any) -> str:
    return str(page.inner_text(".message:last-child .markdown >> nth=-1"))


def asked(page: Any) -> list[str]:
    """The person's messages that are shown."""
    texts = page.eval_on_selector_all(".message.user .plain", "all => all.map(each => each.textContent)")
    return [str(each) for each in texts]


def parameters(page: Any, *, more: bool = False) -> None:
    """Open the parameters, and what lies below `More`."""
    page.wait_for_selector("#chat-options summary", state="attached")
    page.wait_for_selector("#chat-input:focus")  # the chat's last act as it starts
    page.click("[data-opens=chat-side]")
    if more:
        page.click("#chat-options summary")


def import_conversation(page: Any, file: Any) -> None:
    ready(page)
    page.set_input_files("#chat-import", file)


def agree(page: Any) -> None:
    """Press the button of the dialog that is open."""
    page.click("dialog button.main")
