"""Faults that were seen in the servers that Pippin replaces, each with the test that shows Pippin has none of it.

`FAULTS` at the end is the whole list. Most are shown here, over a socket against a scripted model; the others where the
room that has to do with them is tested.
"""

import ast
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from pippin.config.options.server import ServerOptions
from tests.api.live_server import MODEL, live_server

TESTS: Final = Path(__file__).parents[1]
WORDS: Final = "one two three four five six seven eight nine ten"
SCRIPT: Final[dict[str, Any]] = {
    "rules": [
        {"when": {"user": "count"}, "say": WORDS},
        {"when": {"prompt": "count"}, "say": WORDS},
        {"when": {"user": "choose"}, "any_of": [f"answer {number}" for number in range(50)]},
        {"when": {"user": "think"}, "think": "Let me see.", "say": "Done."},
        {"when": {"user": "slow"}, "say": "word " * 2000, "gap": 0.02},
        {"when": {"user": "break"}, "say": WORDS, "fault": {"kind": "error", "after": 2}},
        {"when": {"system": "pirate"}, "say": "Arr."},
    ]
}
TOOL: Final[dict[str, Any]] = {
    "name": "look",
    "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with live_server(tmp_path_factory.mktemp("faults"), SCRIPT) as found:
        yield found


def send(address: str, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    return httpx.post(f"{address}/v1/{path}", json={"model": MODEL} | body, headers=headers, timeout=60)


def answered(address: str, path: str, body: dict[str, Any]) -> Any:
    reply = send(address, path, body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def chat(address: str, text: str, **fields: Any) -> Any:
    return answered(address, "chat/completions", {"messages": [{"role": "user", "content": text}]} | fields)


def message(address: str, text: str, **fields: Any) -> Any:
    given = {"messages": [{"role": "user", "content": text}], "max_tokens": 500} | fields
    return answered(address, "messages", given)


def streamed(address: str, path: str, body: dict[str, Any]) -> list[Any]:
    """The data of each event; "[DONE]" as it is."""
    lines = send(address, path, body | {"stream": True}).text.splitlines()
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [each if each == "[DONE]" else json.loads(each) for each in data]


def said(chunks: list[Any]) -> str:
    choices = [chunk["choices"][0] for chunk in chunks if chunk != "[DONE]" and chunk.get("choices")]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def test_stop_cuts_chat_whole_and_streamed_as_text_or_list(address: str) -> None:
    for stop in ("four", ["nine", "four"]):
        choice = chat(address, "count", stop=stop)["choices"][0]
        assert choice["message"]["content"].strip() == "one two three"
        assert choice["finish_reason"] == "stop"
        asked = {"messages": [{"role": "user", "content": "count"}], "stop": stop}
        assert said(streamed(address, "chat/completions", asked)).strip() == "one two three"


def test_stop_sequences_cut_messages_and_end_the_run_at_once(address: str) -> None:
    answer = message(address, "count", stop_sequences=["four"])
    assert answer["content"][0]["text"].strip() == "one two three"
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "four")
    whole = message(address, "count")["usage"]["output_tokens"]
    assert answer["usage"]["output_tokens"] < whole / 2  # nothing after it was paid for
    asked = {
        "messages": [{"role": "user", "content": "count"}],
        "max_tokens": 500,
        "stop_sequences": ["four"],
    }
    deltas = [event["delta"] for event in streamed(address, "messages", asked) if "delta" in event]
    assert "".join(delta.get("text", "") for delta in deltas).strip() == "one two three"


def test_stop_cuts_completions(address: str) -> None:
    for several in (["count"], ["count", "count"]):
        choices = answered(address, "completions", {"prompt": several, "stop": ["four"], "max_tokens": 99})[
            "choices"
        ]
        assert [choice["text"].strip() for choice in choices] == ["one two three"] * len(several)


def test_both_limits_of_new_tokens_hold_and_say_length(address: str) -> None:
    for field in ("max_tokens", "max_completion_tokens"):
        answer = chat(address, "count", **{field: 3})
        assert answer["usage"]["completion_tokens"] == 3
        assert answer["choices"][0]["finish_reason"] == "length"


def test_n_gives_so_many_choices(address: str) -> None:
    assert len(chat(address, "count", n=3)["choices"]) == 3


def test_a_seed_repeats_an_answer_and_without_one_they_differ(address: str) -> None:
    def choose(**fields: Any) -> str:
        return str(chat(address, "choose", temperature=1, **fields)["choices"][0]["message"]["content"])

    assert choose(seed=7) == choose(seed=7)
    assert len({choose(seed=seed) for seed in range(8)}) > 1
    assert len({choose() for _ in range(8)}) > 1


def test_what_is_out_of_range_is_refused_by_name_in_openais_shape(address: str) -> None:
    for field, value in (("temperature", -5), ("top_p", 2), ("n", 0), ("logit_bias", {"x": 1})):
        reply = send(
            address, "chat/completions", {"messages": [{"role": "user", "content": "Hi"}], field: value}
        )
        assert reply.status_code == 400
        error = reply.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["param"] == field
        assert field in error["message"]


def test_no_messages_are_a_clear_refusal(address: str) -> None:
    reply = send(address, "chat/completions", {"messages": []})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "messages"


def test_a_malformed_message_is_refused_in_anthropics_shape(address: str) -> None:
    reply = httpx.post(
        f"{address}/v1/messages", content=b'{"model": ', headers={"content-type": "application/json"}
    )
    assert reply.status_code == 400
    body = reply.json()
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    assert body["request_id"] == reply.headers["request-id"]


def test_tokens_are_counted_as_the_request_reports_them(address: str) -> None:
    schema = TOOL["parameters"]
    given = {
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "count"}],
        "tools": [{"name": "look", "description": "Looks somewhere.", "input_schema": schema}],
    }
    counted = answered(address, "messages/count_tokens", given)["input_tokens"]
    assert counted == answered(address, "messages", given | {"max_tokens": 9})["usage"]["input_tokens"]


