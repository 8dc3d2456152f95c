"""A small model at temperature 1 can say nothing that its schema forbids."""

import json
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

TOKENS = 160


def answers(model: Path, requests: dict[str, GenerationRequest]) -> dict[str, Completion]:
    """All of them in one batch engine."""
    spec = WorkerSpec(info=ModelInfo(id="demo", kind="language", path=str(model), context_window=2048))
    preparer = open_preparer(spec)
    engine = open_engine(spec, preparer, lambda *_: None)
    completions = {name: Completion() for name in requests}
    for name, request in requests.items():
        job = preparer.prepare(name, Generate(request))
        assert not isinstance(job, tuple)
        engine.submit(job)
    while engine.busy:
        for name, event in engine.step():
            completions[name].add(event)
    engine.close()
    return completions


@pytest.mark.long
@pytest.mark.model
@pytest.mark.timeout(1500)
def test_every_finished_answer_of_the_demo_model_validates(demo_model):
    requests = {
        name: GenerationRequest(
            model="demo",
            messages=(Message("user", (Text(f"Give an example of: {name}. Answer in JSON."),)),),
            output_format=JsonSchema(schema),
            sampling=Sampling(temperature=1.0, seed=number),
            max_tokens=TOKENS,
        )
        for number, (name, schema) in enumerate(CORPUS.items())
    }
    finished = 0
    for name, completion in answers(demo_model, requests).items():
        (choice,) = completion.choices
        assert choice.finished is not None
        if choice.finished.reason == "length":  # cut off: a beginning of a valid answer
            continue
        finished += 1
        validator = jsonschema.Draft202012Validator(
            CORPUS[name], format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )
        validator.validate(json.loads(choice.text("text")))
    assert finished > 0.8 * len(CORPUS)
