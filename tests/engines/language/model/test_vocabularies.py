"""Tokenizers with more tokens than the model has embeddings for, as CodeLlama's was published."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend

from pippin.config.options.model import ModelOptions
from pippin.core.conversation import Message, Text
from pippin.core.errors import ServerError
from pippin.core.events import Detokenized, Finished
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.requests import GenerationRequest, JsonObject, Sampling, Thinking
from pippin.core.tasks import Detokenize, Generate
from pippin.engines.encoding import EncodingTokenizer
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.prompt.preparer import LanguagePreparer
from tests.engines.driving import run
from tests.engines.language.bench import Bench
from tests.engines.tiny_models import TinyModels

ROWS = 260
EXTRA = "<extra_270>"


@pytest.fixture(scope="module")
def folder(tiny_models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows") / "llama"
    shutil.copytree(tiny_models("llama", vocab_size=ROWS), folder)
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.add_tokens([f"<extra_{token}>" for token in range(257, 300)])
    backend.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def bench(folder: Path) -> Bench:
    return Bench(folder, ModelOptions())


@pytest.fixture(scope="module")
def preparer(folder: Path, bench: Bench) -> LanguagePreparer:
    spec = WorkerSpec(info=ModelInfo(id="m", kind="language", path=str(folder)), options={})
    return LanguagePreparer(spec, bench.tokenizer)


def refused(preparer: LanguagePreparer, **request: Any) -> tuple[str, str | None]:
    with pytest.raises(ServerError) as caught:
        preparer.prepare("j", Generate(GenerationRequest(model="m", **request)))
    assert caught.value.report.kind == "invalid_request"
    return caught.value.report.message, caught.value.report.param


def test_a_token_without_an_embedding_is_refused_by_position(preparer: LanguagePreparer) -> None:
    message, field = refused(preparer, prompt=(65, 270, 66))
    assert (field, "token 270" in message, "position 1" in message, "0 to 259" in message) == (
        "prompt",
        True,
        True,
        True,
    )


def test_a_text_that_spells_such_a_token_is_refused(preparer: LanguagePreparer) -> None:
    message, field = refused(preparer, prompt=f"a{EXTRA}b")
    assert field == "prompt"
    assert repr(EXTRA) in message
    message, field = refused(preparer, messages=(Message("user", (Text(f"a{EXTRA}b"),)),))
    assert field == "messages"
    assert repr(EXTRA) in message


def test_such_a_token_is_refused_in_other_fields(preparer: LanguagePreparer) -> None:
    assert refused(preparer, prompt="a", sampling=Sampling(logit_bias={270: 5.0}))[1] == "logit_bias"
    assert refused(preparer, prompt="a", stop_token_ids=(270,))[1] == "stop_token_ids"
    assert refused(preparer, prompt="a", sampling=Sampling(top_k=280))[1] == "top_k"
    thinking = Thinking(budget=3, start_marker="<a>", end_marker=EXTRA)
    messages = (Message("user", (Text("a"),)),)
    assert refused(preparer, messages=messages, thinking=thinking)[1] == "thinking_budget"


def test_a_prediction_ends_before_such_a_token(preparer: LanguagePreparer) -> None:
    request = GenerationRequest(model="m", prompt="a", prediction=f"bc{EXTRA}d")
    job = preparer.prepare("j", Generate(request))
    assert isinstance(job, LanguageJob)
    assert job.prediction == tuple(preparer.tokenizer.encode("bc"))


def test_the_tokenizer_still_spells_such_a_token(preparer: LanguagePreparer) -> None:
    assert preparer.prepare("j", Detokenize((270,))) == (Detokenized(EXTRA),)


def test_a_structured_answer_has_no_such_token(preparer: LanguagePreparer, bench: Bench) -> None:
    request = GenerationRequest(model="m", prompt="a", max_tokens=12, output_format=JsonObject())
    job = preparer.prepare("j", Generate(request))
    assert isinstance(job, LanguageJob)
    assert isinstance(run(bench.engine, job)["j"][-1], Finished)


def test_rows_are_told_by_the_model_where_its_configuration_does_not(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "llama"
    shutil.copytree(folder, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "text_config": {"vocab_size": 300}}))
    assert Bench(other, ModelOptions()).tokenizer.rows == ROWS


def test_a_text_for_an_encoder_is_refused_likewise(folder: Path) -> None:
    tokenizer = EncodingTokenizer(folder, 64)
    with pytest.raises(ServerError, match="token 270 of the tokenizer"):
        tokenizer.encode(f"a{EXTRA}b")
    with pytest.raises(ServerError, match="0 to 259"):
        tokenizer.checked((65, 270), "input")
