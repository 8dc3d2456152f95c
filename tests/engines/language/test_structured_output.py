"""A small model at temperature 1 can say nothing that its schema forbids."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema
import pytest
from tests.engines.language.schemas import CORPUS

from pippin.core.completion import Completion
from pippin.core.conversation import Message, Text
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.requests import GenerationRequest, JsonSchema, Sampling
from pippin.core.tasks import Generate
from pippin.engines.language import open_engine, open_preparer

AT_ONCE = 32  # rows of one batch
TOKENS = 128
FINISHED = 0.6  # of a group, at least; the others are beginnings of valid answers, cut off

Answers = Callable[[dict[str, GenerationRequest]], dict[str, Completion]]


@pytest.fixture(scope="module")
def answers(demo_model: Path) -> Iterator[Answers]:
    """Runs requests as rows of one batch."""
    spec = WorkerSpec(info=ModelInfo(id="demo", kind="language", path=str(demo_model), context_window=2048))
    preparer = open_preparer(spec)
    engine = open_engine(spec, preparer, lambda *_: None)

    def run(requests: dict[str, GenerationRequest]) -> dict[str, Completion]:
        completions = {name: Completion() for name in requests}
        for name, request in requests.items():
            job = preparer.prepare(name, Generate(request))
            assert not isinstance(job, tuple)
            engine.submit(job)
        while engine.busy:
            for name, event in engine.step():
                completions[name].add(event)
        return completions

    yield run
    engine.close()


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
@pytest.mark.timeout(600)
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
