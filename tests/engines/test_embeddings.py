"""Embeddings of a real model agree with sentence-transformers, alone and in any company."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from pippin.api.dialects.gemini.content import Content, ContentPart
from pippin.api.routes.gemini import EmbedOne, embed_task
from pippin.catalog.info import read_info
from pippin.core.errors import ServerError
from pippin.core.events import Embedded, Event
from pippin.core.models import WorkerSpec
from pippin.core.tasks import Embed
from pippin.engines import embeddings
from pippin.engines.embeddings import EmbeddingPreparer
from pippin.engines.encoding import EncodingEngine
from tests.engines.driving import no_progress, run
from tests.engines.tiny_models import tiny_model
from tests.oracles.embedding_texts import texts

pytestmark = pytest.mark.model
GOLDEN = Path(__file__).parent.parent / "data" / "minilm.npy"

Loaded = tuple[EmbeddingPreparer, EncodingEngine]


def load(folder: Path, **options: object) -> Loaded:
    spec = WorkerSpec(info=read_info(folder, kind="embeddings"), options=options, threads=1)
    preparer = embeddings.open_preparer(spec)
    return preparer, embeddings.open_engine(spec, preparer, no_progress)


@pytest.fixture(scope="module")
def loaded(minilm: Path) -> Iterator[Loaded]:
    preparer, engine = load(minilm)
    yield preparer, engine
    engine.close()


def rows(event: Event) -> npt.NDArray[np.float32]:
    assert isinstance(event, Embedded)
    return np.frombuffer(event.vectors, "<f4").reshape(-1, event.dimensions)


def embed(loaded: Loaded, *inputs: str | tuple[int, ...], **fields: object) -> npt.NDArray[np.float32]:
    preparer, engine = loaded
    job = preparer.prepare("one", Embed(inputs=inputs, **fields))  # type: ignore[arg-type]
    assert not isinstance(job, tuple)
    return rows(run(engine, job)["one"][-1])


@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.long)])
def test_two_hundred_texts_agree_with_sentence_transformers(loaded: Loaded, every: int) -> None:
    golden = np.load(GOLDEN)[::every]
    found = embed(loaded, *texts()[::every])
    assert found.shape == golden.shape == (200 // every, 384)
    assert np.abs(found - golden).max() < 1e-4
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)


def test_a_row_is_the_same_beside_other_requests(loaded: Loaded) -> None:
    preparer, engine = loaded
    chosen = texts()[20:40]
    alone = np.concatenate([embed(loaded, text) for text in chosen])
    jobs = []
    for number, text in enumerate(chosen):
        job = preparer.prepare(str(number), Embed(inputs=(text, "padding " * (number % 7 + 1))))
        assert not isinstance(job, tuple)
        jobs.append(job)
    found = run(engine, *jobs)
    together = np.stack([rows(found[str(number)][-1])[0] for number in range(len(chosen))])
    assert np.abs(alone - together).max() < 1e-5


def test_token_ids_are_the_text_they_stand_for(loaded: Loaded) -> None:
    tokens = loaded[0].tokenizer.encode("The quick brown fox").tokens
    assert np.allclose(embed(loaded, tokens), embed(loaded, "The quick brown fox"), atol=1e-6)


def test_fewer_dimensions_are_a_prefix_normalised_again(loaded: Loaded) -> None:
    whole, cut = embed(loaded, "cat"), embed(loaded, "cat", dimensions=64)
    expected = whole[:, :64] / np.linalg.norm(whole[:, :64])
    assert np.allclose(cut, expected, atol=1e-6)


def test_markers_in_a_text_are_text(loaded: Loaded) -> None:
    separator = loaded[0].tokenizer.id("[SEP]")
    assert loaded[0].tokenizer.encode("one [SEP] two").tokens.count(separator or -1) == 1


def test_an_input_that_is_too_long_is_refused_or_cut_as_asked(loaded: Loaded) -> None:
    text = "word " * 600
    with pytest.raises(ServerError, match=r"input\[0\] has 602 tokens; .* takes 256") as caught:
        embed(loaded, text)
    assert caught.value.report.kind == "context_length_exceeded"
    cut = embed(loaded, text, overflow="truncate")
    assert np.allclose(cut, embed(loaded, "word " * 254), atol=1e-6)


@pytest.mark.parametrize(
    ("task", "param"),
    [
        (Embed(inputs=("a", "")), "input[1]"),
        (Embed(inputs=((1, 10**9),)), "input[0]"),
        (Embed(inputs=("a",), dimensions=385), "dimensions"),
    ],
)
def test_what_cannot_be_embedded_is_refused_by_name(loaded: Loaded, task: Embed, param: str) -> None:
    with pytest.raises(ServerError) as caught:
        loaded[0].prepare("a", task)
    assert caught.value.report.param == param


def test_a_model_with_a_vector_for_each_token_is_refused_at_its_load(tmp_path: Path) -> None:
    """LFM2-ColBERT is an LFM2 with a dense layer behind it, as mlx-vlm tells the two apart."""
    folder = tiny_model("lfm2", tmp_path / "colbert")
    (folder / "1_Dense").mkdir()
    (folder / "1_Dense" / "config.json").write_text('{"out_features": 8}')
    mx.save_safetensors(str(folder / "1_Dense" / "model.safetensors"), {"linear.weight": mx.zeros((8, 64))})
    with pytest.raises(ServerError, match=r"it gives a vector for each token \(ColBERT\)"):
        load(folder)


def test_a_task_of_googles_chooses_the_model_s_own_prompt(minilm: Path, tmp_path: Path) -> None:
    for file in minilm.iterdir():
        if file.is_file() and file.name != "config_sentence_transformers.json":
            (tmp_path / file.name).symlink_to(file.resolve())
    prompts = {"query": "search for: ", "Classification": "sort: "}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    preparer, plain = (EmbeddingPreparer(WorkerSpec(info=read_info(each))) for each in (tmp_path, minilm))

    def tokens(preparer: Any, task: str | None, text: str) -> list[int]:
        asked = EmbedOne(content=Content(parts=ContentPart(text=text)), task_type=task)
        [sequence] = preparer.prepare("a", embed_task((asked,), "")).sequences
        return list(sequence.tokens)

    for task, prompt in (("RETRIEVAL_QUERY", "search for: "), ("classification", "sort: "), (None, "")):
        assert tokens(preparer, task, "fish") == tokens(plain, None, prompt + "fish")
    assert tokens(plain, "CLUSTERING", "fish") == tokens(plain, None, "fish"), "a model without prompts"
    with pytest.raises(ServerError, match="taskType"):
        tokens(plain, "OTHER", "fish")
