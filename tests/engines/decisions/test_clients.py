"""The clients of OpenAI and TypeSafe decide with a real language model, over a socket."""

import base64
import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI
from typesafe_sdk import Box, Choice, Image, Noul, Score, TypeSafeBadRequestError, TypeSafeClient

from pippin.api.kinds.decisions import SYSTEM
from tests.api.live_server import live_server
from tests.clients import openai_of
from tests.running_server import running_server

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
STATE = "I was charged twice for my order. Please give me my money back at once!"
TEAMS = {
    "billing": "money, invoices and refunds",
    "technical support": "something does not work",
    "other": None,
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Iterator[str]:
    with running_server(tmp_path_factory.mktemp("home"), str(demo_model)) as address:
        yield address


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[OpenAI]:
    with openai_of(address) as made:
        yield made


@pytest.fixture(scope="module")
def typesafe(address: str) -> Iterator[TypeSafeClient]:
    with TypeSafeClient(base_url=address, api_key="x", timeout=600) as made:
        yield made


def test_openai_gives_answers_in_the_order_of_the_questions(client: OpenAI) -> None:
    found = client.decisions.create(
        model="default",
        input=[{"role": "developer", "content": "You read mail."}, {"role": "user", "content": STATE}],
        questions=[
            {"type": "predicate", "name": "refund", "instructions": "The customer wants money back."},
            {
                "type": "choice",
                "instructions": [{"type": "input_text", "text": "Which team?"}],
                "choices": [
                    {"value": "billing", "description": "money"},
                    {"value": "sales"},
                    {"value": True},
                ],
            },
            {
                "type": "score",
                "name": "urgency",
                "instructions": "How urgent?",
                "levels": [{"label": "low"}, {"label": "high", "description": "today"}],
            },
        ],
        prompt_cache_key="mail",
    )
    refund, team, urgency = found.answers
    assert refund.type == "predicate"
    assert 0 < refund.probability < 1
    assert team.type == "choice"
    assert [each.value for each in team.probabilities] == ["billing", "sales", True]
    assert team.choice == max(team.probabilities, key=lambda each: each.probability).value
    assert math.fsum(each.probability for each in team.probabilities) == pytest.approx(1)
    assert urgency.type == "score"
    assert [(each.label, each.value) for each in urgency.probabilities] == [("low", 0), ("high", 1)]
    assert urgency.score == pytest.approx(urgency.probabilities[1].probability)
    assert found.usage.total_tokens == found.usage.input_tokens > 0


def test_typesafe_gets_an_answer_of_each_type(typesafe: TypeSafeClient) -> None:
    found = typesafe.system_one(
        state={"subject": "Charged twice", "text": STATE},
        questions={
            "team": Choice(instructions="Which team?", criteria=TEAMS),
            "spam": Noul(instructions="Is it spam?", criteria={"true": "advertising", "false": "a customer"}),
            "urgent": Score(instructions="How urgent?", criteria=["can wait", "this week", "today"]),
        },
    )
    assert found.choices["team"].probabilities.keys() == TEAMS.keys()
    assert sum(found.choices["team"].probabilities.values()) == pytest.approx(1)
    assert 0 < found.nouls["spam"].noul < 1
    assert found.scores["urgent"].legend == {0: "can wait", 1: "this week", 2: "today"}
    assert 0 <= found.scores["urgent"].score <= 2
    assert found.model == "smollm2-135m-instruct"
    assert [each.name for each in typesafe.models.list().models] == ["smollm2-135m-instruct"]


def test_the_state_of_a_later_request_is_cached(address: str) -> None:
    state = "A long state about many things. " * 30
    body = {"state": state, "questions": {"a": {"type": "noul", "instructions": "Is it long?"}}}
    httpx.post(f"{address}/v1/systemone", json=body, timeout=600)
    body["questions"] = {"b": {"type": "noul", "instructions": "Is it about something?"}}
    usage = httpx.post(f"{address}/v1/systemone", json=body, timeout=600).json()["usage"]
    assert usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"] < 64


def test_probabilities_are_those_of_echo(address: str) -> None:
    """The prompt of a decision is that of a chat, which the documents spell; labels have several tokens."""
    labels = ["billing", "technical support", "größer als 東京"]
    asked = {"type": "choice", "instructions": "Which team?", "criteria": dict.fromkeys(labels)}
    body = {"state": STATE, "questions": {"a": asked}}
    found = httpx.post(f"{address}/v1/systemone", json=body, timeout=600).json()
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": STATE},
        {"role": "user", "content": f"Labels: {', '.join(labels)}\nWhich team?"},
    ]
    sums = []
    for label in labels:
        said = [*messages, {"role": "assistant", "content": label}]
        prompt = httpx.post(
            f"{address}/apply-template",
            json={"messages": said, "continue_final_message": True, "add_generation_prompt": False},
            timeout=600,
        ).json()["prompt"]
        echo = httpx.post(
            f"{address}/v1/completions",
            json={"prompt": prompt, "echo": True, "logprobs": 0, "max_tokens": 0},
            timeout=600,
        ).json()["choices"][0]
        start = len(prompt) - len(label)
        offsets, logprobs = echo["logprobs"]["text_offset"], echo["logprobs"]["token_logprobs"]
        sums.append(sum(each for at, each in zip(offsets, logprobs, strict=True) if at >= start))
    weights = [math.exp(each - max(sums)) for each in sums]
    expected = {label: each / sum(weights) for label, each in zip(labels, weights, strict=True)}
    assert found["answers"]["a"]["probabilities"] == pytest.approx(expected, abs=1e-4)


