"""The `openai` client draws from the demo model: every sampling parameter changes the draw as its definition says."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import load
from numpy.typing import NDArray
from openai import OpenAI

from pippin.engines.language.text.tokenizer import Tokenizer
from tests.api.clients import sampling_definitions as definitions
from tests.api.clients.sampling_definitions import FILTERS, History, Logits, Penalty
from tests.clients import openai_of
from tests.running_server import running_server

pytestmark = [pytest.mark.long, pytest.mark.model, pytest.mark.timeout(600)]

OPEN_END: Final = "For breakfast I like to eat"  # many words may follow
ROUNDS: Final = 12
CHOICES: Final = 16
CLOSE: Final = 0.02  # of logits computed in two ways
OPENAI_FIELDS: Final = {
    "temperature",
    "top_p",
    "logit_bias",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "n",
}


@dataclass(frozen=True)
class Reference:
    """The model alone, in the test's own process."""

    model: Any
    tokenizer: Tokenizer
    tokens: dict[bytes, int]

    def logits(self, tokens: list[int]) -> NDArray[np.float64]:
        """Of what follows each of `tokens` [T, V]."""
        return np.array(self.model(mx.array([tokens]))[0].astype(mx.float32)).astype(np.float64)

    def token(self, spelled: str) -> int:
        if spelled.startswith("bytes:"):
            return self.tokens[bytes.fromhex(spelled.removeprefix("bytes:").replace("\\x", ""))]
        return self.tokens[spelled.encode()]


@pytest.fixture(scope="module")
def reference(demo_model: Path) -> Reference:
    model = load(str(demo_model), lazy=True)[0]
    model.set_dtype(mx.float32)
    tokenizer = Tokenizer.load(demo_model)
    return Reference(model, tokenizer, {tokenizer.raw(token): token for token in range(tokenizer.size)})


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Iterator[OpenAI]:
    with (
        running_server(tmp_path_factory.mktemp("home"), str(demo_model)) as address,
        openai_of(address) as made,
    ):
        yield made


def sampled(fields: dict[str, Any]) -> dict[str, Any]:
    """As the client takes them: what OpenAI has not goes into the extra body."""
    known = {name: value for name, value in fields.items() if name in OPENAI_FIELDS}
    return {**known, "extra_body": {name: value for name, value in fields.items() if name not in known}}


def draws(client: OpenAI, reference: Reference, **fields: Any) -> Counter[int]:
    """The next token of the open end, drawn many times."""
    found: Counter[int] = Counter()
    for seed in range(ROUNDS):
        answer = client.completions.create(
            model="default",
            prompt=reference.tokenizer.encode(OPEN_END),
            max_tokens=1,
            logprobs=0,
            **sampled({"temperature": 1, "n": CHOICES, "seed": seed, **fields}),
        )
        for choice in answer.choices:
            assert choice.logprobs is not None
            assert choice.logprobs.tokens
            found[reference.token(choice.logprobs.tokens[0])] += 1
    assert found.total() == ROUNDS * CHOICES
    return found


def assert_drawn(found: Counter[int], expected: NDArray[np.float64], blurred: frozenset[int]) -> None:
    total = found.total()
    for token in {*found, *np.flatnonzero(expected > 0.02).tolist()} - blurred:
        chance = float(expected[token])
        assert chance > 0 or found[token] == 0, f"token {token} is out, and was drawn"
        spread = 5 * (total * chance * (1 - chance)) ** 0.5 + 2
        assert abs(found[token] - total * chance) <= spread, (token, chance, found[token])


@pytest.mark.parametrize("name", FILTERS)
def test_draws_come_from_the_distribution_that_is_left(
    client: OpenAI, reference: Reference, name: str
) -> None:
    logits = reference.logits(reference.tokenizer.encode(OPEN_END))[-1]
    plain, wanted = definitions.softmax(logits), FILTERS[name](logits)
    assert np.abs(plain - wanted.expected).sum() > 0.2, "else a server that ignores it would pass"
    assert_drawn(draws(client, reference, **wanted.parameters), wanted.expected, wanted.blurred)


