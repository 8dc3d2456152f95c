"""The real `openai` and `anthropic` clients, validating strictly, against the demo model: a tiny model at
temperature 1 can say only what was asked for, in every dialect."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from anthropic import Anthropic
from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel, ConfigDict, Field

from tests.running_server import running_server

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]

MODEL: Final = "smollm2-135m-instruct"
TEMPLATE: Final = (  # the demo model's own, with a thought that the template opens, as those of Qwen do
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)
HELLO: Final[Any] = [{"role": "user", "content": "Tell me of an animal."}]
GBNF: Final = 'root ::= "The " ("cat" | "dog") " has " [1-9] " legs."'
LARK: Final = 'start: "The " ("cat" | "dog") " has " /[1-9]/ " legs."'
SENTENCE: Final = re.compile(r"The (cat|dog) has [1-9] legs\.")


class Animal(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sort: Literal["cat", "dog", "owl"]
    legs: int = Field(ge=0, le=8)


class ListedAnimal(Animal):
    """Anthropic's client leaves the bounds of a number out of the schema that it sends, and then holds the answer to
    them; it sends the values of a list."""

    legs: Literal[2, 4]


class Weather(BaseModel):
    """Tells the weather."""

    model_config = ConfigDict(extra="forbid")

    city: Literal["Oslo", "Ulm", "Kyoto"]
    days: int = Field(ge=1, le=9)


SCHEMA: Final[dict[str, Any]] = Animal.model_json_schema()
PARAMETERS: Final[dict[str, Any]] = Weather.model_json_schema()
FUNCTION: Final[dict[str, Any]] = {"name": "weather", "parameters": PARAMETERS, "strict": True}
CHAT_TOOL: Final[Any] = {"type": "function", "function": FUNCTION}
OTHER_TOOL: Final[Any] = {"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Iterator[str]:
    home = tmp_path_factory.mktemp("home")
    template = home / "template.jinja"
    template.write_text(TEMPLATE)
    flags = ["--tool-call-parser", "hermes", "--reasoning-parser", "think", "--temperature", "1"]
    with running_server(home, str(demo_model), *flags, "--chat-template-file", str(template)) as found:
        yield found


# Chat completions


def test_chat_parse_gives_objects_for_every_choice(openai_client: OpenAI) -> None:
    parsed = openai_client.chat.completions.parse(
        model=MODEL, messages=HELLO, response_format=Animal, n=3, seed=1, logprobs=True, top_logprobs=2
    )
    assert len(parsed.choices) == 3
    for choice in parsed.choices:
        assert isinstance(choice.message.parsed, Animal)
        assert choice.logprobs is not None
        tokens = choice.logprobs.content or []
        assert b"".join(bytes(token.bytes or ()) for token in tokens).decode() == choice.message.content
        assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in tokens)


@pytest.mark.long
def test_chat_parse_gives_the_arguments_of_a_required_call(openai_client: OpenAI) -> None:
    parsed = openai_client.chat.completions.parse(
        model=MODEL,
        messages=HELLO,
        tools=[pydantic_function_tool(Weather)],
        tool_choice="required",
        parallel_tool_calls=False,
    )
    [choice] = parsed.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls
    for call in choice.message.tool_calls:
        assert isinstance(call.function.parsed_arguments, Weather)


@pytest.mark.long
def test_chat_stream_parses_what_it_gathers(openai_client: OpenAI) -> None:
    with openai_client.chat.completions.stream(
        model=MODEL, messages=HELLO, response_format=Animal, stream_options={"include_usage": True}
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert isinstance(final.choices[0].message.parsed, Animal)
    assert final.usage is not None
    assert final.usage.completion_tokens > 5


@pytest.mark.long
def test_chat_stream_gathers_a_named_call(openai_client: OpenAI) -> None:
    with openai_client.chat.completions.stream(
        model=MODEL,
        messages=HELLO,
        tools=[OTHER_TOOL, CHAT_TOOL],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        parallel_tool_calls=False,
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    [call] = final.choices[0].message.tool_calls or []
    assert call.function.name == "weather"
    Weather.model_validate_json(call.function.arguments)


@pytest.mark.long
def test_a_strict_tool_that_is_called_freely_is_called_validly(openai_client: OpenAI) -> None:
    """What it begins with the call's marker can only be a call; what it says else is its own affair."""
    answer = openai_client.chat.completions.create(
        model=MODEL, messages=HELLO, tools=[CHAT_TOOL], max_tokens=30, n=4, seed=3
    )
    for choice in answer.choices:
        for call in choice.message.tool_calls or []:
            assert call.type == "function"
            Weather.model_validate_json(call.function.arguments)


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"regex": r"[A-Z][a-z]{3,8} [0-9]{4}"}}, r"[A-Z][a-z]{3,8} [0-9]{4}"),
        pytest.param(
            {"guided_regex": r"(yes|no), [a-z]{2,9}\."}, r"(yes|no), [a-z]{2,9}\.", marks=pytest.mark.long
        ),
        ({"structured_outputs": {"choice": ["red", "green", "blue"]}}, "red|green|blue"),
        ({"guided_choice": ["red", "reddish"]}, "red|reddish"),
        ({"guided_grammar": LARK}, SENTENCE.pattern),
        ({"grammar": GBNF}, SENTENCE.pattern),
        ({"response_format": {"type": "regex", "pattern": "[ab]{4}"}}, "[ab]{4}"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_chat_follows_other_kinds_of_grammars(
    openai_client: OpenAI, fields: dict[str, Any], pattern: str
) -> None:
    answer = openai_client.chat.completions.create(
        model=MODEL, messages=HELLO, n=2, max_tokens=60, extra_body=fields
    )
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        assert re.fullmatch(pattern, choice.message.content or ""), choice.message.content


@pytest.mark.long
def test_chat_answers_with_a_json_object(openai_client: OpenAI) -> None:
    answer = openai_client.chat.completions.create(
        model=MODEL, messages=HELLO, response_format={"type": "json_object"}, max_tokens=40, seed=2
    )
    [choice] = answer.choices
    text = choice.message.content or ""
    assert text.lstrip().startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(text), dict)