def test_a_message_stream_reports_its_input_and_why_it_was_cut(address: str) -> None:
    asked = {"messages": [{"role": "user", "content": "count"}], "max_tokens": 3}
    events = streamed(address, "messages", asked)
    assert events[0]["message"]["usage"]["input_tokens"] > 0
    [ending] = [event for event in events if event["type"] == "message_delta"]
    assert ending["delta"]["stop_reason"] == "max_tokens"


def test_a_response_stream_is_numbered_and_ends_as_its_status_says(address: str) -> None:
    for limit, status in ((3, "incomplete"), (500, "completed")):
        asked = {"input": "count", "max_output_tokens": limit}
        events = [event for event in streamed(address, "responses", asked) if event != "[DONE]"]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["type"] == f"response.{status}"
        assert events[-1]["response"]["status"] == status


def test_completions_are_there(address: str) -> None:
    assert (
        answered(address, "completions", {"prompt": "count", "max_tokens": 99})["choices"][0]["text"] == WORDS
    )


def test_a_required_call_is_made(address: str) -> None:
    tools = [{"type": "function", "function": TOOL}]
    choice = chat(address, "count", tools=tools, tool_choice="required")["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert "at" in json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])


def running(address: str) -> int:
    return int(httpx.get(f"{address}/v1/status").json()["num_running"])


def wait_until_idle(address: str) -> None:
    deadline = time.monotonic() + 30
    while running(address):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_leaving_a_whole_answer_stops_the_model(address: str) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{address}/v1/chat/completions",
            json={"model": MODEL, "messages": [{"role": "user", "content": "slow"}]},
            timeout=1,
        )
    wait_until_idle(address)


def test_cancelling_a_background_response_stops_the_model(address: str) -> None:
    begun = answered(address, "responses", {"input": "slow", "background": True})
    reply = httpx.post(f"{address}/v1/responses/{begun['id']}/cancel", timeout=30)
    assert reply.json()["status"] == "cancelled"
    wait_until_idle(address)


def test_requests_run_beside_each_other(address: str) -> None:
    begun = [answered(address, "responses", {"input": "slow", "background": True})["id"] for _ in range(3)]
    assert chat(address, "count")["choices"][0]["message"]["content"] == WORDS  # while they run
    for name in begun:
        httpx.post(f"{address}/v1/responses/{name}/cancel", timeout=30)
    wait_until_idle(address)


