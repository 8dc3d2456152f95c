"""A constrained answer comes back byte for byte, whatever markers of whatever family it holds: through the real engine,
for vocabularies with tokens for the family's markers and for one without."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.core.conversation import Message, Text
from pippin.core.requests import (
    Choice,
    GenerationRequest,
    JsonSchema,
    OutputFormat,
    Regex,
    Sampling,
    Thinking,
)
from pippin.output.formats import (
    reasoning_format,
    reasoning_formats,
    tool_format,
    tool_formats,
)
from tests.engines.language.constraints.test_enforced_calls import special_of
from tests.engines.language.constraints.test_structured_output import Answers, engine_of
from tests.engines.language.text.small_tokenizer import CHATML, byte_level
from tests.engines.tiny_models import tiny_model
from tests.output.families import FAMILIES

AT_ONCE = 12  # rows of one batch
BY_FILE = {family.file: family for family in FAMILIES}
SERVED = {
    "no tokens for markers": ("think", ()),
    **{
        file: (BY_FILE[file].reasoning, special_of(BY_FILE[file]))
        for file in (
            "Qwen-Qwen3-0.6B",
            "openai-gpt-oss-120b",
            "google-gemma-4-31B-it",
            "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
            "upstage-Solar-Open-100B",
            "Kimi-K3",
            "GLM-4.6",
            "muse-glimmer",
        )
    },
}
# Without tokens for markers, with them in channels, and in a notation of its own.
QUICK = ("no tokens for markers", "openai-gpt-oss-120b", "Kimi-K3")
MARKERS = sorted(
    {marker for name in sorted(reasoning_formats()) for marker in reasoning_format(name).markers}
    | {marker for name in sorted(tool_formats()) for marker in tool_format(name).markers}
)
QUOTING = (
    st.lists(st.sampled_from([*MARKERS, "<think>a</think>", "x", " b "]), min_size=1, max_size=4)
    .map("".join)
    .filter(lambda text: text == text.strip())
)


def formats_of(text: str) -> list[tuple[OutputFormat, str]]:
    """Formats that admit nothing but this text, and the answer that is expected of each."""
    quoted = json.dumps(text)
    escaped = "".join(c if c.isalnum() or c == " " else f"\\u{{{ord(c):x}}}" for c in text)
    return [
        (JsonSchema({"const": text}), quoted),
        (
            JsonSchema({"type": "array", "items": {"enum": [text]}, "minItems": 1, "maxItems": 1}),
            f"[{quoted}]",
        ),
        (Choice((text,)), text),
        (Regex(escaped), text),
    ]


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in SERVED],
)
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    reasoning, special = SERVED[request.param]
    tokenizer = byte_level(special=special, added=bool(special))
    # The number that ends answers of the other tiny models is a byte's in a vocabulary with more tokens in front.
    (end,) = tokenizer.eos
    folder = tiny_model(
        "llama", tmp_path_factory.mktemp("model"), vocab_size=tokenizer.size, eos_token_id=end
    )
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": CHATML,
    }
    Path(folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with engine_of(folder, reasoning_parser=reasoning) as run:
        yield run


@settings(deadline=None, max_examples=3)
@given(texts=st.lists(QUOTING, min_size=AT_ONCE // 4, max_size=AT_ONCE // 4), thinks=st.booleans())
def test_a_constrained_answer_may_hold_any_marker(answers: Answers, texts: list[str], thinks: bool) -> None:
    wanted = [case for text in texts for case in formats_of(text)]
    requests = {
        str(number): GenerationRequest(
            model="demo",
            messages=(Message("user", (Text("Q?"),)),),
            output_format=asked,
            thinking=Thinking(enabled=thinks, budget=3),
            sampling=Sampling(temperature=4.0, seed=number),  # nearly any token that is allowed
            max_tokens=400,
        )
        for number, (asked, _) in enumerate(wanted)
    }
    for number, completion in answers(requests).items():
        (choice,) = completion.choices
        asked, expected = wanted[int(number)]
        said = choice.text("text").strip()
        exact = not isinstance(asked, JsonSchema)  # in JSON, characters have several spellings
        same = said == expected if exact else json.loads(said) == json.loads(expected)
        assert same, (said, expected, choice.text("reasoning"))
        assert choice.finished is not None
        assert choice.finished.reason == "stop"
