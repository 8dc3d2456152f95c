"""How log probabilities are drawn: alike in every dialect, and always as numbers that JSON can hold."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from pippin.api.dialects.shared.openai import LOWEST
from pippin.core.events import Event, PartDelta, PartEnded, PartStarted, Token, TopToken
from tests.api.dialects import golden, openai_golden
from tests.api.golden_events import accepted, end

Drawn = list[dict[str, Any]]


def in_chat(events: list[Event]) -> Drawn:
    choice = json.loads(openai_golden.whole("chat_completions", events))["choices"][0]
    drawn: Drawn = choice["logprobs"]["content"]
    return drawn


def in_responses(events: list[Event]) -> Drawn:
    drawn: Drawn = json.loads(golden.whole("responses", events))["output"][0]["content"][0]["logprobs"]
    return drawn


def in_a_stream_of_responses(events: list[Event]) -> Drawn:
    lines = golden.streamed("responses", events).decode().splitlines()
    payloads = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    deltas = [each["logprobs"] for each in payloads if each["type"] == "response.output_text.delta"]
    return [token for delta in deltas for token in delta]


WAYS = [in_chat, in_responses, in_a_stream_of_responses]


def said(logprob: float | None, *others: float) -> list[Event]:
    top = tuple(TopToken(number, b"b", other) for number, other in enumerate(others))
    delta = PartDelta(0, 0, "a", (Token(7, b"a", logprob, top),))
    return [accepted(), PartStarted(0, 0, "text"), delta, PartEnded(0, 0), end(1)]


@pytest.mark.parametrize("draw", WAYS)
@pytest.mark.parametrize("logprob", [None, -math.inf, math.nan, -1e30])
def test_a_logprob_that_json_cannot_hold_is_the_lowest(
    draw: Callable[[list[Event]], Drawn], logprob: float | None
) -> None:
    assert [token["logprob"] for token in draw(said(logprob))] == [LOWEST]


@pytest.mark.parametrize("draw", WAYS)
def test_other_tokens_are_held_to_the_same(draw: Callable[[list[Event]], Drawn]) -> None:
    [token] = draw(said(-0.5, -0.5, -math.inf))
    assert [top["logprob"] for top in token["top_logprobs"]] == [-0.5, LOWEST]


def test_every_dialect_draws_a_token_alike() -> None:
    events = said(-0.5, -0.5, -2.0)
    assert in_chat(events) == in_responses(events) == in_a_stream_of_responses(events)


def test_the_first_token_of_a_legacy_prompt_has_no_logprob_and_an_impossible_one_the_lowest() -> None:
    for logprob, drawn in ((None, None), (-math.inf, LOWEST)):
        choice = json.loads(openai_golden.whole("completions", said(logprob)))["choices"][0]
        assert choice["logprobs"]["token_logprobs"] == [drawn]
