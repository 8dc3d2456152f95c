"""What the files of a Whisper folder say is honoured, or refused by name."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from pippin.core.errors import ServerError
from pippin.engines.transcription import prepare_whisper
from pippin.engines.whisper import settings as read
from pippin.engines.whisper.choosing import Chooser, ratio_of
from pippin.engines.whisper.settings import Settings

WORDS = {"a": 0, "b": 1, " ": 2, "<|end|>": 3, "<|start|>": 4, "<|en|>": 5, "<|de|>": 6, "<|translate|>": 7,
         "<|transcribe|>": 8, "<|prev|>": 9, "<|no|>": 10, "<|30.00|>": 1511}  # fmt: skip
TIMES = 11  # the first; of 1501 that the tokenizer has, the model draws 20
ROWS = 31


class Tokenizer:
    """Of eleven words, the last ones without a text, and twenty times."""

    eot, sot, translate, transcribe, sot_prev, no_timestamps, timestamp_begin = 3, 4, 7, 8, 9, 10, TIMES
    sot_lm, no_speech, non_speech_tokens, all_language_tokens = 9, None, (1,), (5, 6)
    hf_tokenizer = SimpleNamespace(
        get_vocab=lambda: WORDS,
        convert_ids_to_tokens=lambda id_: next(word for word in WORDS if WORDS[word] == id_),
    )

    def encode(self, text: str) -> list[int]:
        return [2]


def model(**dims: int) -> Any:
    sizes = {"n_vocab": ROWS, "n_audio_state": 8, "n_mels": 80, "n_text_layer": 2, "n_text_head": 4, **dims}
    return SimpleNamespace(dims=SimpleNamespace(**sizes), is_multilingual=True)


def said(folder: Path, file: str = "generation_config.json", **fields: Any) -> Settings:
    (folder / file).write_text(json.dumps(fields))
    return read.read_settings(model(), Tokenizer(), folder, "tiny")


def test_without_a_file_openais_own_choice_counts(tmp_path: Path) -> None:
    found = read.read_settings(model(), Tokenizer(), tmp_path, "tiny")
    assert (sorted(found.biases), found.first, found.latest) == ([1, 4, 7, 8, 9], (2, 3), 50)


def test_what_the_file_leaves_out_forbids_nothing(tmp_path: Path) -> None:
    assert said(tmp_path, max_length=448) == Settings({}, (), None)


def test_all_that_is_said_counts(tmp_path: Path) -> None:
    found = said(
        tmp_path,
        suppress_tokens=[1, 99, -1],
        begin_suppress_tokens=[2],
        bad_words_ids=[[0]],
        max_initial_timestamp_index=4,
        repetition_penalty=1.5,
        lang_to_id={"<|de|>": 6},
        no_speech_threshold=0.2,
        condition_on_prev_tokens=False,
        alignment_heads=[[1, 3], [0, 2]],
    )
    assert found.alignment_heads == ((1, 3), (0, 2))
    assert found.biases.keys() == {0, 1}
    assert (found.biases[1], found.first, found.latest, found.repetition_penalty) == (-math.inf, (2,), 4, 1.5)
    assert found.languages == {"de"}
    assert found.arguments == {"no_speech_threshold": 0.2, "condition_on_previous_text": False}


@pytest.mark.parametrize(
    ("fields", "language"),
    [
        ({"language": "<|de|>"}, "de"),
        ({"language": "german"}, "german"),
        ({"forced_decoder_ids": [[1, 6], [2, 8]]}, "de"),
        ({"forced_decoder_ids": [[1, 6]], "language": "en"}, "en"),
        ({"forced_decoder_ids": [[1, None], [2, 8]]}, None),
        ({"forced_decoder_ids": [[1, 6]], "task": "transcribe"}, None),
        ({}, None),
    ],
)
def test_the_language_is_the_one_that_is_said(fields: Any, language: str | None, tmp_path: Path) -> None:
    assert said(tmp_path, **fields).language == language
    if "forced_decoder_ids" in fields and len(fields) == 1:
        said(tmp_path, "config.json", **fields)
        assert said(tmp_path).language == language


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("decoder_start_token_id", 5),
        ("no_timestamps_token_id", 9),
        ("prev_sot_token_id", 4),
        ("eos_token_id", [3, 0]),
        ("lang_to_id", {"<|de|>": 5}),
        ("task_to_id", {"translate": 8}),
        ("is_multilingual", False),
        ("no_repeat_ngram_size", 2),
        ("min_new_tokens", 1),
        ("sequence_bias", [[[0, 1], 2.0]]),
        ("max_initial_timestamp_index", -1),
        ("language", 3),
        ("alignment_heads", [[0, 1], [2, 0]]),
        ("alignment_heads", [[0, 4]]),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(field: str, value: Any, tmp_path: Path) -> None:
    name = {"lang_to_id": r"<\|de\|> 5", "task_to_id": r"<\|translate\|> 8"}.get(field, field)
    with pytest.raises(ServerError, match=rf"generation_config\.json of .*{name}"):
        said(tmp_path, **{field: value})


@pytest.mark.parametrize("file", ["weights.npz", "model.safetensors"])
def test_words_have_the_times_of_the_heads_that_are_published(file: str, tmp_path: Path) -> None:
    """generation_config.json names them; conversions by MLX's own examples have them among the weights."""
    found: list[Any] = []
    made = model()
    made.encoder = SimpleNamespace(conv1=SimpleNamespace(weight=mx.zeros(1)))
    made.get_tokenizer, made.set_alignment_heads = Tokenizer, found.append
    (tmp_path / "vocab.json").touch()
    prepare_whisper(made, "tiny", tmp_path)
    assert found == []
    arrays = {"alignment_heads": mx.array([[1, 0], [1, 3]]).astype(mx.float16)}
    if file.endswith("npz"):
        mx.savez(str(tmp_path / file), **arrays)
    else:
        mx.save_safetensors(str(tmp_path / file), arrays)
    prepare_whisper(made, "tiny", tmp_path)
    (tmp_path / "generation_config.json").write_text('{"alignment_heads": [[0, 2]]}')
    prepare_whisper(made, "tiny", tmp_path)
    assert found == [[[1, 0], [1, 3]], [[0, 2]]]


