"""What is read from the files of a model folder, with configurations as publishers write them."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from pippin.catalog.footprint import footprint
from pippin.catalog.info import DEFAULT_WINDOWS, read_info
from pippin.catalog.kinds import kind_of, other_sound
from pippin.catalog.scan import scan_folder
from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.models import Capabilities, ModelKind
from pippin.core.requests import Sampling
from pippin.core.safetensors import instead
from tests.catalog.folders import write_model

KINDS: list[tuple[str, dict[str, Any], ModelKind]] = [
    ("smollm", {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, "language"),
    ("qwen3-vl", {"model_type": "qwen3_vl", "vision_config": {"depth": 2}}, "language"),
    ("Qwen3-Embedding-0.6B", {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, "embeddings"),
    ("bert-base", {"model_type": "bert", "architectures": ["BertModel"]}, "embeddings"),
    ("bge-m3", {"model_type": "xlm-roberta", "architectures": ["XLMRobertaModel"]}, "embeddings"),
    (
        "bge-v2",
        {"model_type": "xlm-roberta", "architectures": ["XLMRobertaForSequenceClassification"]},
        "reranking",
    ),
    ("Qwen3-Reranker-0.6B", {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}, "reranking"),
    ("whisper-base", {"model_type": "whisper"}, "transcription"),
    ("whisper-old", {"n_mels": 80, "n_audio_ctx": 1500}, "transcription"),
    ("parakeet", {"target": "nemo.collections.asr.models.EncDecRNNTBPEModel"}, "transcription"),
    ("Kokoro-82M", {"istftnet": {}, "n_token": 178}, "speech"),
    ("orpheus-3b", {"model_type": "llama"}, "speech"),
    # Families that the registry of mlx-audio knows, and two language models whose types it has other names for.
    ("a", {"model_type": "moss_tts"}, "speech"),
    ("b", {"model_type": "fireredasr2"}, "transcription"),
    ("c", {"model_type": "granite_speech", "architectures": ["GraniteSpeechForCausalLM"]}, "transcription"),
    ("VibeVoice-1.5B", {"model_type": "vibevoice"}, "speech"),
    ("VibeVoice-ASR-4bit", {"model_type": "vibevoice"}, "transcription"),
    ("glm-4-9b", {"model_type": "glm", "architectures": ["GlmForCausalLM"]}, "language"),
    ("MiMo-7B", {"model_type": "mimo", "architectures": ["MiMoForCausalLM"]}, "language"),
]


@pytest.mark.parametrize(("name", "config", "kind"), KINDS, ids=[name for name, *_ in KINDS])
def test_the_kind_is_told_from_the_configuration(
    tmp_path: Path, name: str, config: dict[str, Any], kind: ModelKind
) -> None:
    assert read_info(write_model(tmp_path / name, config)).kind == kind


TOLD_BY_NAME = {"dense", "llama", "qwen3", "vibevoice"}
"""Types of mlx-audio's registry that language models have too, or both kinds."""


@pytest.mark.parametrize(("library", "kind"), [("tts", "speech"), ("stt", "transcription")])
def test_every_family_in_the_registry_of_mlx_audio_is_recognised(
    tmp_path: Path, library: str, kind: ModelKind
) -> None:
    registry = pytest.importorskip("mlx_audio.registry")
    types = sorted(registry.supported_model_types(library) - TOLD_BY_NAME)
    assert len(types) > 30
    found = {each: kind_of(tmp_path, "some-model", {"model_type": each}) for each in types}
    assert found == dict.fromkeys(types, kind)


def test_a_sentence_transformer_makes_embeddings_of_its_length(tmp_path: Path) -> None:
    config = {"model_type": "qwen3", "hidden_size": 384, "max_position_embeddings": 512}
    folder = write_model(tmp_path / "m", config, sentence_bert_config={"max_seq_length": 256})
    (folder / "modules.json").write_text("[]")
    info = read_info(folder)
    assert (info.kind, info.context_window, info.dimensions) == ("embeddings", 256, 384)
    assert info.capabilities.embeddings


def test_a_configuration_is_read_as_python_writes_it(tmp_path: Path) -> None:
    config = {"model_type": "mamba2", "time_step_limit": [0.0, float("inf")], "x": float("nan"), "n_ctx": 64}
    assert read_info(write_model(tmp_path / "m", config)).context_window == 64