def test_thinking_within_its_budget_comes_before_the_object(openai_client: OpenAI) -> None:
    answer = openai_client.chat.completions.parse(
        model=MODEL,
        messages=HELLO,
        response_format=Animal,
        extra_body={"enable_thinking": True, "thinking_budget": 12},
    )
    [choice] = answer.choices
    assert isinstance(choice.message.parsed, Animal)
    thought: str = getattr(choice.message, "reasoning_content")  # noqa: B009 - no field of OpenAI's
    assert thought
    assert "</think>" not in thought + (choice.message.content or "")
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert 1 <= (answer.usage.completion_tokens_details.reasoning_tokens or 0) <= 16


@pytest.mark.long
def test_a_required_call_comes_after_the_thinking(openai_client: OpenAI) -> None:
    answer = openai_client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        tools=[CHAT_TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        extra_body={"enable_thinking": True, "thinking_budget": 8},
    )
    message = answer.choices[0].message
    assert getattr(message, "reasoning_content")  # noqa: B009
    [call] = message.tool_calls or []
    assert call.type == "function"
    Weather.model_validate_json(call.function.arguments)


# Responses


@pytest.mark.long
def test_responses_parse_gives_an_object(openai_client: OpenAI) -> None:
    parsed = openai_client.responses.parse(model=MODEL, input="An animal?", text_format=Animal)
    assert isinstance(parsed.output_parsed, Animal)
    assert parsed.status == "completed"


def test_responses_stream_parses_what_it_gathers(openai_client: OpenAI) -> None:
    with openai_client.responses.stream(model=MODEL, input="An animal?", text_format=Animal) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert isinstance(final.output_parsed, Animal)


@pytest.mark.long
def test_responses_call_the_tool_that_is_named(openai_client: OpenAI) -> None:
    with openai_client.responses.stream(
        model=MODEL,
        input="An animal?",
        tools=[{"type": "function", **FUNCTION}],
        tool_choice={"type": "function", "name": "weather"},
        parallel_tool_calls=False,
    ) as stream:
        assert any(event.type == "response.function_call_arguments.done" for event in stream)
        final = stream.get_final_response()
    calls = [item for item in final.output if item.type == "function_call"]
    assert calls
    for call in calls:
        Weather.model_validate_json(call.arguments)


@pytest.mark.long
def test_responses_follow_a_grammar(openai_client: OpenAI) -> None:
    answer = openai_client.responses.create(
        model=MODEL, input="An animal?", max_output_tokens=60, extra_body={"grammar": GBNF}
    )
    assert SENTENCE.fullmatch(answer.output_text), answer.output_text


# Messages