def test_times_in_other_places_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORDS, "<|30.00|>", 1510)
    with pytest.raises(ServerError, match=r"<\|30\.00\|> 1511"):
        said(tmp_path)


@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json", "processor_config.json"])
@pytest.mark.parametrize(
    ("field", "value"), [("hop_length", 128), ("dither", 0.1), ("feature_size", 128), ("encoder_ffn_dim", 48)]
)
def test_features_of_another_kind_are_refused_by_name(
    file: str, field: str, value: Any, tmp_path: Path
) -> None:
    told = {"hop_length": 160, "feature_size": 80, field: value}
    nested = file.startswith("processor")
    (tmp_path / file).write_text(json.dumps({"feature_extractor": told} if nested else told))
    with pytest.raises(ValueError, match=f"{field} {value}"):
        read.refuse_unread(model(), tmp_path, {})


def test_a_head_that_is_not_the_embedding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"tie_word_embeddings": false}')
    with pytest.raises(ValueError, match=r"proj_out\.weight"):
        read.refuse_unread(model(), tmp_path, {"proj_out.weight": mx.zeros(1)})


def drawn(settings: Settings, seed: int) -> list[int]:
    random, tokens = np.random.default_rng(seed), [[4, 5, 8]]
    chooser = Chooser(settings, Tokenizer(), 3, ROWS)
    while len(tokens[0]) < 40 and tokens[0][-1] != Tokenizer.eot:
        logits = chooser.apply(mx.array(random.normal(0, 3, (1, ROWS)).astype(np.float32)), mx.array(tokens))
        tokens[0].append(int(logits.argmax()))
    return tokens[0][3:]


def test_times_come_in_pairs_and_never_run_backwards() -> None:
    for seed in range(40):
        text = drawn(Settings({0: -math.inf}, (2,), 4), seed)
        times = [token for token in text if token >= TIMES]
        assert times == sorted(times)
        assert TIMES <= text[0] <= TIMES + 4
        assert text[1] not in (0, 10, *range(TIMES, ROWS)), "a word follows the first time"
        for one, two, three in zip(text, text[1:], text[2:], strict=False):
            assert not (one < TIMES <= two and three < 3), "a piece's end is followed by a time or the end"


def test_a_word_follows_a_time_however_likely_times_are() -> None:
    """Times that are forbidden count for nothing: mlx-audio's rule leaves the first word of the vocabulary there."""
    logits = np.full((1, ROWS), -5, np.float32)
    logits[0, 1], logits[0, TIMES:] = 0, 9
    chosen = Chooser(Settings({}, (), None), Tokenizer(), 3, ROWS).apply(
        mx.array(logits), mx.array([[4, 5, 8, 12]])
    )
    assert int(chosen.argmax()) == 1


def test_how_often_tokens_repeat_is_measured_as_in_transformers() -> None:
    """The values of `_retrieve_compression_ratio`, of transformers 5.23."""
    assert ratio_of([50364, 3, 5, 3, 5, 3, 5, 3, 5, 3, 5, 50257], 51865) == pytest.approx(4 / 3)
    assert ratio_of([7, *[3] * 40], 70000) == pytest.approx(123 / 14)
