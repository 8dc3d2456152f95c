"""What makes a model read a text better than its folder has it: other settings, a layer left out, a line end."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from pippin.config.options.model import ModelOptions
from pippin.core.completion import CompletedChoice, CompletedPart, Completion
from pippin.core.events import Finished, Token
from pippin.core.published import object_in
from pippin.engines.device import decide, find_facts
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.verify import files
from pippin.engines.verify.asking import Served
from pippin.engines.verify.folder import Folder
from pippin.engines.verify.reading import layers, opening, rivals
from pippin.engines.verify.reading.perplexity import Surprise, predict, sample_rows
from pippin.engines.verify.template import Written
from tests.engines.tiny_models import tiny_model
from tests.engines.verify.folders import edit, edit_template, report_on, write, write_sound

Config = dict[str, Any]
NOISE = np.random.default_rng(3).normal(0, 1, (1, 255)).astype(np.float32)


def surprise(mean: float) -> Surprise:
    """Of a text of 1,000 letters, about as noisy as that of a real model."""
    return Surprise(np.maximum(NOISE * 2 + mean, 0), 1000)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sound(tmp_path_factory.mktemp("sound") / "model")


def tried(folder: Path, config: Config, *, broken: bool = False) -> dict[str, list[Any]]:
    write(folder, "config.json", {"model_type": "llama", **config})
    found: dict[str, list[Any]] = {}
    for each in rivals.rivals(Folder.read(folder), broken=broken):
        found.setdefault(each.field, []).append(each.value)
    return found


def test_settings_that_are_tried_are_far_from_the_folders_own(tmp_path: Path) -> None:
    scaled = {"type": "linear", "rope_type": "linear", "factor": 4.0}
    sound = {"rope_theta": 100000.0, "rms_norm_eps": 1e-6, "sliding_window": 4096}
    assert tried(tmp_path, sound) == {"rope_theta": [1e4, 1e6], "rope_scaling": [scaled]}
    assert tried(tmp_path, {"rope_theta": 500.0, "rope_scaling": scaled, "rms_norm_eps": 0.01}) == {
        "rope_theta": [1e4, 1e5, 1e6],
        "rope_scaling": [None],
        "rms_norm_eps": [1e-5],
    }
    turns = {"full_attention": {"rope_theta": 1e6, "rope_type": "default"}}
    assert tried(tmp_path, {"rope_parameters": turns, "sliding_window": 4})["rope_theta"] == [1e4, 1e5]
    assert tried(tmp_path, {"sliding_window": 4})["sliding_window"] == [4096]
    assert tried(tmp_path, {"num_attention_heads": 8}, broken=True)["num_attention_heads"] == [16, 4]
    granite = {"model_type": "granite", "logits_scaling": 8.0}
    assert tried(tmp_path, granite)["logits_scaling"] == [32, 2]


@pytest.mark.parametrize(
    ("config", "rival", "changed"),
    [
        ({}, rivals.Rival("rope_theta", None, 1e5), {"rope_theta": 1e5}),
        (
            {"rope_parameters": {"rope_theta": 5.0}},
            rivals.Rival("rope_theta", 5.0, 1e5),
            {"rope_theta": 1e5, "rope_parameters": {"rope_theta": 1e5}},
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 5.0}, "sliding_attention": {"rope_theta": 1e4}}},
            rivals.Rival("rope_theta", 5.0, 1e5),
            {
                "rope_theta": 1e5,
                "rope_parameters": {"full_attention": {"rope_theta": 1e5}, "sliding_attention": {"rope_theta": 1e4}},
            },
        ),
        (
            {"rope_parameters": {"rope_theta": 5.0, "rope_type": "linear", "factor": 2.0}},
            rivals.Rival("rope_scaling", {}, None),
            {"rope_theta": 5.0, "rope_scaling": None},
        ),
        (
            {"num_attention_heads": 18, "num_key_value_heads": 6, "head_dim": 32},
            rivals.Rival("num_attention_heads", 18, 9),
            {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64},
        ),
    ],
)  # fmt: skip
def test_a_setting_is_put_where_it_is_read(config: Config, rival: rivals.Rival, changed: Config) -> None:
    rival.put(config)
    assert config == changed


@pytest.mark.parametrize(
    ("own", "other", "told"),
    [
        (3.6, 2.8, True),
        (2.8, 2.75, False),  # no more than chance
        (9.0, 8.0, False),  # random weights
    ],
)
def test_the_setting_is_told_with_which_a_text_reads_clearly_better(
    own: float, other: float, told: bool, sound: Path
) -> None:
    bases: list[float] = []

    def read(folder: Path) -> Surprise:
        config = json.loads((folder / "config.json").read_text())
        assert (folder / "model.safetensors").samefile(sound / "model.safetensors")
        bases.append(config["rope_theta"])
        return surprise(other if config["rope_theta"] == 1e5 else own)

    before = (sound / "config.json").read_bytes()
    found = [*rivals.check(sound, read, surprise(own))]
    assert {1e4, 1e5, 1e6} == {*bases}
    assert [each.code for each in found] == ["setting-other"] * told
    assert all("With rope_theta = 100000.0 in place of 10000.0" in each.text for each in found)
    assert (sound / "config.json").read_bytes() == before


@pytest.mark.parametrize(("gain", "told"), [(0.8, True), (0.01, False), (-0.5, False)])
def test_a_layer_is_told_that_does_harm(gain: float, told: bool) -> None:
    def without(some: range, length: int | None) -> list[Surprise]:
        found = [surprise(3.2 - gain if place == 9 else 3.4) for place in some if place < 16]
        return [Surprise(each.each[:, :length], each.letters) for each in found]

    found = [each.text[:16] for each in layers.check(without, surprise(3.2))]
    assert found == ["Without layer 9 "] * told


def test_rows_without_a_layer_are_those_of_the_model_without_it(tmp_path: Path) -> None:
    folder = tiny_model("llama", tmp_path / "source")
    row = sample_rows(Tokenizer.load(folder))[:1, :20]
    plan = decide(find_facts(), ModelOptions())
    whole, first = predict(folder, row, plan, range(1))
    assert np.allclose(np.array(whole), np.array(predict(folder, row, plan)[0]), atol=1e-4)
    arrays = mx.load(str(folder / "model.safetensors"))
    assert isinstance(arrays, dict)
    for name in arrays:
        if ".layers.0." in name and ("o_proj" in name or "down_proj" in name):
            arrays[name] = mx.zeros_like(arrays[name])
    mx.save_safetensors(str(folder / "model.safetensors"), arrays)
    assert np.allclose(np.array(first), np.array(predict(folder, row, plan)[0]), atol=1e-4)


PROMPT = ("<|im_start|>assistant\\n", "<|im_start|>assistant")
HISTORY = ("message.role + '\\n' + content", "message.role + content")


@pytest.mark.parametrize(
    ("first", "lost", "codes"),
    [
        (b"\n", (PROMPT, HISTORY), ["answer-expects"]),
        (b"The", (PROMPT, HISTORY), []),
        (b"\n", (PROMPT,), []),  # the template has it before earlier answers, as GLM's
        (b"\n", (), ["answer-expects"]),
    ],
)
def test_a_line_end_is_told_that_the_model_writes_in_the_templates_place(
    first: bytes, lost: Any, codes: list[str], sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(sound, folder)
    for change in lost:
        edit_template(folder, *change)
    begun = CompletedPart(kind="text", text="", tokens=[Token(id=1, raw=first, logprob=math.log(0.8))])
    answer = Completion(choices=[CompletedChoice(parts=[begun], finished=Finished(0, "length"))])
    silent = Completion(choices=[CompletedChoice(parts=[], finished=Finished(0, "stop"))])
    monkeypatch.setattr(Served, "ask", lambda _, asked: [answer] * (len(asked) - 1) + [silent])
    written = Written.open(Tokenizer.load(folder), "llama")
    found = opening.check(Served(None, None), written)  # type: ignore[arg-type]
    assert [each.code for each in found] == codes


LINES_LOST = (
    "{% for turn in messages %}<|im_start|>{{ turn['role'] }}{{ turn['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
)
GENERATION = "generation_config.json"


@pytest.mark.parametrize(
    ("file", "fields", "codes"),
    [
        (GENERATION, {"repetition_penalty": 0}, ["value-unlikely"]),
        (GENERATION, {"repetition_penalty": -1.1}, ["value-unlikely"]),
        (GENERATION, {"temperature": 0.0, "do_sample": True}, ["value-unlikely"]),
        (GENERATION, {"temperature": 0.0}, []),
        (GENERATION, {"temperature": 7.0, "top_p": 0.0, "do_sample": True}, ["value-unlikely"] * 2),
        (GENERATION, {"temperature": 7.0, "top_p": 0.0, "do_sample": False}, []),
        (GENERATION, {"no_repeat_ngram_size": 2}, ["value-unlikely"]),
        (GENERATION, {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "no_repeat_ngram_size": 0}, []),
        (GENERATION, {"stop_strings": ["the "]}, ["stop-is-text"]),
        (GENERATION, {"stop_strings": ["</s>"]}, []),
        ("config.json", {"rms_norm_eps": 1.0}, ["value-unlikely"]),
        ("config.json", {"rope_parameters": {"rope_theta": 10.0}}, ["value-unlikely"]),
        ("config.json", {"sliding_window": 4}, ["value-unlikely"]),
        ("config.json", {"sliding_window": 4, "hidden_size": 32}, []),  # a test's
        ("config.json", {"rms_norm_eps": 1e-5, "rope_theta": 1e4, "sliding_window": None}, []),
        ("sentence_bert_config.json", {"max_seq_length": 4}, ["value-unlikely"]),
    ],
)
def test_values_that_no_publisher_chooses_are_told(
    file: str, fields: Config, codes: list[str], tmp_path: Path
) -> None:
    write(tmp_path, "config.json", {"model_type": "llama", "hidden_size": 576})
    write(tmp_path, file, object_in(tmp_path / file) | fields)
    assert [each.code for each in files.check_values(Folder.read(tmp_path))] == codes


def test_a_speakers_name_with_a_letter_lost_is_told(sound: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(sound, folder)
    edit_template(folder, "assistant\\n", "asistant\\n")
    edit_template(folder, "'<|im_start|>' + message.role", "'<|im_start|>' + message.role|replace('ss', 's')")
    found = [each for part in report_on(folder, "template").sections for each in part.findings]
    assert "speaker-misspelt" in {each.code for each in found}, found


@pytest.mark.model
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("file", "fields", "code"),
    [
        ("config.json", {"rope_theta": 500.0}, "setting-other"),
        ("config.json", {"rms_norm_eps": 0.01}, "setting-other"),
        ("config.json", {"rope_scaling": {"type": "linear", "factor": 4.0}}, "setting-other"),
        ("tokenizer_config.json", {"chat_template": LINES_LOST}, "answer-expects"),
    ],
)
def test_what_is_wrong_alone_in_a_real_model_is_told(
    file: str, fields: Config, code: str, demo_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(demo_model, folder)
    edit(folder, file, **fields)
    [section] = report_on(folder, "numbers", architecture="llama").sections
    assert [each.code for each in section.findings] == [code]