def test_a_pipeline_of_folders_makes_images(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "flux" / "transformer").parent
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "FluxPipeline"}))
    info = read_info(folder)
    assert (info.kind, info.architecture) == ("images", "FluxPipeline")
    assert info.size_bytes > 0


def test_an_image_model_as_mflux_saves_it_has_no_file_of_its_own_beside_its_parts(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "painter" / "transformer").parent
    info = read_info(folder, kind="images")
    assert (info.kind, info.id) == ("images", "painter")
    assert info.created > 0


def test_the_operators_kind_wins(tmp_path: Path) -> None:
    assert read_info(write_model(tmp_path / "m"), kind="embeddings").kind == "embeddings"


WINDOWS: list[tuple[str, dict[str, Any], dict[str, Any], int | None]] = [
    ("plain", {"max_position_embeddings": 8192}, {}, 8192),
    (
        "inner",
        {"text_config": {"max_position_embeddings": 131072}, "max_position_embeddings": 77},
        {},
        131072,
    ),
    ("gpt2", {"n_positions": 1024}, {}, 1024),
    ("mpt", {"max_seq_len": 2048}, {}, 2048),
    (
        "yarn",
        {
            "max_position_embeddings": 32768,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        },
        {},
        131072,
    ),
    (
        "yarn of transformers 5",
        {
            "max_position_embeddings": 131072,
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32768,
            },
        },
        {},
        131072,
    ),
    (
        "llama 3, whose window is scaled already",
        {
            "max_position_embeddings": 131072,
            "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
        },
        {},
        131072,
    ),
    ("sliding", {"max_position_embeddings": 32768, "sliding_window": 4096}, {}, 32768),
    (
        "chunked",
        {"model_type": "llama4_text", "max_position_embeddings": 32768, "attention_chunk_size": 8192},
        {},
        8192,
    ),
    (
        "windows that mlx-vlm's class does not know",
        {
            "model_type": "paligemma",
            "text_config": {"model_type": "gemma2", "max_position_embeddings": 8192, "sliding_window": 4096},
        },
        {},
        4096,
    ),
    ("other chunks", {"max_position_embeddings": 32768, "attention_chunk_size": 8192}, {}, 32768),
    ("tokenizer", {}, {"model_max_length": 4096}, 4096),
    ("no limit", {}, {"model_max_length": 10**30}, None),
    ("nonsense", {"max_position_embeddings": "many"}, {}, None),
    ("negative", {"max_position_embeddings": -1, "n_ctx": 7}, {}, 7),
]