@pytest.mark.long
def test_messages_parse_gives_an_object(anthropic_client: Anthropic) -> None:
    parsed = anthropic_client.messages.parse(
        model=MODEL, max_tokens=100, messages=HELLO, output_format=ListedAnimal
    )
    assert isinstance(parsed.parsed_output, ListedAnimal)


def test_messages_stream_gathers_a_call(anthropic_client: Anthropic) -> None:
    tools: Any = [{"name": "weather", "input_schema": PARAMETERS, "strict": True}]
    with anthropic_client.messages.stream(
        model=MODEL,
        max_tokens=200,
        messages=HELLO,
        tools=tools,
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    ) as stream:
        partial = "".join(event.partial_json for event in stream if event.type == "input_json")
        final = stream.get_final_message()
    [call] = [block for block in final.content if block.type == "tool_use"]
    assert final.stop_reason == "tool_use"
    assert json.loads(partial) == call.input
    Weather.model_validate(call.input)


@pytest.mark.long
def test_messages_think_before_the_object(anthropic_client: Anthropic) -> None:
    answer = anthropic_client.messages.create(
        model=MODEL,
        max_tokens=1200,
        messages=HELLO,
        thinking={"type": "enabled", "budget_tokens": 1024},
        extra_body={
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
            "thinking_budget": 8,
        },
    )
    assert [block.type for block in answer.content] == ["thinking", "text"]
    text = answer.content[1]
    assert text.type == "text"
    Animal.model_validate_json(text.text)


def test_messages_follow_a_choice(anthropic_client: Anthropic) -> None:
    answer = anthropic_client.messages.create(
        model=MODEL, max_tokens=20, messages=HELLO, extra_body={"guided_choice": ["red", "blue"]}
    )
    assert answer.content[0].type == "text"
    assert answer.content[0].text in ("red", "blue")


# Completions


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        pytest.param({"guided_json": SCHEMA}, None, marks=pytest.mark.long),
        ({"guided_regex": "[0-9]{3}"}, "[0-9]{3}"),
        ({"structured_outputs": {"grammar": LARK}}, SENTENCE.pattern),
    ],
    ids=["json", "regex", "lark"],
)
def test_completions_follow_a_format(
    openai_client: OpenAI, fields: dict[str, Any], pattern: str | None
) -> None:
    answer = openai_client.completions.create(
        model=MODEL, prompt="An animal: ", n=2, max_tokens=60, logprobs=1, extra_body=fields
    )
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        assert choice.logprobs is not None
        assert "".join(choice.logprobs.tokens or ()) == choice.text
        if pattern is None:
            Animal.model_validate_json(choice.text)
        else:
            assert re.fullmatch(pattern, choice.text)


QUOTING: Final = "x <think>a</think> b"
CONSTANT: Final[dict[str, Any]] = {"const": QUOTING}


def test_a_constant_that_quotes_reasoning_comes_back_from_each_api(
    openai_client: OpenAI, anthropic_client: Anthropic
) -> None:
    named = {"type": "json_schema", "name": "constant", "schema": CONSTANT}
    off: Any = {"extra_body": {"enable_thinking": False}}
    chat = openai_client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        response_format={"type": "json_schema", "json_schema": {"name": "constant", "schema": CONSTANT}},
        **off,
    )
    response = openai_client.responses.create(model=MODEL, input=HELLO, text={"format": named}, **off)  # type: ignore[dict-item]
    message = anthropic_client.messages.create(
        model=MODEL,
        messages=HELLO,
        max_tokens=60,
        output_config={"format": {"type": "json_schema", "schema": CONSTANT}},
        **off,
    )
    assert json.loads(chat.choices[0].message.content or "") == QUOTING
    assert json.loads(response.output_text) == QUOTING
    assert [json.loads(block.text) for block in message.content if block.type == "text"] == [QUOTING]


def test_disable_any_whitespace_writes_json_without_any(openai_client: OpenAI) -> None:
    reply = openai_client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        extra_body={
            "structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True},
            "enable_thinking": False,
        },
    )
    said = reply.choices[0].message.content or ""
    assert said == json.dumps(json.loads(said), separators=(",", ":"), ensure_ascii=False)


def test_the_special_tokens_and_the_template_are_told(openai_client: OpenAI) -> None:
    told: Any = openai_client.get("/tokenizer_info", cast_to=object)
    assert told["eos_token"] == "<|im_end|>"
    assert told["tokenizer_class"].startswith("PreTrainedTokenizer")
    assert (
        "enable_thinking" not in told["chat_template"]
    )  # the folder's own, not what the operator put over it
