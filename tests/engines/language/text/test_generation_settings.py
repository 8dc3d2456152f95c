"""What a tokenizer takes from the files beside its own."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pippin.catalog.info import read_info
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.requests import GenerationRequest, Sampling
from pippin.core.tasks import Generate
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.prompt.preparer import open_preparer
from pippin.engines.language.text.tokenizer import Tokenizer
from tests.engines.tiny_models import TinyModels


@pytest.fixture
def folder(tiny_models: TinyModels, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_models("llama"), tmp_path / "m"))


def test_settings_that_change_no_answer_are_named_in_the_log(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {
        "num_beams": 4,
        "top_h": None,
        "guidance_scale": 1.0,
        "no_repeat_ngram_size": 3,
        "encoder_repetition_penalty": 1.2,
        "bad_words_ids": [[7], [8, 9]],
        "top_p": 0.9,
    }
    (folder / "generation_config.json").write_text(json.dumps(settings))
    Tokenizer.load(folder)
    told = [record.getMessage() for record in caplog.records if record.name.startswith("pippin")]
    assert told == [
        "generation_config.json sets num_beams, encoder_repetition_penalty, which change no answer here"
    ]


def test_what_a_checkpoint_asks_of_every_answer_is_asked(folder: Path) -> None:
    settings = {
        "suppress_tokens": [7, 9],
        # As in transformers, the end is no bad word; what is forbidden and biased is forbidden.
        "bad_words_ids": [[11], [12, 13], [256]],
        "sequence_bias": [[[7], 5.0], [[11], 5.0], [[14], -1.5], [[15, 16], 2.0]],
        "stop_strings": ["END"],
        "min_new_tokens": 3,
    }
    (folder / "generation_config.json").write_text(json.dumps(settings))
    prepared = open_preparer(
        WorkerSpec(info=ModelInfo(id="m", kind="language", path=str(folder), architecture="llama"))
    )
    request = GenerationRequest(
        model="m", prompt="text", stop=("me",), sampling=Sampling(logit_bias={9: 1.0, 10: 2.0})
    )
    job = prepared.prepare("one", Generate(request))
    assert isinstance(job, LanguageJob)
    assert job.request.sampling.logit_bias == {7: -100.0, 9: 1.0, 10: 2.0, 11: -100.0, 14: -1.5}
    assert job.stops == ("me", "END")
    assert job.request.min_tokens == 3


def test_a_checkpoint_biases_no_token_that_the_model_does_not_have(folder: Path) -> None:
    # Written beyond the row of logits it would change another row, or memory that is no logit.
    settings = {
        "suppress_tokens": [7, 10**6, -1],
        "bad_words_ids": [[10**6]],
        "sequence_bias": [[[8], float("nan")], [[9], float("-inf")]],
        "stop_strings": ["", "END"],
    }
    (folder / "generation_config.json").write_text(json.dumps(settings))
    prepared = open_preparer(
        WorkerSpec(info=ModelInfo(id="m", kind="language", path=str(folder), architecture="llama"))
    )
    job = prepared.prepare("one", Generate(GenerationRequest(model="m", prompt="text")))
    assert isinstance(job, LanguageJob)
    assert job.request.sampling.logit_bias == {7: -100.0, 9: -100.0}
    assert job.stops == ("END",)


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"suppress_tokens": [None]}, "suppress_tokens"),
        ({"suppress_tokens": 5}, "suppress_tokens"),
        ({"bad_words_ids": [5]}, "bad_words_ids"),
        ({"sequence_bias": {"[5]": 1.0}}, "sequence_bias"),
        ({"sequence_bias": [[[5], "x"]]}, "sequence_bias"),
        ({"stop_strings": [1]}, "stop_strings"),
        ({"min_new_tokens": "5"}, "min_new_tokens"),
        ({"min_new_tokens": -1}, "min_new_tokens"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size"),
        ({"temperature": "0.7"}, "temperature"),
        ({"temperature": float("inf")}, "temperature .*<= 100"),
        ({"top_p": 95}, "top_p .*<= 1"),
        ({"top_k": True}, "top_k"),
        ({"do_sample": "yes"}, "do_sample"),
        ({"eos_token_id": "<|end|>"}, "eos_token_id"),
    ],
)
def test_settings_of_no_use_are_refused_by_name_when_the_model_is_loaded(
    folder: Path, settings: dict[str, object], where: str
) -> None:
    (folder / "generation_config.json").write_text(json.dumps(settings))
    with pytest.raises(ServerError, match=rf"generation_config.json .*{where}"):
        Tokenizer.load(folder)


@pytest.mark.parametrize(
    ("settings", "drawn"),
    [
        ({"top_p": 0}, Sampling(top_k=1)),
        ({"top_k": -1, "repetition_penalty": 0, "min_p": None}, Sampling()),
    ],
)
def test_what_stands_for_off_is_off(folder: Path, settings: dict[str, object], drawn: Sampling) -> None:
    (folder / "generation_config.json").write_text(json.dumps(settings))
    Tokenizer.load(folder)
    assert read_info(folder).sampling == drawn


def test_the_ends_of_all_files_end_an_answer(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": [250, 251]}))
    (folder / "generation_config.json").write_text('{"eos_token_id": 252, "max_time": Infinity}')
    assert Tokenizer.load(folder).eos == {250, 251, 252, 256}


def test_an_end_that_only_the_text_model_names_is_no_word(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    inner = {name: value for name, value in config.items() if name != "eos_token_id"}
    written = {"model_type": "llava", "eos_token_id": 256, "text_config": {**inner, "eos_token_id": 2}}
    (folder / "config.json").write_text(json.dumps(written))
    assert Tokenizer.load(folder).eos == {256}


OWN, OF_PROCESSOR, OF_TOKENIZER = "{{ 'own' }}", "{{ 'processor' }}", "{{ 'tokenizer' }}"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"chat_template.json": {"chat_template": OF_PROCESSOR}}, {"default": OF_PROCESSOR}),
        ({"processor_config.json": {"chat_template": OF_PROCESSOR}}, {"default": OF_PROCESSOR}),
        (
            {
                "tokenizer_config.json": {"chat_template": OF_TOKENIZER},
                "chat_template.json": {"chat_template": OF_PROCESSOR},
            },
            {"default": OF_PROCESSOR},
        ),
        (
            {"chat_template.jinja": "\ufeff" + OWN, "chat_template.json": {"chat_template": OF_PROCESSOR}},
            {"default": OWN},
        ),
        (
            {"chat_template.jinja": OWN, "additional_chat_templates/tool_use.jinja": OF_TOKENIZER},
            {"default": OWN, "tool_use": OF_TOKENIZER},
        ),
        ({"tokenizer_config.json": {"chat_template": {"default": OF_TOKENIZER}}}, {"default": OF_TOKENIZER}),
        ({"chat_template.jinja": ""}, {}),
    ],
)
def test_a_chat_template_is_found_wherever_publishers_put_it(
    folder: Path, files: dict[str, Any], found: dict[str, str]
) -> None:
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    (folder / "additional_chat_templates").mkdir()
    for name, content in {"tokenizer_config.json": {}, **files}.items():
        written = content if isinstance(content, str) else json.dumps(content)
        if name == "tokenizer_config.json":
            written = json.dumps({**settings, **content})
        (folder / name).write_text(written, "utf-8")
    assert Tokenizer.load(folder).chat_templates == found
    # The catalog says of the folder what its worker finds.
    assert read_info(folder).capabilities.chat == bool(found)


@pytest.mark.parametrize(
    ("file", "fields", "what"),
    [
        ("tokenizer_config.json", {"eos_token": 1}, "tokenizer_config.json .*eos_token"),
        ("tokenizer_config.json", {"chat_template": [1]}, "tokenizer_config.json .*chat_template"),
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": {"256": {"content": "<|end|>", "lstrip": None}}},
            "tokenizer_config.json .*added_tokens_decoder",
        ),
        ("special_tokens_map.json", {"bos_token": {"content": 1}}, r"special_tokens_map.json .*bos_token"),
        ("added_tokens.json", {"<|end|>": "256"}, r"added_tokens.json .*<\|end\|>"),
        ("tokenizer.json", {"truncation": 1}, "tokenizer.json in .*TruncationParams"),
    ],
)
def test_a_field_of_the_tokenizer_that_is_wrong_is_named_with_its_file(
    folder: Path, file: str, fields: dict[str, Any], what: str
) -> None:
    path = folder / file
    said = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**said, **fields}))
    with pytest.raises(ServerError, match=what):
        Tokenizer.load(folder)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("", "is empty"),
        ("version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ("<html>", "a web page"),
    ],
)
def test_a_tokenizer_that_holds_something_else_is_told(folder: Path, content: str, what: str) -> None:
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(ServerError, match=what):
        Tokenizer.load(folder)