def test_a_model_of_text_refuses_pictures_and_boxes(typesafe: TypeSafeClient, client: OpenAI) -> None:
    with pytest.raises(TypeSafeBadRequestError, match="text only"):
        typesafe.system_one(state=Image(PIXEL), questions={"cat": Noul(instructions="Is it a cat?")})
    with pytest.raises(TypeSafeBadRequestError, match="place in a picture"):
        typesafe.system_one(state="x", questions={"cat": Box(instructions="The cat")})
    with pytest.raises(TypeSafeBadRequestError, match="text only"):
        typesafe.system_one(state="x", questions={"cat": Noul(instructions=["Like", Image(PIXEL)])})
    with pytest.raises(BadRequestError, match="text only"):
        picture: Any = {
            "type": "input_image",
            "image_url": f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}",
        }
        client.decisions.create(
            model="default",
            input=[{"role": "user", "content": [picture]}],
            questions=[{"type": "predicate", "instructions": "It is a cat."}],
        )


def noul(count: int = 1) -> dict[str, Any]:
    return {str(number): {"type": "noul", "instructions": "Is it?"} for number in range(count)}


def predicates(count: int = 1) -> list[dict[str, Any]]:
    return [{"type": "predicate", "instructions": "It is."}] * count


def question(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "instructions": "?", **fields}


BAD_STATES: list[tuple[dict[str, Any], str]] = [
    ({"questions": noul()}, "state"),
    ({"state": "", "questions": noul()}, "state"),
    ({"state": "x", "questions": {}}, "questions"),
    ({"state": "x", "questions": noul(401)}, "questions"),
    ({"state": "x", "questions": {"a": question("choice")}}, "questions.a.criteria"),
    ({"state": "x", "questions": {"a": {"type": "noul"}}}, "questions.a.instructions"),
    ({"state": "x", "questions": {"a": question("score", criteria={"b": "c"})}}, "questions.a.criteria"),
    ({"state": "x", "questions": {"a": question("multi_label")}}, "questions.a.criteria"),
    (
        {"state": "x", "questions": {"a": question("multi_label", criteria=list("bc")), **noul(399)}},
        "questions",
    ),
    ({"state": "x", "questions": {"a": question("noul", threshold=0.5)}}, "questions.a.threshold"),
    ({"state": "x", "questions": noul(), "assets": {"<y>": {"data_base64": "aGk="}}}, "assets.<y>"),
    ({"state": "<y>", "questions": noul(), "assets": {"<y>": {"part": "z"}}}, "assets.<y>.part"),
]
ALIKE = [{"value": "a"}, {"value": "a"}]
LEVELS = [{"label": "a"}, {"label": "b"}]
BAD_INPUTS: list[tuple[dict[str, Any], str]] = [
    ({"input": "x", "questions": []}, "questions"),
    ({"input": "x", "questions": predicates(401)}, "questions"),
    ({"input": [], "questions": predicates()}, "input"),
    ({"input": "x", "questions": [question("choice")]}, "questions[0].choices"),
    ({"input": "x", "questions": [question("predicate", levels=LEVELS)]}, "questions[0].levels"),
    ({"input": "x", "questions": [question("choice", choices=ALIKE)]}, "questions[0].choices"),
    (
        {
            "input": [{"type": "function_call_output", "call_id": "c", "output": "x"}],
            "questions": predicates(),
        },
        "input[0].call_id",
    ),
]
BAD = [("systemone", *each) for each in BAD_STATES] + [("decisions", *each) for each in BAD_INPUTS]


@pytest.mark.parametrize(("path", "body", "named"), BAD)
def test_a_body_that_is_wrong_is_refused_with_its_field(
    scripted: str, path: str, body: dict[str, Any], named: str
) -> None:
    refused = httpx.post(f"{scripted}/v1/{path}", json=body, timeout=60)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, named), refused.text


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("live")
    with live_server(folder, {"rules": [], "capabilities": {"images": True}}) as found:
        yield found