def test_free_draws_come_from_the_models_own_distribution(client: OpenAI, reference: Reference) -> None:
    plain = definitions.softmax(reference.logits(reference.tokenizer.encode(OPEN_END))[-1])
    free = draws(client, reference)
    assert_drawn(free, plain, frozenset())
    for name in FILTERS:
        wanted = FILTERS[name](np.log(plain))
        with pytest.raises(AssertionError):
            assert_drawn(free, wanted.expected, wanted.blurred)


def tokens_of(client: OpenAI, reference: Reference, prompt: list[int], **fields: Any) -> list[int]:
    answer = client.completions.create(
        model="default", prompt=prompt, max_tokens=40, logprobs=0, **sampled({"temperature": 0, **fields})
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    return [reference.token(token) for token in logprobs.tokens or ()]


REPEATING: Final = "one two three four, one two three four, one two"
PENALTIES: Final[dict[str, tuple[dict[str, Any], Penalty]]] = {
    "repetition": ({"repetition_penalty": 1.4}, definitions.repetition(1.4)),
    "repetition of 6": (
        {"repetition_penalty": 1.4, "repetition_context_size": 6},
        definitions.repetition(1.4, 6),
    ),
    "repeat_penalty of 6": ({"repeat_penalty": 1.4, "repeat_last_n": 6}, definitions.repetition(1.4, 6)),
    "presence": ({"presence_penalty": 2}, definitions.presence(2)),
    "presence of 3": ({"presence_penalty": 2, "presence_context_size": 3}, definitions.presence(2, 3)),
    "frequency": ({"frequency_penalty": 2}, definitions.frequency(2)),
    "frequency of 4": (
        {"frequency_penalty": 2, "frequency_context_size": 4},
        definitions.frequency(2, 4),
    ),
}
CONTEXTS: Final = (
    "repetition_context_size",
    "repeat_last_n",
    "presence_context_size",
    "frequency_context_size",
)


def assert_followed(
    reference: Reference, prompt: list[int], answer: list[int], penalty: Penalty
) -> list[Logits]:
    """Every token is the best after the penalty of all before it."""
    rows = reference.logits(prompt + answer)[len(prompt) - 1 : -1]
    for place, (token, logits) in enumerate(zip(answer, rows, strict=True)):
        lowered = penalty(logits, History(prompt, answer[:place]))
        assert lowered[token] > lowered.max() - CLOSE, (place, reference.tokenizer.decode(answer[:place]))
    return list(rows)


@pytest.mark.parametrize("name", PENALTIES)
def test_a_penalty_lowers_what_it_says_and_nothing_else(
    client: OpenAI, reference: Reference, name: str
) -> None:
    fields, penalty = PENALTIES[name]
    prompt = reference.tokenizer.encode(REPEATING)
    answer = tokens_of(client, reference, prompt, **fields)
    assert_followed(reference, prompt, answer, penalty)
    lesser = {field: value for field, value in fields.items() if field not in CONTEXTS}
    if lesser == fields:
        lesser = {}
    assert tokens_of(client, reference, prompt, **lesser) != answer, (
        "else a server that ignores it would pass"
    )


def chat(client: OpenAI, text: str, **fields: Any) -> Any:
    return client.chat.completions.create(
        model="default", messages=[{"role": "user", "content": text}], **fields
    )


def test_a_seed_repeats_an_answer_and_choices_differ(client: OpenAI) -> None:
    asked = {"max_tokens": 12, "temperature": 1.2}
    one = chat(client, "Name a city.", seed=7, **asked).choices[0].message.content
    again = chat(client, "Name a city.", seed=7, n=4, **asked)
    assert again.choices[0].message.content == one, "its first choice is that of the seed alone"
    assert len({choice.message.content for choice in again.choices}) > 1
    others = {chat(client, "Name a city.", seed=seed, **asked).choices[0].message.content for seed in (8, 9)}
    assert others != {one}


def test_many_choices_share_one_prefill(client: OpenAI) -> None:
    computed = f"{str(client.base_url).removesuffix('v1/')}v1/status"
    before = httpx.get(computed).json()["total_prompt_tokens"]
    answer = chat(
        client, "Tell me of the sea. " * 20, n=8, max_tokens=3, extra_body={"cache_salt": "never seen before"}
    )
    after = httpx.get(computed).json()["total_prompt_tokens"]
    assert len(answer.choices) == 8
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer.usage.prompt_tokens > 100
    assert 0 <= answer.usage.prompt_tokens - (after - before) <= 1
    assert answer.usage.completion_tokens == 8 * 3


def test_a_prefill_is_continued_where_it_stands(client: OpenAI, reference: Reference) -> None:
    messages: list[Any] = [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "The capital of Fr"},
    ]
    prefilled = {"continue_final_message": True, "add_generation_prompt": False}
    answer = client.chat.completions.create(
        model="default", messages=messages, max_tokens=8, temperature=0, extra_body=prefilled
    )
    rendered = httpx.post(
        f"{str(client.base_url).removesuffix('v1/')}apply-template",
        json={"model": "default", "messages": messages, **prefilled},
    ).json()["prompt"]
    assert rendered.endswith("<|im_start|>assistant\nThe capital of Fr")
    raw = client.completions.create(model="default", prompt=rendered, max_tokens=8, temperature=0)
    assert answer.choices[0].message.content == raw.choices[0].text