def test_the_name_default_is_served(address: str) -> None:
    asked = {"model": "default", "messages": [{"role": "user", "content": "count"}]}
    assert httpx.post(f"{address}/v1/chat/completions", json=asked, timeout=60).status_code == 200


def test_logprobs_need_no_flag(address: str) -> None:
    choice = chat(address, "count", logprobs=True, top_logprobs=3)["choices"][0]
    assert all(len(token["top_logprobs"]) == 3 for token in choice["logprobs"]["content"])
    legacy = answered(address, "completions", {"prompt": "count", "logprobs": 2, "max_tokens": 5})
    assert len(legacy["choices"][0]["logprobs"]["top_logprobs"][0]) == 2


def test_developers_are_heard(address: str) -> None:
    turns = [{"role": "developer", "content": "Be a pirate."}, {"role": "user", "content": "Hi"}]
    answer = answered(address, "chat/completions", {"messages": turns})
    assert answer["choices"][0]["message"]["content"] == "Arr."


def test_only_this_machine_is_listened_to_by_default() -> None:
    assert ServerOptions().host in ("127.0.0.1", "localhost", "::1")


def test_no_request_reads_or_writes_files_of_the_host(address: str) -> None:
    part = {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}
    reply = send(address, "chat/completions", {"messages": [{"role": "user", "content": [part]}]})
    assert reply.status_code == 400
    for field in ("output_path", "output_dir"):
        reply = send(address, "images/generations", {"prompt": "A cat", field: "/tmp/x"})
        assert reply.json()["error"]["param"] == field


def test_the_server_answers_while_a_model_loads(tmp_path: Path) -> None:
    with live_server(tmp_path, SCRIPT | {"load_seconds": 5}) as address:
        started = time.monotonic()
        assert httpx.get(f"{address}/health", timeout=4).status_code == 200
        assert httpx.get(f"{address}/v1/models", timeout=4).status_code == 200
        assert time.monotonic() - started < 4


def test_a_failing_stream_ends_in_its_error_and_no_stop(address: str) -> None:
    asked = {"messages": [{"role": "user", "content": "break"}]}
    chunks = streamed(address, "chat/completions", asked)
    assert chunks[-1] == "[DONE]"
    assert chunks[-2]["error"]["type"] == "server_error"
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-2]]
    assert set(reasons) == {None}


def test_thinking_and_top_k_of_messages_count(address: str) -> None:
    shown = message(address, "think", thinking={"type": "enabled", "budget_tokens": 1024}, top_k=5)
    assert [block["type"] for block in shown["content"]] == ["thinking", "text"]
    assert [block["type"] for block in message(address, "think")["content"]] == ["text"]
    refused = send(address, "messages", {"messages": [], "max_tokens": 9, "top_k": -9})
    assert refused.status_code == 400


def test_embeddings_can_be_base64(address: str) -> None:
    vector = answered(address, "embeddings", {"input": "Hi", "encoding_format": "base64"})["data"][0][
        "embedding"
    ]
    assert isinstance(vector, str)