@pytest.mark.parametrize(
    ("name", "config", "tokenizer", "window"), WINDOWS, ids=[name for name, *_ in WINDOWS]
)
def test_the_context_window(
    tmp_path: Path, name: str, config: dict[str, Any], tokenizer: dict[str, Any], window: int | None
) -> None:
    folder = write_model(tmp_path / "m", {"model_type": "llama"} | config, tokenizer_config=tokenizer)
    assert read_info(folder).context_window == window


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"quantization": {"group_size": 64, "bits": 4}}, "4-bit, group 64"),
        ({"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}}, "mxfp4, group 32"),
        (
            {"quantization": {"group_size": 64, "bits": 4, "a": {"bits": 8}, "b": False}},
            "4-bit, group 64, parts 8-bit",
        ),
        ({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}, "4-bit, group 128"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4"),
        ({}, None),
    ],
)
def test_the_quantisation_in_words(tmp_path: Path, settings: dict[str, Any], words: str | None) -> None:
    assert read_info(write_model(tmp_path / "m", {"model_type": "llama"} | settings)).quantization == words


def test_capabilities_of_a_vision_model(tmp_path: Path) -> None:
    config = {"model_type": "qwen3_vl", "vision_config": {"depth": 2}, "video_token_id": 7}
    template = "{% if tools %}{{ tools }}{% endif %}<think>"
    info = read_info(write_model(tmp_path / "m", config, tokenizer_config={"chat_template": template}))
    assert info.capabilities == Capabilities(chat=True, tools=True, reasoning=True, images=True, video=True)


def test_the_template_may_be_a_file_a_list_or_missing(tmp_path: Path) -> None:
    plain = write_model(tmp_path / "base")
    assert not read_info(plain).capabilities.chat
    listed = {
        "chat_template": [{"name": "default", "template": "x"}, {"name": "tool_use", "template": "tools"}]
    }
    assert read_info(write_model(tmp_path / "listed", tokenizer_config=listed)).capabilities.tools
    (plain / "chat_template.jinja").write_text("{{ messages }}")
    assert read_info(plain).capabilities.chat


def test_fill_in_tokens_are_seen(tmp_path: Path) -> None:
    tokens = {"added_tokens_decoder": {"1": {"content": "<|fim_prefix|>"}}}
    assert read_info(write_model(tmp_path / "m", tokenizer_config=tokens)).capabilities.infill


@pytest.mark.parametrize(
    ("generation", "sampling"),
    [
        ({"temperature": 0.6, "top_p": 0.95, "top_k": 20}, Sampling(temperature=0.6, top_p=0.95, top_k=20)),
        ({"top_p": 1.0, "repetition_penalty": 1.0, "top_k": 0}, Sampling()),
        ({"do_sample": False, "temperature": 0.6}, Sampling(temperature=0.0)),
        ({"do_sample": False, "repetition_penalty": 1.1}, Sampling(temperature=0.0, repetition_penalty=1.1)),
        ({"temperature": "hot", "min_p": 7}, Sampling()),
        ({"typical_p": 0.9, "presence_penalty": 1.5}, Sampling(typical_p=0.9, presence_penalty=1.5)),
        ({"repetition_penalty": 1.1, "min_p": 0.05}, Sampling(repetition_penalty=1.1, min_p=0.05)),
    ],
)
def test_the_checkpoints_own_sampling(tmp_path: Path, generation: dict[str, Any], sampling: Sampling) -> None:
    assert read_info(write_model(tmp_path / "m", generation_config=generation)).sampling == sampling


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', "\x00", "[" * 100_000, '{"a": NaN}'])
def test_a_damaged_configuration_is_a_clear_error(tmp_path: Path, text: str) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "config.json").write_text(text)
    with pytest.raises(ServerError, match=r"config\.json"):
        read_info(folder)


def test_a_folder_that_says_nothing_of_its_kind_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"no usable config\.json"):
        read_info(write_model(tmp_path / "m", {"a": 1}))


def test_an_adapter_is_named_as_one_with_its_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    with pytest.raises(ServerError, match=f"is an adapter.* pippin serve org/base --adapter-path {tmp_path}"):
        read_info(tmp_path)


def test_a_window_that_config_json_leaves_out_is_that_of_the_architecture(tmp_path: Path) -> None:
    # Google's gemma-3-4b-it has no max_position_embeddings.
    config = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "sliding_window": 1024}}
    assert read_info(write_model(tmp_path / "gemma", config)).context_window == 131072


@pytest.mark.parametrize("architecture", sorted(DEFAULT_WINDOWS))
def test_windows_of_architectures_are_those_of_transformers(architecture: str) -> None:
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[architecture]()
    config = getattr(config, "text_config", None) or config
    assert config.max_position_embeddings == DEFAULT_WINDOWS[architecture]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "moshi"}, "turns speech into speech (`moshi`)"),
        ({"model_type": "lfm2_audio", "architectures": ["Lfm2AudioForConditionalGeneration"]}, "into speech"),
        ({"model_version": "DeepFilterNet3"}, "turns speech into speech (`deepfilternet`)"),
        (
            {"audio_codec": {}, "text_encoder": {}, "transformer": {}},
            "turns speech into speech (`sam_audio`)",
        ),
        ({"model_type": "encodec"}, "is a codec of sound"),
        ({"model_type": "silero_vad"}, "tells speech from silence"),
    ],
)
def test_a_model_of_sound_that_is_not_served_is_refused_by_name(
    config: dict[str, Any], words: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ServerError, match=re.escape(words)) as caught:
        read_info(tmp_path)
    assert caught.value.report.kind == "load_failed"


def test_a_language_model_is_none_of_those(tmp_path: Path) -> None:
    for each in ("llama", "qwen3", "lfm2", "nemotron_voicechat"):
        assert other_sound({"model_type": each}) is None