def test_characters_of_several_tokens_arrive_whole(client: OpenAI) -> None:
    text = "🦜👩‍🚀 漢字かな 한국어 ñ"
    stream = chat(
        client, "Go.", stream=True, logprobs=True, max_tokens=80, extra_body={"guided_choice": [text]}
    )
    pieces, raw = [], []
    for chunk in stream:
        pieces.append(chunk.choices[0].delta.content or "")
        found = chunk.choices[0].logprobs
        raw += [bytes(token.bytes) for token in (found.content if found else None) or ()]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert b"".join(raw) == text.encode()
    assert any("\ufffd" in piece.decode(errors="replace") for piece in raw), (
        "else no token splits a character"
    )


def test_continuous_usage_counts_along(client: OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    stream = chat(
        client,
        "Count to ten.",
        stream=True,
        stream_options=options,
        max_tokens=12,
        n=2,
        seed=1,
        logprobs=True,
    )
    seen, counts, last = 0, [], None
    for chunk in stream:
        assert chunk.usage is not None
        assert chunk.usage.total_tokens == chunk.usage.prompt_tokens + chunk.usage.completion_tokens
        for choice in chunk.choices:
            seen += len((choice.logprobs.content if choice.logprobs else None) or ())
        counts.append((seen, chunk.usage.completion_tokens))
        last = chunk
    assert all(seen <= counted <= seen + 2 for seen, counted in counts), counts
    assert [counted for _, counted in counts] == sorted(counted for _, counted in counts)
    assert last is not None
    assert last.choices == []
    assert last.usage.completion_tokens == 24


@pytest.mark.parametrize("streamed", [False, True])
def test_a_stop_string_across_token_borders_is_cut(
    client: OpenAI, reference: Reference, streamed: bool
) -> None:
    asked: dict[str, Any] = {"model": "default", "prompt": "One, two, three, four,", "temperature": 0}
    free = client.completions.create(**asked, max_tokens=20, logprobs=0).choices[0]
    assert free.logprobs is not None
    tokens = free.logprobs.tokens or []
    place = next(at for at in range(4, 18) if re.fullmatch(r" \w\w+", tokens[at]))
    stop = tokens[place - 1][-1:] + tokens[place][:3]
    assert free.text.count(stop) == 1
    if streamed:
        with OpenAI(
            base_url=client.base_url, api_key="x"
        ) as lenient:  # its type wants a reason in each chunk
            chunks = list(lenient.completions.create(**asked, max_tokens=20, stop=stop, stream=True))
        text, reason = "".join(chunk.choices[0].text for chunk in chunks), chunks[-1].choices[0].finish_reason
    else:
        found = client.completions.create(**asked, max_tokens=20, stop=[stop, "never"]).choices[0]
        text, reason = found.text, found.finish_reason
    assert (text, reason) == (free.text.partition(stop)[0], "stop")
