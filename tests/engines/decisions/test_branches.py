"""The labels of decisions get the log probabilities that the model gives them after the whole prompt."""

from pathlib import Path

import pytest

from pippin.catalog.info import read_info
from pippin.core.conversation import Message, Text
from pippin.core.errors import ServerError
from pippin.core.events import Event, Finished, PromptEcho, Scored
from pippin.core.models import WorkerSpec
from pippin.core.requests import Decision, GenerationRequest
from pippin.core.tasks import Generate
from pippin.engines.language import open_engine, open_preparer
from pippin.engines.language.job import Branch, LanguageJob
from pippin.engines.language.loading.engine import LanguageEngine
from pippin.engines.language.prompt.preparer import LanguagePreparer
from pippin.engines.language.step.branches import distributed, pieces_of
from tests.engines.driving import no_progress, run
from tests.engines.tiny_models import tiny_model

LABELS = ("yes", "no", "yes, but", "vielleicht – 東京 🙂")
DECISIONS = tuple(
    Decision(f"Is it number {number}?" + "!" * (number % 5), LABELS[: 2 + number % 3]) for number in range(24)
)
KINDS = ("llama", "gemma3_text", "qwen3_5", "mamba2")


def opened(folder: Path, **options: object) -> tuple[LanguagePreparer, LanguageEngine]:
    spec = WorkerSpec(info=read_info(folder), options=options)
    preparer = open_preparer(spec)
    engine = open_engine(spec, preparer, no_progress)
    assert isinstance(engine, LanguageEngine)
    return preparer, engine


def job_of(preparer: LanguagePreparer, request: GenerationRequest, name: str = "one") -> LanguageJob:
    job = preparer.prepare(name, Generate(request))
    assert isinstance(job, LanguageJob)
    return job


def asked(*decisions: Decision, state: str = "The state of things.") -> GenerationRequest:
    return GenerationRequest(
        model="x", messages=(Message("user", (Text(state),)),), decisions=decisions, max_tokens=0
    )


def scored(events: list[Event]) -> Scored:
    [found] = [event for event in events if isinstance(event, Scored)]
    assert isinstance(events[-1], Finished)
    return found


def echoed(
    preparer: LanguagePreparer, engine: LanguageEngine, job: LanguageJob, branch: Branch
) -> list[float]:
    """The sums of `echo` over each label of a branch, each in a prompt of its own."""
    prompts = [(*job.prompt, *branch.tokens, *label) for label in branch.labels]
    jobs = [
        job_of(
            preparer,
            GenerationRequest(model="x", prompt=prompt, echo=True, prompt_logprobs=0, max_tokens=0),
            str(number),
        )
        for number, prompt in enumerate(prompts)
    ]
    found = run(engine, *jobs)
    sums = []
    for number, label in enumerate(branch.labels):
        [echo] = [event for event in found[str(number)] if isinstance(event, PromptEcho)]
        sums.append(sum(token.logprob or 0.0 for token in echo.tokens[-len(label) :]))
    return sums


@pytest.mark.parametrize("architecture", KINDS)
def test_labels_have_the_sums_of_echoed_logprobs(architecture: str, tmp_path: Path) -> None:
    preparer, engine = opened(tiny_model(architecture, tmp_path / "model"))
    job = job_of(preparer, asked(*DECISIONS))
    found = scored(run(engine, job)["one"])
    for number in (0, 1, 2, 11, 23):
        expected = echoed(preparer, engine, job, job.branches[number])
        assert found.logprobs[number] == pytest.approx(expected, abs=1e-4)
    again = scored(run(engine, job)["one"])
    assert sum(again.logprobs, ()) == pytest.approx(sum(found.logprobs, ()), abs=1e-4)


def test_labels_that_others_begin_with_are_whole_answers(tmp_path: Path) -> None:
    preparer, _ = opened(tiny_model("llama", tmp_path / "model"))
    [branch] = job_of(preparer, asked(Decision("Is it?", ("yes", "yes, but", "no")))).branches
    ends = {label[-1] for label in branch.labels}
    assert ends == {256}, "the token of the end"
    [plain] = job_of(preparer, asked(Decision("Is it?", ("yes", "no")))).branches
    assert [len(label) for label in plain.labels] == [3, 2]


def test_labels_that_are_the_same_to_the_model_are_refused(tmp_path: Path) -> None:
    preparer, _ = opened(tiny_model("llama", tmp_path / "model"))
    with pytest.raises(ServerError, match="the same to this model"):
        job_of(preparer, asked(Decision("Is it?", ("yes", "yes"))))


def test_a_question_that_does_not_fit_the_window_is_refused(tmp_path: Path) -> None:
    preparer, _ = opened(tiny_model("llama", tmp_path / "model"), context_length=64)
    with pytest.raises(ServerError) as refused:
        job_of(preparer, asked(Decision("Is it?" * 20, ("yes", "no"))))
    assert refused.value.report.kind == "context_length_exceeded"


def test_a_path_of_several_labels_is_computed_once() -> None:
    branch = Branch((1, 2), ((5,), (6, 7, 8), (6, 7, 9), (6, 4), (3, 3)))
    pieces = pieces_of(0, branch)
    assert [piece.tokens for piece in pieces] == [(1, 2, 3), (1, 2, 6, 7)]
    scores = sorted((score.label, score.token) for piece in pieces for score in piece.scores)
    assert scores == [(0, 5), (1, 6), (1, 7), (1, 8), (2, 6), (2, 7), (2, 9), (3, 4), (3, 6), (4, 3), (4, 3)]
    [row] = distributed(pieces, 1, cuts=True)
    assert [(piece.known, piece.scores[0].place) for piece in row] == [(0, 1), (2, 2)]
    [row] = distributed(pieces, 1, cuts=False)
    assert [piece.known for piece in row] == [0, 0]


def test_what_questions_begin_with_is_computed_once_in_a_row() -> None:
    asked = [(1, 2, 3, 4), (8, 9), (1, 2, 3, 5), (8, 7), (1, 2, 3, 4)]
    pieces = [
        piece for number, tokens in enumerate(asked) for piece in pieces_of(number, Branch(tokens, ((5,),)))
    ]
    [row] = distributed(pieces, 1, cuts=True)
    assert [(piece.tokens, piece.known) for piece in row] == [
        ((1, 2, 3, 4), 0),
        ((1, 2, 3, 4), 3),
        ((1, 2, 3, 5), 3),
        ((8, 7), 0),
        ((8, 9), 1),
    ]
    rows = distributed(pieces, 3, cuts=True)
    assert sorted(piece.tokens for row in rows for piece in row) == sorted(asked)
    assert all(not row or row[0].known == 0 for row in rows)


def test_running_streams_go_on_while_labels_are_scored(tmp_path: Path) -> None:
    preparer, engine = opened(tiny_model("llama", tmp_path / "model"))
    stream = job_of(
        preparer, GenerationRequest(model="x", prompt="a", max_tokens=40, ignore_eos=True), "stream"
    )
    found = run(engine, stream, job_of(preparer, asked(*DECISIONS), "decisions"))
    assert len(scored(found["decisions"]).logprobs) == len(DECISIONS)
    assert isinstance(found["stream"][-1], Finished)


def test_a_cancelled_decision_leaves_nothing_behind(tmp_path: Path) -> None:
    preparer, engine = opened(tiny_model("llama", tmp_path / "model"))
    engine.submit(job_of(preparer, asked(*DECISIONS)))
    engine.step()
    engine.cancel("one")
    assert not engine.busy
    assert engine.batch.groups.bytes == 0