@pytest.mark.parametrize("kind", ["StaticEmbedding", "Router", "BoW", "WordEmbeddings", "CLIPModel"])
@pytest.mark.parametrize("package", ["models", "sentence_transformer.modules"])
@pytest.mark.parametrize("config", [None, '{"vocab": ["a"]}'])
def test_a_folder_whose_texts_no_transformer_reads_is_listed_and_refused_by_name(
    kind: str, package: str, config: str | None, tmp_path: Path
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    rows = [{"path": f"0_{kind}", "type": f"sentence_transformers.{package}.{kind}"}]
    (folder / "modules.json").write_text(json.dumps(rows))
    if config is not None:
        (folder / "config.json").write_text(config)
    assert [each.id for each in scan_folder(tmp_path, "folder")] == ["other"]
    with pytest.raises(ServerError, match=f"and {kind} is not served"):
        read_info(folder)


def test_a_folder_of_modules_without_a_configuration_is_not_whole(tmp_path: Path) -> None:
    for rows in ([], [{"path": "0_T", "type": "sentence_transformers.models.Transformer"}], [7], {}):
        (tmp_path / "modules.json").write_text(json.dumps(rows))
        with pytest.raises(ServerError, match=r"modules\.json and no config\.json"):
            read_info(tmp_path)


def test_an_older_folder_of_modules_is_whole_and_not_served(tmp_path: Path) -> None:
    rows = [{"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}]
    (tmp_path / "modules.json").write_text(json.dumps(rows))
    write_model(tmp_path / "0_Transformer", {"model_type": "bert"})
    with pytest.raises(ServerError, match=r"in its folder 0_Transformer.*move") as refusal:
        read_info(tmp_path)
    assert "half" not in refusal.value.report.message


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "preprocessor_config.json"])
def test_a_byte_order_mark_is_refused_by_the_name_of_its_file(tmp_path: Path, file: str) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / file).write_text('{"model_type": "llama"}', "utf-8-sig")
    with pytest.raises(ServerError, match=f"{file} .*byte order mark"):
        read_info(tmp_path)


def test_a_byte_order_mark_in_a_file_that_nobody_reads_refuses_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "notes.json").write_text("{}", "utf-8-sig")
    with pytest.raises(ServerError) as refused:
        read_info(tmp_path)
    assert "byte order mark" not in refused.value.report.message


def test_weights_that_only_other_programs_read_are_not_weighed(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    alone = read_info(folder)
    weighed = footprint(alone, ModelOptions())
    # As Mistral, OpenAI, peft and trainers lay them beside a model.
    for name in ("consolidated.safetensors", "adapter_model.safetensors", "adapters.safetensors"):
        shutil.copy(folder / "model.safetensors", folder / name)
    for name in ("original", "checkpoint-500"):
        (folder / name).mkdir()
        shutil.copy(folder / "model.safetensors", folder / name)
    assert read_info(folder).size_bytes == alone.size_bytes
    assert footprint(alone, ModelOptions()) == weighed


@pytest.mark.parametrize(
    ("file", "way"),
    [
        ("m-Q4_K.gguf", r"`pippin import \S+/m/m-Q4_K\.gguf` makes a model"),
        ("pytorch_model.bin", r"they are in pytorch_model\.bin, which is not read\. `pippin search m`"),
        ("model.onnx", r"they are in model\.onnx, which is not read\. `pippin search m` looks for .* MLX\.$"),
        (None, "either its download has not ended"),
    ],
)
def test_a_folder_without_safetensors_is_told_what_to_do_with_what_it_has(
    file: str | None, way: str, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    if file is not None:
        (folder / file).write_bytes(b"weights")
    with pytest.raises(ServerError, match=way):
        read_info(folder)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("LlamaForCausalLM", "AutoModelForCausalLM"),
        ("BertForSequenceClassification", "AutoModelForSequenceClassification"),
        ("BertModel", "AutoModel"),
    ],
)
def test_the_command_that_saves_a_torch_file_keeps_the_models_head(
    name: str, kind: str, tmp_path: Path
) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"weights")
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [name]}))
    assert f'"from transformers import {kind} as Model; ' in (instead(tmp_path) or "")
