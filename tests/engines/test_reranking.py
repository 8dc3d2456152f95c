"""What a cross-encoder is given of a query and a document."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pippin.catalog.info import read_info
from pippin.core.conversation import Text
from pippin.core.models import WorkerSpec
from pippin.core.tasks import Rerank, RerankDocument
from pippin.engines.encoding import EncodingJob
from pippin.engines.reranking import RerankingPreparer, _yes_and_no


@pytest.mark.model
@pytest.mark.parametrize(
    ("settings", "begin"),
    [
        ({"prompts": {"query": "Find: "}, "default_prompt_name": "query"}, "Find: "),
        ({"prompts": {"query": "Find: "}, "default_prompt_name": None}, ""),
        ({}, ""),
    ],
)
def test_a_query_begins_with_the_prompt_that_the_folder_names_for_all(
    minilm: Path, tmp_path: Path, settings: dict[str, Any], begin: str
) -> None:
    for file in minilm.iterdir():
        if file.is_file():
            (tmp_path / file.name).symlink_to(file.resolve())
    for name, content in (
        ("config.json", {"model_type": "bert", "architectures": ["BertForSequenceClassification"]}),
        ("config_sentence_transformers.json", settings),
    ):
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).write_text(json.dumps(content))
    preparer = RerankingPreparer(WorkerSpec(info=read_info(tmp_path, kind="reranking")))
    job = preparer.prepare("one", Rerank(query="Where?", documents=(RerankDocument((Text("Here."),)),)))
    assert isinstance(job, EncodingJob)
    assert job.sequences == (preparer.tokenizer.encode(f"{begin}Where?", "Here."),)


def test_the_tokens_of_the_answers_are_those_that_the_folder_names(tmp_path: Path) -> None:
    words = {"yes": 5, "no": 6}
    preparer: Any = SimpleNamespace(folder=tmp_path, tokenizer=SimpleNamespace(id=words.get), info=None)
    assert _yes_and_no(preparer) == (5, 6)
    (tmp_path / "1_LogitScore").mkdir()
    named = {"true_token_id": 16, "false_token_id": 15}
    (tmp_path / "1_LogitScore" / "config.json").write_text(json.dumps(named))
    assert _yes_and_no(preparer) == (16, 15)
