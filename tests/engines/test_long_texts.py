"""Texts for encoders that are far longer than a model takes: refused or cut before all of them is tokenized."""

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.catalog.info import read_info
from pippin.core.conversation import Text
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.models import WorkerSpec
from pippin.core.tasks import Embed, Rerank, RerankDocument, Task
from pippin.engines import encoding
from pippin.engines.embeddings import EmbeddingPreparer
from pippin.engines.encoding import EncodingJob, EncodingTokenizer
from pippin.engines.reranking import INSTRUCTION, PREFIX, SUFFIX, RerankingPreparer
from tests.engines.tiny_models import tiny_model

LONG = "A word, and then another one; " * 300_000
Preparer = EmbeddingPreparer | RerankingPreparer


class Counting:
    """A tokenizer that counts the characters that it is given."""

    def __init__(self, backend: Any) -> None:
        self.characters = 0
        self._backend = backend

    def encode(self, text: str, pair: str | None = None, **how: bool) -> Any:
        self.characters += len(text) + len(pair or "")
        return self._backend.encode(text, pair, **how)

    def encode_batch_fast(self, texts: list[str], **how: bool) -> Any:
        self.characters += sum(map(len, texts))
        return self._backend.encode_batch_fast(texts, **how)


def counted(preparer: Preparer) -> Counting:
    tokenizer: Any = preparer.tokenizer
    tokenizer._plain = Counting(tokenizer._plain)
    return tokenizer._plain  # type: ignore[no-any-return]


@pytest.fixture
def embedder(minilm: Path) -> EmbeddingPreparer:
    return EmbeddingPreparer(WorkerSpec(info=read_info(minilm)))


