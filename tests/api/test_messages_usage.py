"""What Messages report of a prompt is true: counted beforehand, and what of it was cached, on the demo model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from anthropic import Anthropic
from anthropic.types import Usage

from tests.running_server import running_server

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

MODEL: Final = "smollm2-135m-instruct"
TEMPLATE: Final = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)
TOOL: Final[dict[str, Any]] = {
    "name": "look",
    "description": "Looks somewhere.",
    "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}},
}
HELLO: Final[dict[str, Any]] = {"role": "user", "content": "Hello there"}
TURNS: Final[list[dict[str, Any]]] = [
    HELLO,
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "I should look.", "signature": "x"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "home"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "toolu_1",
                "content": [{"type": "text", "text": "A cat."}],
            },
            {"type": "text", "text": "Well?"},
        ],
    },
]
LONG: Final = "Cats and dogs are animals that live with people. " * 40


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Iterator[Anthropic]:
    home = tmp_path_factory.mktemp("home")
    (home / "template.jinja").write_text(TEMPLATE)
    flags = ["--tool-call-parser", "hermes", "--reasoning-parser", "think"]
    flags += ["--chat-template-file", str(home / "template.jinja")]
    with (
        running_server(home, str(demo_model), *flags) as address,
        Anthropic(base_url=address, api_key="x", max_retries=0, _strict_response_validation=True) as made,
    ):
        yield made


def prompt_of(usage: Usage) -> int:
    return (
        usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [HELLO]},
        {"messages": [HELLO], "system": "Be brief."},
        {"messages": [HELLO], "system": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]},
        {"messages": [HELLO], "tools": [TOOL]},
        {"messages": TURNS, "tools": [TOOL]},
        {"messages": TURNS, "tools": [TOOL], "tool_choice": {"type": "none"}},
        {"messages": [HELLO], "thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"messages": [HELLO, {"role": "assistant", "content": "Once upon"}]},
    ],
    ids=["text", "system", "blocks", "tools", "conversation", "no choice", "thinking", "prefill"],
)
def test_tokens_are_counted_as_the_request_reports_them(client: Anthropic, fields: dict[str, Any]) -> None:
    counted = client.messages.count_tokens(model=MODEL, **fields)
    answer = client.messages.create(model=MODEL, max_tokens=1, **fields)
    assert counted.input_tokens == prompt_of(answer.usage)


def test_what_was_written_to_the_cache_is_read_from_it_later(client: Anthropic) -> None:
    system: Any = [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]

    def usage(text: str) -> Usage:
        asked: Any = [{"role": "user", "content": text}]
        return client.messages.create(model=MODEL, max_tokens=1, system=system, messages=asked).usage

    first, second = usage("One?"), usage("Two?")
    assert first.cache_read_input_tokens == 0
    written = first.cache_creation_input_tokens or 0
    assert written > 0.8 * prompt_of(first)
    read = second.cache_read_input_tokens or 0
    assert 0.8 * prompt_of(second) < read <= written
    assert (second.cache_creation_input_tokens or 0) < 0.2 * prompt_of(second)
    assert prompt_of(first) == prompt_of(second)


def test_who_asks_for_no_cache_is_told_of_input_alone(client: Anthropic) -> None:
    asked: Any = [{"role": "user", "content": "Another prompt. " + LONG}]
    usage = client.messages.create(model=MODEL, max_tokens=1, messages=asked).usage
    assert usage.cache_creation_input_tokens == 0
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == prompt_of(usage)