def test_the_form_of_the_body_decides_the_form_of_the_answer(scripted: str) -> None:
    openai = httpx.post(
        f"{scripted}/v1/decisions", json={"input": "x", "questions": predicates(400)}, timeout=60
    )
    assert len(openai.json()["answers"]) == 400
    vlm = httpx.post(f"{scripted}/v1/decisions", json={"state": "x", "questions": noul()}, timeout=60)
    assert vlm.json()["answers"]["0"] == {"type": "bool", "value": True, "probability": 0.5, "metadata": {}}
    typesafe = httpx.post(
        f"{scripted}/v1/systemone",
        json={"state": "x", "questions": noul(), "model": "jev-latest"},
        timeout=60,
    )
    assert typesafe.json()["answers"]["0"] == {"type": "noul", "noul": 0.5}


def test_labels_that_may_go_together_are_each_asked_by_itself(scripted: str) -> None:
    asked = {"type": "multi_label", "instructions": "?", "criteria": {"bill": "money", "bug": None}}
    body = {"state": "yes", "questions": {"a": asked, "b": {**asked, "threshold": 0.9}, **noul()}}
    vlm = httpx.post(f"{scripted}/v1/decisions", json=body, timeout=60).json()["answers"]
    chances = {"bill": 0.5, "bug": 0.5}
    assert vlm["a"] == {
        "type": "multi_label",
        "value": ["bill", "bug"],
        "probabilities": chances,
        "metadata": {},
    }
    assert (vlm["b"]["value"], vlm["0"]["probability"]) == ([], 0.5)
    typesafe = httpx.post(f"{scripted}/v1/systemone", json=body, timeout=60).json()["answers"]["a"]
    assert typesafe == {"type": "multi_label", "multi_label": ["bill", "bug"], "probabilities": chances}


def test_a_string_and_a_boolean_that_are_written_alike_are_two_choices(scripted: str) -> None:
    question = {"type": "choice", "instructions": "?", "choices": [{"value": "true"}, {"value": True}]}
    [answer] = httpx.post(
        f"{scripted}/v1/decisions", json={"input": "x", "questions": [question]}, timeout=60
    ).json()["answers"]
    assert [each["value"] for each in answer["probabilities"]] == ["true", True]


def test_pictures_take_their_places_in_the_state(scripted: str) -> None:
    with TypeSafeClient(base_url=scripted, api_key="x", timeout=60) as client:
        picture = Image(PIXEL)
        found = client.system_one(
            state={"before": picture, "after": picture},
            questions={"same": Noul(instructions="Are they alike?")},
        )
        assert found.nouls["same"].noul == 0.5


def test_pictures_take_their_places_in_questions(scripted: str) -> None:
    picture, other = Image(PIXEL), Image(PIXEL + b"0")
    alike = Choice(instructions=["Which is like", picture], criteria={"a": other, "b": "none"})
    with TypeSafeClient(base_url=scripted, api_key="x", timeout=60) as client:
        found = client.system_one(
            state="x",
            questions={
                "text": Noul(instructions="Is it?"),
                "alike": alike,
                "cat": Box(instructions=f"The cat in {picture}"),
            },
            assets={"it": picture, "other": other},
        )
        assert found.nouls["text"].noul == 0.5
        assert found.choices["alike"].probabilities == {"a": 0.5, "b": 0.5}
        assert found.boxes["cat"].box.model_dump() == pytest.approx(
            dict.fromkeys(("top", "bottom", "left", "right"), 0.5)
        )
        with pytest.raises(TypeSafeBadRequestError, match="as a label"):
            client.system_one(
                state="x", questions={"a": Choice(criteria={"it": None})}, assets={"it": picture}
            )


def test_a_compressed_form_is_read(scripted: str) -> None:
    body = {"state": "<x>", "questions": noul(), "assets": {"<x>": {"part": "file"}}}
    form = httpx.Request(
        "POST", scripted, data={"request": json.dumps(body)}, files={"file": ("a.png", PIXEL, "image/png")}
    )
    headers = {"content-type": form.headers["content-type"], "content-encoding": "gzip"}
    address, packed = f"{scripted}/v1/systemone", gzip.compress(form.read())
    assert httpx.post(address, content=packed, headers=headers, timeout=60).status_code == 200
    refused = httpx.post(address, content=packed[:-20], headers=headers, timeout=60)
    assert (refused.status_code, "gzip" in refused.text) == (400, True)


def test_a_picture_in_a_question_of_openai_s_is_taken(scripted: str) -> None:
    shown = {"type": "input_image", "image_url": f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"}
    asked = {"type": "predicate", "instructions": [{"type": "input_text", "text": "It is like"}, shown]}
    body = {"input": "x", "questions": [*predicates(2), asked]}
    reply = httpx.post(f"{scripted}/v1/decisions", json=body, timeout=60).json()
    assert [each["probability"] for each in reply["answers"]] == [0.5] * 3


def test_decisions_count_against_the_limits_of_the_caller(tmp_path: Path) -> None:
    with live_server(tmp_path, {"rules": []}, rate_limit=1) as address:
        body = {"state": "x", "questions": noul()}
        statuses = [
            httpx.post(f"{address}/v1/systemone", json=body, timeout=60).status_code for _ in range(2)
        ]
    assert statuses == [200, 429]
