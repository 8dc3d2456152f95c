"""Summaries in place of older messages."""

import asyncio

import pytest

from pippin.core.conversation import Message, Text, ToolCall, ToolResult
from pippin.core.errors import ServerError
from pippin.core.requests import GenerationRequest
from pippin.service.summaries import Ask, parted, with_summary


def said(role: str, text: str) -> Message:
    return Message(role, (Text(text),))  # type: ignore[arg-type]


def conversation(turns: int) -> tuple[Message, ...]:
    system = said("system", "Be kind.")
    return (
        system,
        *(said("user" if turn % 2 == 0 else "assistant", f"turn {turn}") for turn in range(turns)),
    )


async def summarized(request: GenerationRequest, ask: Ask) -> GenerationRequest:
    """The request with a summary, as it is submitted."""
    submitted: list[GenerationRequest] = []

    async def submit(shorter: GenerationRequest) -> None:
        submitted.append(shorter)

    await with_summary(request, ask, submit)
    return submitted[0]


def test_instructions_and_the_last_six_messages_stay() -> None:
    instructions, older, recent = parted(conversation(20))
    assert [message.role for message in instructions] == ["system"]
    assert len(older) == 14
    assert len(recent) == 6


def test_a_tool_result_is_not_parted_from_its_call() -> None:
    call = Message("assistant", (ToolCall("c", "f", "{}"),))
    results = [Message("tool", (ToolResult("c", (Text(str(number)),)),)) for number in range(3)]
    tail = [said("assistant", "a"), said("user", "b"), said("assistant", "c"), said("user", "d")]
    _, older, recent = parted((said("user", "x"), said("user", "y"), call, *results, *tail))
    assert recent[0] is call
    assert len(older) == 2


def test_what_does_not_fit_at_once_is_summarized_in_pieces() -> None:
    asked: list[GenerationRequest] = []

    async def ask(request: GenerationRequest) -> str:
        asked.append(request)
        text = "".join(p.text for m in request.messages or () for p in m.parts if isinstance(p, Text))
        if text.count("turn") > 4:
            raise ServerError("context_length_exceeded", "Too long.")
        return f"part of {text.count('turn')}"

    request = GenerationRequest(model="m", messages=conversation(20))
    shorter = asyncio.run(summarized(request, ask))
    assert shorter.messages is not None
    assert len(shorter.messages) == 8
    summary = shorter.messages[1].parts[0]
    assert isinstance(summary, Text)
    assert summary.text.count("part of") == 4
    assert all(each.overflow == "error" for each in asked)
    assert [each.max_tokens for each in asked] == [1024, 512, *[256] * 4], "together no longer than one"


def test_other_failures_of_a_summary_are_not_hidden() -> None:
    async def ask(request: GenerationRequest) -> str:
        raise ServerError("worker_died", "Gone.")

    with pytest.raises(ServerError, match="Gone"):
        asyncio.run(summarized(GenerationRequest(model="m", messages=conversation(20)), ask))


def test_an_empty_summary_is_none() -> None:
    async def ask(request: GenerationRequest) -> str:
        return " "

    with pytest.raises(ServerError) as refused:
        asyncio.run(summarized(GenerationRequest(model="m", messages=conversation(20)), ask))
    assert refused.value.report.kind == "context_length_exceeded"


def test_a_conversation_that_does_not_fit_with_its_summary_is_tried_with_a_shorter_one() -> None:
    async def ask(request: GenerationRequest) -> str:
        return "word " * (request.max_tokens or 0)

    submitted: list[int] = []

    async def submit(request: GenerationRequest) -> None:
        words = sum(
            len(p.text.split()) for m in request.messages or () for p in m.parts if isinstance(p, Text)
        )
        submitted.append(words)
        if words > room:
            raise ServerError("context_length_exceeded", f"{words} are too many.")

    request = GenerationRequest(model="m", messages=conversation(20))
    room = 500
    asyncio.run(with_summary(request, ask, submit))
    assert len(submitted) == 2
    room = 100
    with pytest.raises(ServerError, match="are too many") as refused:
        asyncio.run(with_summary(request, ask, submit))
    assert refused.value.report.kind == "context_length_exceeded"
    assert len(submitted) == 4
