"""The labels of decisions get the log probabilities that the model gives them after the whole prompt."""

from pathlib import Path

import pytest

from pippin.catalog.info import read_info
from pippin.core.conversation import Image, Inline, Message, Text
from pippin.core.errors import ServerError
from pippin.core.events import Event, Finished, PromptEcho, Scored
from pippin.core.models import WorkerSpec
from pippin.core.requests import Decision, GenerationRequest
from pippin.core.tasks import Generate
from pippin.engines.language import open_engine, open_preparer
from pippin.engines.language.job import Branch, LanguageJob
from pippin.engines.language.kv_cache.layout import computed_prompt
from pippin.engines.language.loading.engine import LanguageEngine
from pippin.engines.language.prompt.preparer import LanguagePreparer
from pippin.engines.language.step.branches import Chunk, Scoring, dealt, pieces_of
from tests.engines.driving import no_progress, run
from tests.engines.language.vision.tiny_vision_models import picture, tiny_vision_model
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
    pieces = pieces_of([branch], cuts=True)
    assert [(piece.tokens, piece.known, piece.scores[0].place) for piece in pieces] == [
        ((1, 2, 3), 0, 1),
        ((1, 2, 6, 7), 2, 2),
    ]
    scores = sorted((score.label, score.token) for piece in pieces for score in piece.scores)
    assert scores == [(0, 5), (1, 6), (1, 7), (1, 8), (2, 6), (2, 7), (2, 9), (3, 4), (3, 6), (4, 3), (4, 3)]
    assert [piece.known for piece in pieces_of([branch], cuts=False)] == [0, 0]


def test_what_questions_begin_with_is_computed_once_in_a_row() -> None:
    asked = [(1, 2, 3, 4), (8, 9), (1, 2, 3, 5), (8, 7), (1, 2, 3, 4), (8, 7, 5)]
    pieces = pieces_of([Branch(tokens, ((5,), (6,))) for tokens in asked], cuts=True)
    assert [(piece.tokens, piece.known) for piece in pieces] == [
        ((1, 2, 3, 4), 0),
        ((1, 2, 3, 5), 3),
        ((8, 7), 0),
        ((8, 7, 5), 2),
        ((8, 9), 1),
    ]
    scored = sorted((score.branch, score.token) for piece in pieces for score in piece.scores)
    assert scored == [(number, token) for number in range(len(asked)) for token in (5, 6)]
    rows = dealt(pieces, 3)
    assert [piece.tokens for row in rows for piece in row] == [piece.tokens for piece in pieces]
    assert all(row[0].known == 0 for row in rows)


def test_many_questions_take_few_passes_and_tokens() -> None:
    asked = [(opening, *range(9), word, 1, 2, 3) for opening in range(4) for word in range(100, 116)]
    rows = dealt(pieces_of([Branch(tokens, ((5,), (6,))) for tokens in asked], cuts=True), 8)
    assert [len(row) for row in rows] == [8] * 8, "passes of eight rows"
    assert sum(len(piece.tokens) - piece.known for row in rows for piece in row) == 64 * 4 + 8 * 10


def test_a_pass_takes_a_piece_of_every_row_unless_most_of_them_are_too_many(tmp_path: Path) -> None:
    preparer, engine = opened(tiny_model("llama", tmp_path / "model"))
    job = job_of(preparer, asked(*(Decision(f"Is it {number}?", ("a", "b")) for number in range(16))))
    layout = engine.batch.groups.layout
    scoring = Scoring(job, computed_prompt(engine.model, list(job.prompt)), layout, 4)
    every = scoring.take(1000)
    count = sum(len(chunk.tokens) for chunk in every)
    assert len(every) == 4
    scoring = Scoring(job, computed_prompt(engine.model, list(job.prompt)), layout, 4)
    assert len(scoring.take((count + 1) // 2)) == 4
    assert len(scoring.take(1)) == 1


def test_many_questions_are_scored_in_few_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preparer, engine = opened(tiny_model("llama", tmp_path / "model"), prefill_chunk=256)
    taken: list[int] = []
    take = Scoring.take

    def counted(scoring: Scoring, most: int) -> list[Chunk]:
        chunks = take(scoring, most)
        taken.append(len(chunks))
        return chunks

    monkeypatch.setattr(Scoring, "take", counted)
    questions = (Decision(f"Is it {number}?", ("a", "b")) for number in range(64))
    scored(run(engine, job_of(preparer, asked(*questions)))["one"])
    assert len(taken) <= 8 + 2, (
        "eight questions for each of eight rows, and what a step begins or ends within"
    )


def test_a_question_stands_beside_its_picture_as_in_a_chat(tmp_path: Path) -> None:
    preparer, _ = opened(tiny_vision_model("qwen3_vl", tmp_path / "model"))
    state, shown = Message("user", (Text("The state."),)), Image(Inline(picture(40, 30, 1)))
    for before, after in ((("Is it",), " a cat?"), ((), "Is it a cat?"), (("What is it?",), "")):
        parts = (*map(Text, before), shown)
        asked = GenerationRequest(
            model="x",
            messages=(state, Message("user", parts)),
            continue_final=True,
            decisions=(Decision(after, ("yes", "no")),),
            max_tokens=0,
        )
        said = (*parts, Text(after)) if after else parts
        chat = GenerationRequest(model="x", messages=(state, Message("user", said)), max_tokens=1)
        decided, whole = job_of(preparer, asked), job_of(preparer, chat)
        [branch] = decided.branches
        assert (*decided.prompt, *branch.tokens) == whole.prompt
        assert decided.media is not None


def test_running_streams_go_on_while_labels_are_scored(tmp_path: Path) -> None:
    preparer, engine = opened(tiny_model("llama", tmp_path / "model"))
    stream = job_of(
        preparer, GenerationRequest(model="x", prompt="a", max_tokens=40, ignore_eos=True), "stream"
    )
    found = run(engine, stream, job_of(preparer, asked(*DECISIONS), "decisions"))
    assert len(scored(found["decisions"]).logprobs) == len(DECISIONS)
    assert isinstance(found["stream"][-1], Finished)


def test_chunks_may_end_before_the_first_scored_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside running streams a step may have so little time that no token of an answer is reached."""
    preparer, engine = opened(tiny_model("llama", tmp_path / "model"))
    expected = scored(run(engine, job_of(preparer, asked(*DECISIONS)))["one"]).logprobs
    monkeypatch.setattr(engine.scheduler, "chunk", lambda **_: 2)
    found = scored(run(engine, job_of(preparer, asked(*DECISIONS), "small"))["small"]).logprobs
    assert sum(found, ()) == pytest.approx(sum(expected, ()), abs=1e-4)


def test_a_cancelled_decision_leaves_nothing_behind(tmp_path: Path) -> None:
    preparer, engine = opened(tiny_model("llama", tmp_path / "model"))
    engine.submit(job_of(preparer, asked(*DECISIONS)))
    engine.step()
    engine.cancel("one")
    assert not engine.busy
    assert engine.batch.groups.bytes == 0