Shown = Callable[..., None] | str
FAULTS: Final[dict[int, tuple[str, Shown]]] = {
    1: ("`stop` ignored on chat", test_stop_cuts_chat_whole_and_streamed_as_text_or_list),
    2: ("`stop` as a string rejected", test_stop_cuts_chat_whole_and_streamed_as_text_or_list),
    3: ("stop_sequences cut after the run", test_stop_sequences_cut_messages_and_end_the_run_at_once),
    4: ("stop_sequences ignored", test_stop_sequences_cut_messages_and_end_the_run_at_once),
    5: ("stop of completions left in, or ignored", test_stop_cuts_completions),
    6: ("max_completion_tokens ignored", test_both_limits_of_new_tokens_hold_and_say_length),
    7: ("n=2 returns one choice", test_n_gives_so_many_choices),
    8: ("seed ignored", test_a_seed_repeats_an_answer_and_without_one_they_differ),
    9: ("default seed fixed", test_a_seed_repeats_an_answer_and_without_one_they_differ),
    10: ("values out of range accepted", test_what_is_out_of_range_is_refused_by_name_in_openais_shape),
    11: ("empty messages give 500", test_no_messages_are_a_clear_refusal),
    12: ("malformed Anthropic body gives bare 500", test_a_malformed_message_is_refused_in_anthropics_shape),
    13: ("errors not in OpenAI's shape", test_what_is_out_of_range_is_refused_by_name_in_openais_shape),
    14: ("count_tokens wrong", test_tokens_are_counted_as_the_request_reports_them),
    15: (
        "Anthropic stream: no input_tokens, wrong stop_reason",
        test_a_message_stream_reports_its_input_and_why_it_was_cut,
    ),
    16: (
        "response.completed with status incomplete",
        test_a_response_stream_is_numbered_and_ends_as_its_status_says,
    ),
    17: ("no sequence_number", test_a_response_stream_is_numbered_and_ends_as_its_status_says),
    18: ("no completions", test_completions_are_there),
    19: ("tool_choice required not enforced", test_a_required_call_is_made),
    20: (
        "structured output fails off Metal",
        "api/clients/test_structured_clients.py::test_chat_parse_gives_objects_for_every_choice",
    ),
    21: ("a whole answer goes on when its client left", test_leaving_a_whole_answer_stops_the_model),
    22: ("a second request gets 503", test_requests_run_beside_each_other),
    23: ("the model `default` is 404", test_the_name_default_is_served),
    24: ("x-api-key rejected", "api/access/test_guards.py::test_a_key_is_taken_from_either_header"),
    25: ("top_logprobs empty without a flag", test_logprobs_need_no_flag),
    26: ("logprobs ignored", test_logprobs_need_no_flag),
    27: ("finish_reason never length", test_both_limits_of_new_tokens_hold_and_say_length),
    28: ("developer role rejected", test_developers_are_heard),
    29: (
        "a model unloads during a stream",
        "runtime/pool/test_pool.py::test_unloading_by_hand_waits_for_requests_and_then_cuts_them",
    ),
    30: (
        "kv_bits unused in batches",
        "engines/language/kv_cache/test_kv_quantization.py::test_the_logits_of_a_batch_are_those_of_mlx_lm_with_its_cache_quantised_after_the_prompt",
    ),
    31: ("prompt cache pickled", "test_architecture.py::test_a_library_stays_in_its_rooms"),
    32: ("0.0.0.0 by default, without a key", test_only_this_machine_is_listened_to_by_default),
    33: ("files of the host read and written", test_no_request_reads_or_writes_files_of_the_host),
    34: ("loads block the event loop", test_the_server_answers_while_a_model_loads),
    35: ("cancel only flips the status", test_cancelling_a_background_response_stops_the_model),
    36: (
        "audio fields as query parameters",
        "api/clients/test_kinds_client.py::test_speech_comes_as_bytes_in_the_format_asked_for",
    ),
    37: (
        "image edits are no form",
        "api/clients/test_kinds_client.py::test_edits_take_one_picture_or_several_and_no_mask",
    ),
    38: (
        "previous_response_id ignored",
        "api/clients/test_agents_wire.py::test_a_responses_tool_loop_by_previous_response",
    ),
    39: ("an error followed by a normal stop", test_a_failing_stream_ends_in_its_error_and_no_stop),
    40: ("an error without [DONE]", test_a_failing_stream_ends_in_its_error_and_no_stop),
    41: ("thinking and top_k dropped", test_thinking_and_top_k_of_messages_count),
    42: ("base64 ignored", test_embeddings_can_be_base64),
    43: (
        "speculation with a format or a budget is 500",
        "engines/language/constraints/test_structured_output.py::test_speculation_keeps_to_formats_and_budgets",
    ),
    44: (
        "embedding input cut silently",
        "engines/test_embeddings.py::test_an_input_that_is_too_long_is_refused_or_cut_as_asked",
    ),
    45: (
        "`--moe-top-k` documented but absent",
        "config/test_compat.py::test_fewer_experts_are_refused_with_the_way_out",
    ),
}


def test_every_fault_has_its_test() -> None:
    assert list(FAULTS) == list(range(1, 46))
    for number, (_, shown) in FAULTS.items():
        if isinstance(shown, str):
            path, _, name = shown.partition("::")
            tree = ast.parse((TESTS / path).read_text())
            assert name in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}, number