@pytest.fixture
def classifier(minilm: Path, tmp_path: Path) -> RerankingPreparer:
    """Only its tokenizer is read."""
    for file in minilm.iterdir():
        if file.is_file() and file.name != "config.json":
            (tmp_path / file.name).symlink_to(file.resolve())
    config = json.loads((minilm / "config.json").read_text())
    config["architectures"] = ["BertForSequenceClassification"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    return RerankingPreparer(WorkerSpec(info=read_info(tmp_path, kind="reranking")))


@pytest.fixture
def reader(tmp_path: Path) -> RerankingPreparer:
    """A language model that scores, with room for 512 tokens."""
    folder = tiny_model("qwen3", tmp_path / "tiny")
    options = {"embedding_max_length": 512}
    return RerankingPreparer(WorkerSpec(info=read_info(folder, kind="reranking"), options=options))


def job(preparer: Preparer, task: Task) -> EncodingJob:
    prepared = preparer.prepare("r", task)
    assert isinstance(prepared, EncodingJob)
    return prepared


def refusal(preparer: Preparer, task: Task) -> ErrorReport:
    with pytest.raises(ServerError) as caught:
        preparer.prepare("r", task)
    return caught.value.report


def ranking(
    query: str,
    *documents: str,
    instruction: str | None = None,
    overflow: Literal["error", "truncate"] | None = None,
) -> Rerank:
    listed = tuple(RerankDocument((Text(text),)) for text in documents)
    return Rerank(query=query, documents=listed, instruction=instruction, overflow=overflow)


@pytest.mark.model
def test_a_text_that_can_not_be_embedded_is_refused_before_all_of_it_is_tokenized(
    embedder: EmbeddingPreparer,
) -> None:
    read = counted(embedder)
    told = refusal(embedder, Embed(inputs=("short", LONG)))
    assert (told.kind, told.param) == ("context_length_exceeded", "input[1]")
    assert "tokens or more; all-minilm-l6-v2 takes 256" in told.message
    assert read.characters < 100_000 < len(LONG)


@pytest.mark.model
def test_a_text_that_is_cut_is_not_tokenized_to_its_end(embedder: EmbeddingPreparer) -> None:
    whole = job(embedder, Embed(inputs=(LONG[:30_000],), overflow="truncate"))
    read = counted(embedder)
    cut = job(embedder, Embed(inputs=(LONG,), overflow="truncate"))
    assert cut.sequences == whole.sequences
    assert read.characters < 100_000 < len(LONG)


@pytest.mark.model
@settings(max_examples=15, deadline=None)
@given(words=st.lists(st.sampled_from(["a", "naïve ", "x" * 300, "über", " ", "\n", "中文", "𝄞", "e\u0301"])))
def test_the_cut_changes_no_token(words: list[str], minilm: Path) -> None:
    tokenizer = EncodingTokenizer(minilm, 40)
    text = "".join(words) * 60
    whole = tokenizer._plain.encode(text).ids
    cut = tokenizer.encode(text, truncating=True).tokens
    assert list(cut[:39]) == whole[:39]
    assert cut[-1] == whole[-1]


@pytest.mark.model
@pytest.mark.parametrize("query", ["short", LONG], ids=["document", "query"])
def test_a_long_pair_is_refused_or_cut_before_all_of_it_is_tokenized(
    classifier: RerankingPreparer, query: str
) -> None:
    document = "short" if query is LONG else LONG
    short = job(classifier, ranking(query[:30_000], document[:30_000], overflow="truncate"))
    read = counted(classifier)
    told = refusal(classifier, ranking(query, document))
    assert (told.kind, told.param) == ("context_length_exceeded", "documents[0]")
    assert job(classifier, ranking(query, document, overflow="truncate")).sequences == short.sequences
    assert read.characters < 200_000 < len(LONG)


def test_a_long_question_is_refused_or_cut_before_all_of_it_is_tokenized(reader: RerankingPreparer) -> None:
    read = counted(reader)
    told = refusal(reader, ranking("q", LONG))
    assert (told.kind, told.param) == ("context_length_exceeded", "documents[0]")
    (cut,) = job(reader, ranking("q", LONG, overflow="truncate")).sequences
    assert len(cut.tokens) == 512
    assert cut.tokens[-len(reader.tokenizer.template(SUFFIX)) :] == reader.tokenizer.template(SUFFIX)
    assert read.characters < 200_000 < len(LONG)


def test_a_reranker_whose_own_prompt_leaves_no_room_does_not_load(reader: RerankingPreparer) -> None:
    frame = len(
        reader.tokenizer.template(f"{PREFIX}<Instruct>: {INSTRUCTION}\n<Query>: \n<Document>: {SUFFIX}")
    )

    def opened(limit: int) -> RerankingPreparer:
        return RerankingPreparer(WorkerSpec(info=reader.info, options={"embedding_max_length": limit}))

    for limit in (frame - 10, frame):
        with pytest.raises(ServerError, match="raise embedding_max_length"):
            opened(limit)
    (cut,) = job(opened(frame + 1), ranking("q", LONG, overflow="truncate")).sequences
    assert len(cut.tokens) == frame + 1


@pytest.mark.parametrize("overflow", ["error", "truncate"])
@pytest.mark.parametrize("instruction", ["find it " * 100, LONG], ids=["above the limit", "endless"])
def test_an_instruction_that_leaves_no_room_is_refused_by_name(
    reader: RerankingPreparer, instruction: str, overflow: Literal["error", "truncate"]
) -> None:
    read = counted(reader)
    told = refusal(reader, ranking("q", "d", instruction=instruction, overflow=overflow))
    assert (told.kind, told.param) == ("context_length_exceeded", "instruction")
    assert read.characters < 100_000


@pytest.mark.model
def test_an_instruction_is_refused_by_a_reranker_that_reads_none(classifier: RerankingPreparer) -> None:
    told = refusal(classifier, ranking("q", "d", instruction="find it"))
    assert (told.kind, told.param) == ("unsupported", "instruction")


def test_markers_in_an_instruction_are_text(reader: RerankingPreparer) -> None:
    marker = next(iter(reader.tokenizer._tokenizer.get_added_tokens_decoder().values())).content
    (plain,) = job(reader, ranking("q", "d", instruction="find it")).sequences
    (marked,) = job(reader, ranking("q", "d", instruction=f"find {marker}it")).sequences
    assert marked.tokens.count(reader.tokenizer.id(marker) or -1) == plain.tokens.count(
        reader.tokenizer.id(marker) or -1
    )


def test_a_small_body_does_not_come_to_millions_of_tokens(
    reader: RerankingPreparer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "MOST_TOKENS", 20_000)
    assert len(job(reader, ranking("q", *["d"] * 20)).sequences) == 20
    told = refusal(reader, ranking("q", *["d"] * 1000))
    assert told.kind == "invalid_request"
    assert told.message.startswith("'documents' has more than 20000 tokens in all")


def test_token_ids_beyond_the_limit_are_refused_before_each_is_looked_at(minilm: Path) -> None:
    preparer = EmbeddingPreparer(WorkerSpec(info=read_info(minilm)))
    told = refusal(preparer, Embed(inputs=((10**9,) * 300,)))
    assert told.kind == "context_length_exceeded"
    assert "has 300 tokens" in told.message
