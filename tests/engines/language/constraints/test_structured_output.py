"""A small model at temperature 1 can say nothing that its schema forbids."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pippin.core.completion import Completion
from pippin.core.conversation import Message, Text
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.requests import GenerationRequest, JsonSchema, Sampling, Thinking
from pippin.core.tasks import Generate
from pippin.engines.language import open_engine, open_preparer
from tests.engines.language.constraints.schemas import CORPUS

AT_ONCE = 32  # rows of one batch
TOKENS = 128
FINISHED = 0.6  # of a group, at least; the others are beginnings of valid answers, cut off

Answers = Callable[[dict[str, GenerationRequest]], dict[str, Completion]]


@contextmanager
def engine_of(model: Path, **options: Any) -> Iterator[Answers]:
    """Runs requests as rows of one batch."""
    info = ModelInfo(id="demo", kind="language", path=str(model), context_window=2048)
    spec = WorkerSpec(info=info, options=options)
    preparer = open_preparer(spec)
    engine = open_engine(spec, preparer, lambda *_: None)

    def run(requests: dict[str, GenerationRequest]) -> dict[str, Completion]:
        completions = {name: Completion() for name in requests}
        for name, request in requests.items():
            job = preparer.prepare(name, Generate(request))
            assert not isinstance(job, tuple)
            engine.submit(job)
        try:
            while engine.busy:
                for name, event in engine.step():
                    completions[name].add(event)
        finally:  # a test that was stopped leaves nothing to the next
            for name in requests:
                engine.cancel(name)
        return completions

    yield run
    engine.close()


@pytest.fixture(scope="module")
def answers(demo_model: Path) -> Iterator[Answers]:
    with engine_of(demo_model) as run:
        yield run


def request_of(number: int) -> GenerationRequest:
    name = NAMES[number]
    return GenerationRequest(
        model="demo",
        messages=(Message("user", (Text(f"Give an example of: {name}. Answer in JSON."),)),),
        output_format=JsonSchema(CORPUS[name]),
        sampling=Sampling(temperature=1.0, seed=number),
        max_tokens=TOKENS,
    )


NAMES = list(CORPUS)


@pytest.mark.long
@pytest.mark.model
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("first", range(0, len(NAMES), AT_ONCE))
def test_every_finished_answer_of_the_demo_model_validates(answers: Answers, first: int) -> None:
    group = range(first, min(first + AT_ONCE, len(NAMES)))
    finished = 0
    for name, completion in answers({NAMES[number]: request_of(number) for number in group}).items():
        (choice,) = completion.choices
        assert choice.finished is not None
        if choice.finished.reason == "length":
            continue
        finished += 1
        validator = jsonschema.Draft202012Validator(
            CORPUS[name], format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )
        validator.validate(json.loads(choice.text("text")))
    assert finished > FINISHED * len(group)


TEMPLATE = (  # the demo model's own, with a thought that the template opens
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)


@pytest.mark.long
@pytest.mark.model
@pytest.mark.timeout(600)
def test_speculation_keeps_to_formats_and_budgets(demo_model: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    options = {
        "prompt_lookup": True,
        "reasoning_parser": "think",
        "chat_template_file": str(template),
    }
    schema = {
        "type": "array",
        "items": {"enum": ["red", "green"]},
        "minItems": 12,
        "maxItems": 12,
    }
    request = GenerationRequest(
        model="demo",
        messages=(Message("user", (Text("Repeat: red, green, red, green, red, green."),)),),
        output_format=JsonSchema(schema),
        thinking=Thinking(enabled=True, budget=6),
        sampling=Sampling(temperature=0.0),
        max_tokens=TOKENS,
    )
    with engine_of(demo_model, **options) as run:
        [choice] = run({"r": request})["r"].choices
    assert len(json.loads(choice.text("text"))) == 12
    assert choice.finished is not None
    assert 0 < choice.finished.usage.reasoning_tokens <= 12
    assert choice.finished.usage.draft_tokens > 0
