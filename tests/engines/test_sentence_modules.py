"""Vectors of folders with other modules than a transformer, one pooling and a normalisation are sentence-transformers',
by its formulas in float64; what is not computed is refused by name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt
import pytest
from mlx.utils import tree_flatten
from mlx_vlm.models.modernbert import Model, ModelConfig
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from pippin.catalog.info import read_info
from pippin.core.conversation import Text
from pippin.core.errors import ServerError
from pippin.core.models import WorkerSpec
from pippin.core.tasks import Rerank, RerankDocument
from pippin.engines.embeddings import read_pooling
from pippin.engines.encoding import EncodingJob
from pippin.engines.language.model.encoders import (
    attends_both_ways,
    encoder_of,
    hidden_states,
    refuse_unread,
    set_activations,
)
from pippin.engines.language.vision.model import VisionModel
from pippin.engines.reranking import (
    INSTRUCTION,
    PREFIX,
    SUFFIX,
    RerankingPreparer,
    compares,
    refuse_other_prompts,
    yes_and_no,
)
from tests.engines.test_embeddings import embed, load
from tests.engines.tiny_models import tiny_model

Rows = npt.NDArray[np.float64]
TEXTS = ("A man is eating pasta.", "Paris", "The weather is nice today, and it stays so for the whole week.")
MODES = {
    "cls_token": lambda h: h[0],
    "max_tokens": lambda h: h.max(0),
    "mean_tokens": lambda h: h.mean(0),
    "mean_sqrt_len_tokens": lambda h: h.sum(0) / len(h) ** 0.5,
    "weightedmean_tokens": lambda h: (
        (h * (places := np.arange(1, len(h) + 1)[:, None])).sum(0) / places.sum()
    ),
    "lasttoken": lambda h: h[-1],
}
ACTIVATIONS: dict[str, Callable[[Rows], Rows]] = {
    "torch.nn.modules.activation.Tanh": np.tanh,
    "torch.nn.modules.linear.Identity": lambda x: x,
    "torch.nn.modules.activation.ReLU": lambda x: np.maximum(x, 0),
}


def folder_with(source: Path, target: Path, modes: tuple[str, ...], *modules: str, **pooling: Any) -> Path:
    """A copy of a folder whose modules are its transformer, a pooling, and these."""
    shutil.copytree(source, target)
    kinds = ["Transformer", "Pooling", *modules]
    rows = [
        {"path": f"{place}_{kind}" if place else "", "type": f"sentence_transformers.models.{kind}"}
        for place, kind in enumerate(kinds)
    ]
    (target / "modules.json").write_text(json.dumps(rows))
    (target / "1_Pooling").mkdir(exist_ok=True)
    flags = {f"pooling_mode_{mode}": mode in modes for mode in MODES}
    (target / "1_Pooling" / "config.json").write_text(json.dumps({**flags, **pooling}))
    return target


def module(folder: Path, config: dict[str, Any], **arrays: Rows) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    named = {name.replace("_", "."): mx.array(array.astype(np.float32)) for name, array in arrays.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), named)


@pytest.fixture(scope="module")
def states(minilm: Path) -> list[Rows]:
    """The last hidden states of each text alone."""
    config = json.loads((minilm / "config.json").read_text())
    model, tokenizer = encoder_of(minilm, config), load(minilm)[0].tokenizer
    tokens = [mx.array([tokenizer.encode(text).tokens]) for text in TEXTS]
    return [
        np.array(model(row, attention_mask=mx.ones_like(row)).last_hidden_state[0], np.float64)
        for row in tokens
    ]


@pytest.mark.model
@pytest.mark.parametrize(
    "modes",
    [
        *((mode,) for mode in MODES),
        ("cls_token", "mean_tokens"),
        ("max_tokens", "weightedmean_tokens", "lasttoken"),
    ],
)
def test_every_pooling_and_several_together(
    minilm: Path, tmp_path: Path, states: list[Rows], modes: tuple[str, ...]
) -> None:
    folder = folder_with(minilm, tmp_path / "model", modes)
    expected = np.stack([np.concatenate([MODES[mode](rows) for mode in modes]) for rows in states])
    assert np.abs(embed(load(folder), *TEXTS) - expected).max() < 1e-4


@pytest.mark.model
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_dense_and_layer_norm_and_normalize_in_their_order(
    minilm: Path, tmp_path: Path, states: list[Rows], activation: str
) -> None:
    folder = folder_with(minilm, tmp_path / "model", ("cls_token",), "Dense", "LayerNorm", "Normalize")
    chance = np.random.default_rng(1)
    weight, bias, scale, shift = (chance.normal(size=size) for size in ((48, 384), 48, 48, 48))
    module(folder / "2_Dense", {"activation_function": activation}, linear_weight=weight, linear_bias=bias)
    module(folder / "3_LayerNorm", {"dimension": 48}, norm_weight=scale, norm_bias=shift)
    rows = ACTIVATIONS[activation](np.stack([rows[0] for rows in states]) @ weight.T + bias)
    rows = (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + 1e-5) * scale + shift
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    assert np.abs(embed(load(folder), *TEXTS) - rows).max() < 1e-4


@pytest.mark.model
@pytest.mark.parametrize("size", [384, 48])
def test_a_residual_of_dense_and_the_size_that_vectors_are_cut_to(
    minilm: Path, tmp_path: Path, states: list[Rows], size: int
) -> None:
    folder = folder_with(minilm, tmp_path / "model", ("cls_token",), "Dense")
    chance = np.random.default_rng(1)
    weight, beside = chance.normal(size=(size, 384)), chance.normal(size=(size, 384))
    projection = {} if size == 384 else {"residual_weight": beside}
    named = {"activation_function": "torch.nn.modules.activation.Tanh", "use_residual": True}
    module(folder / "2_Dense", named, linear_weight=weight, **projection)
    (folder / "config_sentence_transformers.json").write_text('{"truncate_dim": 7}')
    rows = np.stack([each[0] for each in states])
    expected = np.tanh(rows @ weight.T) + (rows if size == 384 else rows @ beside.T)
    assert np.abs(embed(load(folder), *TEXTS) - expected[:, :7]).max() < 1e-4


@pytest.mark.model
@pytest.mark.parametrize(
    ("file", "fields", "reason"),
    [
        ("modules.json", [{"type": "custom_st.Transformer", "path": ""}], "custom_st.Transformer"),
        (
            "modules.json",
            [{"type": f"sentence_transformers.models.{kind}"} for kind in ("Transformer", "WordWeights")],
            "WordWeights",
        ),
        (
            "2_Normalize/config.json",
            {"module_input_name": "token_embeddings"},
            "2_Normalize.config.json makes",
        ),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "fill-mask"),
        ("1_Pooling/config.json", {"pooling_mode": 1}, "1_Pooling/config.json .*pooling_mode"),
        ("config_sentence_transformers.json", {"truncate_dim": "16"}, "_transformers.json .*truncate_dim"),
        ("config_sentence_transformers.json", {"prompts": {"query": None}}, "_transformers.json .*prompts"),
        ("sentence_bert_config.json", {"processing_kwargs": True}, "bert_config.json .*processing_kwargs"),
        ("sentence_bert_config.json", {"max_seq_length": True}, "bert_config.json .*max_seq_length"),
        ("modules.json", [{"type": 1}], r"modules.json names 1"),
        ("tokenizer_config.json", {"add_eos_token": "yes"}, "tokenizer_config.json .*add_eos_token"),
        ("config_sentence_transformers.json", {"model_type": "CrossEncoder"}, "is a CrossEncoder"),
        (
            "sentence_bert_config.json",
            {"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}},
            "pooler_output",
        ),
        (
            "sentence_bert_config.json",
            {"processing_kwargs": {"text": {"max_length": 9, "add_special_tokens": False}}},
            "add_special_tokens",
        ),
        (
            "sentence_bert_config.json",
            {"processing_kwargs": {"image": {"do_resize": False}, "video": None}},
            "processing_kwargs have image",
        ),
        (
            "sentence_bert_config.json",
            {"modality_config": {"text": {}, "message": {"format": "flat"}}},
            "names messages, and the folder has no chat template",
        ),
    ],
)
def test_what_a_module_says_of_its_text_is_refused_by_name(
    minilm: Path, tmp_path: Path, file: str, fields: Any, reason: str
) -> None:
    folder = folder_with(minilm, tmp_path / "model", ("mean_tokens",), "Normalize")
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text(json.dumps(fields))
    with pytest.raises(ServerError, match=reason):
        load(folder)


@pytest.mark.model
@pytest.mark.parametrize(
    ("modules", "pooling", "reason"),
    [
        (("SpladePooling",), {}, "SpladePooling"),
        (("WeightedLayerPooling", "CNN"), {}, "WeightedLayerPooling, CNN"),
        ((), {"include_prompt": False}, "include_prompt"),
        ((), {"pooling_mode": "attention"}, "attention"),
        (("Dense",), {}, "2_Dense"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    minilm: Path, tmp_path: Path, modules: tuple[str, ...], pooling: dict[str, Any], reason: str
) -> None:
    folder = folder_with(minilm, tmp_path / "model", ("mean_tokens",), *modules, **pooling)
    with pytest.raises(ServerError, match=reason) as caught:
        load(folder)
    assert caught.value.report.kind == "load_failed"


@pytest.mark.parametrize(
    ("modules", "files", "reason"),
    [
        (("Transformer", "Pooling"), {}, "modules.json .* names 1_Pooling, which has no config.json"),
        (("Transformer",), {}, "modules.json names no Pooling"),
        (("Transformer", "Dense"), {"1_Dense": {"activation_function": "my.GELU"}}, "my.GELU"),
        *(
            (("Transformer", "Dense"), {"1_Dense": {field: value}}, f"1_Dense/config.json has {field}, and")
            for field, value in (
                ("bias", False),
                ("out_features", 3),
                ("in_features", 2),
                ("use_residual", True),
            )
        ),
        (("Pooling", "Transformer"), {"1_Transformer": {}}, "its Transformer is in 1_Transformer"),
    ],
)
def test_modules_that_lack_a_file_or_contradict_one_are_refused_by_name(
    modules: tuple[str, ...], files: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    rows = [
        {"path": f"{place}_{kind}" if place else "", "type": f"sentence_transformers.models.{kind}"}
        for place, kind in enumerate(modules)
    ]
    (tmp_path / "modules.json").write_text(json.dumps(rows))
    for name, config in files.items():
        module(tmp_path / name, config, linear_weight=np.ones((2, 3)), linear_bias=np.ones(2))
    if modules[0] == "Pooling":
        (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ServerError, match=reason):
        read_pooling(tmp_path, {}, "mean")


@pytest.mark.parametrize(("kind", "arrays"), [("Dense", "linear"), ("LayerNorm", "norm")])
def test_a_module_of_another_size_than_the_vectors_is_refused_by_name(
    kind: str, arrays: str, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir()
    folder = folder_with(tmp_path / "source", tmp_path / "model", (), kind)
    sizes = (2, 3) if kind == "Dense" else (3,)
    module(folder / f"2_{kind}", {"bias": False, "in_features": 3}, **{f"{arrays}_weight": np.ones(sizes)})
    pooling = read_pooling(folder, {}, "mean")
    assert pooling.finished(mx.ones((1, 3))).shape == (1, sizes[0])
    with pytest.raises(ServerError, match=r"vectors of model are not .* modules.json .* another size"):
        pooling.finished(mx.ones((1, 4)))


@pytest.mark.parametrize(
    ("field", "said", "told"),
    [
        ("config_args", {"hidden_act": "relu"}, "hidden_act"),
        ("tokenizer_args", {"model_max_length": 3, "padding_side": "left"}, "model_max_length"),
        ("processor_kwargs", {"do_lower_case": False}, "do_lower_case"),
    ],
)
def test_what_sentence_transformers_lays_over_other_files_is_refused_by_name(
    field: str, said: dict[str, Any], told: str, tmp_path: Path
) -> None:
    rows = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
    (tmp_path / "modules.json").write_text(json.dumps(rows))
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({field: said}))
    with pytest.raises(ServerError, match=f"here: {told} of its {field} in sentence_bert_config.json"):
        read_pooling(tmp_path, {}, "mean")


@pytest.mark.parametrize(
    ("said", "activation"),
    [
        (None, "torch.nn.modules.linear.Identity"),
        ({}, "torch.nn.modules.activation.Tanh"),
        ({"activation_function": "torch.nn.modules.activation.ReLU"}, "torch.nn.modules.activation.ReLU"),
    ],
)
def test_dense_layers_beside_the_models_weights_have_their_own_activations(
    said: dict[str, str] | None, activation: str, tmp_path: Path
) -> None:
    """Conversions to MLX have them there; without a configuration they are EmbeddingGemma's, which are linear."""
    chance, sizes = np.random.default_rng(2), [(4, 3), *[(4, 4)] * 10]
    weights = [chance.normal(size=size).astype(np.float32) for size in sizes]
    shift = chance.normal(size=4).astype(np.float32)
    (tmp_path / "source").mkdir()
    folder = folder_with(tmp_path / "source", tmp_path / "model", (), *["Dense"] * len(sizes))
    if said is not None:
        (folder / "2_Dense").mkdir()
        (folder / "2_Dense" / "config.json").write_text(json.dumps(said))
    stored = {f"dense.{place}.weight": mx.array(weight) for place, weight in enumerate(weights)}
    pooling = read_pooling(folder, {**stored, "dense.0.bias": mx.array(shift)}, "mean")
    vector = chance.normal(size=(1, 3)).astype(np.float32)
    row = ACTIVATIONS[activation](vector @ weights[0].T + shift)
    found = np.array(pooling.finished(mx.array(vector)))
    for weight in weights[1:]:
        row = row @ weight.T
    assert np.abs(found - row).max() < 1e-4 * np.abs(row).max()


def test_a_pooling_without_the_list_of_modules_counts(tmp_path: Path) -> None:
    (tmp_path / "1_Pooling").mkdir()
    assert read_pooling(tmp_path, {}, "mean").modes == ("mean",)
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    assert read_pooling(tmp_path, {}, "mean").modes == ("cls",)


@pytest.mark.parametrize(
    ("kind", "fields", "reason"),
    [
        ("bert", {"position_embedding_type": "relative_key"}, "relative_key"),
        ("bert", {"is_decoder": True}, "is_decoder true"),
        ("modernbert", {"local_attention": -1}, "local_attention -1"),
        ("modernbert", {"local_attention": None}, "local_attention None"),
        ("modernbert", {"sliding_window": None}, "sliding_window None"),
        ("modernbert", {"classifier_pooling": "max"}, "classifier_pooling 'max'"),
        ("modernbert", {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_type 'yarn'"),
        ("modernbert", {"rope_scaling": {"rope_type": "linear", "factor": 2}}, "rope_type 'linear'"),
        (
            "modernbert",
            {"pad_token_id": None, "rope_parameters": {"full_attention": {"rope_theta": 2}}},
            None,
        ),
    ],
)
def test_what_the_class_of_an_encoder_does_not_read_is_refused_by_name(
    kind: str, fields: dict[str, Any], reason: str | None
) -> None:
    if reason is None:
        refuse_unread({"model_type": kind, **fields})
    else:
        with pytest.raises(ValueError, match=reason):
            refuse_unread({"model_type": kind, **fields})


def test_a_window_of_modernbert_is_half_of_what_its_layers_see(tmp_path: Path) -> None:
    """As transformers 5.12 reads it: `sliding_window` 4 is `local_attention` 8, whatever that says."""
    sizes = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 3, "intermediate_size": 16}
    config = {"model_type": "modernbert", "num_attention_heads": 2, **sizes}
    found = Model(ModelConfig.from_dict(config))
    mx.save_safetensors(str(tmp_path / "model.safetensors"), dict(tree_flatten(found.parameters())))
    said: tuple[dict[str, Any], ...] = (
        {"sliding_window": 4, "local_attention": 2},
        {"local_attention": 8},
        {},
    )
    tokens = mx.arange(20)[None]
    both, wide, all_ = (
        np.array(encoder_of(tmp_path, {**config, **each})(tokens).last_hidden_state) for each in said
    )
    assert np.array_equal(both, wide)
    assert np.abs(both - all_).max() > 1e-4


@pytest.mark.parametrize(
    ("kind", "told", "both"),
    [
        *((kind, True, False) for kind in ("llama", "qwen3", "mistral")),
        ("gemma3_text", True, True),
        ("gemma2", True, False),
        ("gemma4_text", "all", True),
        ("gemma4_text", "vision", False),
    ],
)
def test_the_decoders_that_attend_both_ways_are_transformers(kind: str, told: Any, both: bool) -> None:
    assert attends_both_ways({"model_type": kind, "use_bidirectional_attention": told}) is both
    assert attends_both_ways({"model_type": kind, "is_causal": False})


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (nn.Module, {"text_config": {"model_type": "gemma3_text", "use_bidirectional_attention": True}}),
        (nn.Module, {"text_config": {"is_causal": False}}),
        (VisionModel, {"is_causal": False}),
    ],
)
def test_a_model_with_a_text_model_that_attends_both_ways_is_refused(
    kind: type[nn.Module], config: dict[str, Any]
) -> None:
    with pytest.raises(ServerError, match="use_bidirectional_attention true and is_causal false are read of"):
        hidden_states("m", kind.__new__(kind), config)


def test_an_activation_is_read_under_the_name_of_its_architecture() -> None:
    """Other classes of transformers leave `hidden_activation` unread."""
    for kind, expected in (("bert", mx.tanh), ("modernbert", nn.relu)):
        layer = nn.Module()
        layer.intermediate_act_fn = nn.GELU()
        set_activations(layer, {"model_type": kind, "hidden_act": "tanh", "hidden_activation": "relu"})
        assert layer.intermediate_act_fn is expected


@pytest.mark.model
def test_text_is_lowered_where_the_folder_says_so(minilm: Path, tmp_path: Path) -> None:
    folder = folder_with(minilm, tmp_path / "model", ("mean_tokens",))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"] = None
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert np.abs(embed(load(folder), "Paris") - embed(load(folder), "paris")).max() > 1e-2
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 256, "do_lower_case": true}')
    assert np.allclose(embed(load(folder), "Paris"), embed(load(folder), "paris"))


@pytest.mark.model
def test_a_stray_file_changes_no_vector(minilm: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(minilm, tmp_path / "model"))
    arrays: Any = mx.load(str(folder / "model.safetensors"))
    for name in ("another.safetensors", "zero.safetensors"):
        mx.save_safetensors(str(folder / name), {key: array * 0 for key, array in arrays.items()})
    assert np.abs(embed(load(folder), *TEXTS) - embed(load(minilm), *TEXTS)).max() < 1e-6


def test_a_classifier_made_from_qwen3_reranker_is_asked_in_its_prompt() -> None:
    config = {"model_type": "qwen3", "architectures": ["Qwen3ForSequenceClassification"]}
    assert compares("scorer", config)
    assert not compares("Qwen3-Reranker-0.6B-seq-cls", config)
    assert not compares("Qwen3-Reranker-0.6B", {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]})


def test_a_body_without_its_head_embeds_as_the_whole_model(tmp_path: Path) -> None:
    whole = tiny_model("llama", tmp_path / "whole")
    config = json.loads((whole / "config.json").read_text())
    (whole / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    expected = embed(load(whole), "a text", "another")
    arrays: Any = mx.load(str(whole / "model.safetensors"))
    body = {name: array for name, array in arrays.items() if name.startswith("model.")}
    for made, stored, classes in (
        ("headless", body, "LlamaForCausalLM"),
        ("body", {name.removeprefix("model."): array for name, array in body.items()}, "LlamaModel"),
    ):
        folder = tmp_path / made
        shutil.copytree(whole, folder)
        mx.save_safetensors(str(folder / "model.safetensors"), stored, {"format": "mlx"})
        written = {**config, "tie_word_embeddings": False, "architectures": [classes]}
        (folder / "config.json").write_text(json.dumps(written))
        assert np.abs(embed(load(folder), "a text", "another") - expected).max() < 1e-5


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("bge-reranker-v2-gemma", {"model_type": "gemma", "architectures": ["GemmaForCausalLM"]}),
        ("mxbai-reranker-base-v2", {"model_type": "qwen2"}),
        ("jina-reranker-v3", {"model_type": "qwen3", "architectures": ["JinaForRanking"]}),
        ("zerank-2-reranker", {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}),
    ],
)
def test_language_models_that_rerank_by_another_prompt_are_refused(name: str, config: dict[str, Any]) -> None:
    with pytest.raises(ServerError, match="no reranker whose prompt is known"):
        refuse_other_prompts(name, config)
    refuse_other_prompts(
        "Qwen3-Reranker-0.6B", {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    )


@pytest.mark.model
@pytest.mark.parametrize(
    ("settings", "begin"),
    [
        ({"prompts": {"query": "Find: "}, "default_prompt_name": "query"}, "Find: "),
        ({"prompts": {"query": "Find: "}, "default_prompt_name": None}, ""),
        ({}, ""),
    ],
)
@pytest.mark.parametrize("kind", ["bert", "qwen3"])
def test_a_query_begins_with_the_prompt_that_the_folder_names_for_all(
    minilm: Path, tmp_path: Path, settings: dict[str, Any], begin: str, kind: str
) -> None:
    """A reranker that answers yes or no reads it as its instruction."""
    is_classifier = kind == "bert"
    classes = ["BertForSequenceClassification" if is_classifier else "Qwen3ForCausalLM"]
    for file in minilm.iterdir():
        if file.is_file():
            (tmp_path / file.name).symlink_to(file.resolve())
    for name, content in (
        ("config.json", {"model_type": kind, "architectures": classes}),
        ("config_sentence_transformers.json", settings),
    ):
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).write_text(json.dumps(content))
    preparer = RerankingPreparer(WorkerSpec(info=read_info(tmp_path, kind="reranking")))
    job = preparer.prepare("one", Rerank(query="Where?", documents=(RerankDocument((Text("Here."),)),)))
    assert isinstance(job, EncodingJob)
    if is_classifier:
        assert job.sequences == (preparer.tokenizer.encode(f"{begin}Where?", "Here."),)
    else:
        start = f"{PREFIX}<Instruct>: {begin or INSTRUCTION}\n<Query>: "
        tokens = preparer.tokenizer.template(start)
        assert job.sequences[0].tokens[: len(tokens)] == tokens


def test_the_tokens_of_the_answers_are_those_that_the_folder_names(tmp_path: Path) -> None:
    words = {"yes": 5, "no": 6}
    preparer: Any = SimpleNamespace(
        folder=tmp_path, tokenizer=SimpleNamespace(id=words.get, vocabulary=20), info=SimpleNamespace(id="m")
    )
    assert yes_and_no(preparer) == (5, 6)
    (tmp_path / "1_LogitScore").mkdir()
    named = {"true_token_id": 16, "false_token_id": 15}
    (tmp_path / "1_LogitScore" / "config.json").write_text(json.dumps(named))
    assert yes_and_no(preparer) == (16, 15)
    for wrong in (
        {**named, "false_token_id": None},
        {**named, "true_token_id": None},
        {**named, "true_token_id": 20},
    ):
        (tmp_path / "1_LogitScore" / "config.json").write_text(json.dumps(wrong))
        with pytest.raises(ServerError, match=r"1_LogitScore/config.json"):
            yes_and_no(preparer)


MESSAGES = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content if m.content is string else m.content[0].text }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def with_messages(folder: Path, template: str, **asked: Any) -> Path:
    """A folder whose texts sentence-transformers gives its chat template as messages."""
    (folder / "chat_template.jinja").write_text(template)
    said = {"modality_config": {"text": {}, "message": {"format": "flat", **asked}}}
    (folder / "sentence_bert_config.json").write_text(json.dumps(said))
    return folder


@pytest.mark.parametrize("form", ["flat", "structured"])
def test_a_text_is_a_message_where_the_folder_says_so(tmp_path: Path, form: str) -> None:
    plain = tiny_model("qwen3", tmp_path / "plain")
    (plain / "modules.json").unlink(missing_ok=True)
    folder = with_messages(tiny_model("qwen3", tmp_path / "model"), MESSAGES, format=form)
    (folder / "modules.json").unlink(missing_ok=True)
    prompts = {"prompts": {"query": "Find it."}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    found, expected = load(folder), load(plain)
    written = [f"<|im_start|>user\n{text}<|im_end|>\n" for text in TEXTS]
    own = expected[0].tokenizer.template
    assert np.abs(embed(found, *TEXTS) - embed(expected, *map(own, written))).max() < 1e-5
    told = "<|im_start|>system\nFind it.<|im_end|>\n" + written[0]
    asked = embed(found, TEXTS[0], instruction="query")
    assert np.abs(asked - embed(expected, own(told))).max() < 1e-5
    # A client's marker is text.
    (marker, *_) = Tokenizer.from_file(str(plain / "tokenizer.json")).get_added_tokens_decoder().values()
    read = own(written[1].replace(TEXTS[1], marker.content))
    assert np.abs(embed(found, marker.content) - embed(expected, read)).max() > 1e-3


def asked_of(folder: Path, **fields: Any) -> tuple[RerankingPreparer, tuple[int, ...]]:
    preparer = RerankingPreparer(WorkerSpec(info=read_info(folder)))
    assert read_info(folder).kind == "reranking"
    documents = (RerankDocument((Text("A tall tower."),)),)
    job = preparer.prepare("one", Rerank(query="what stands", documents=documents, **fields))
    assert isinstance(job, EncodingJob)
    return preparer, job.sequences[0].tokens


def test_a_pair_is_asked_in_the_folders_own_template(tmp_path: Path) -> None:
    """Of a model of any type; the document may come first."""
    folder = tiny_model("llama", tmp_path / "scorer")
    own = (
        "{{ (messages | selectattr('role', 'eq', 'document') | first).content }}\nAnswers: "
        "{{ (messages | selectattr('role', 'eq', 'query') | first).content }}?"
    )
    with_messages(folder, own)
    sentences = {"model_type": "CrossEncoder", "prompts": {}, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(sentences))
    preparer, tokens = asked_of(folder)
    assert tokens == preparer.tokenizer.template("A tall tower.\nAnswers: what stands?")
    with pytest.raises(ServerError, match=r"no place in this reranker's chat template"):
        asked_of(folder, instruction="find it")
    with_messages(folder, MESSAGES)
    preparer, tokens = asked_of(folder, instruction="find it")
    parts = (("system", "find it"), ("query", "what stands"), ("document", "A tall tower."))
    written = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in parts)
    assert tokens == preparer.tokenizer.template(written)
    with_messages(folder, "{{ messages[0].content }}")
    with pytest.raises(ServerError, match="does not write document once"):
        asked_of(folder)


def test_a_pair_without_messages_is_a_pair_and_other_modules_are_refused(tmp_path: Path) -> None:
    folder = tiny_model("llama", tmp_path / "scorer")
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"model_type": "CrossEncoder"}))
    kinds = ["Transformer", "LogitScore"]
    rows = [{"type": f"sentence_transformers.modules.{kind}", "path": ""} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(rows))
    preparer, tokens = asked_of(folder)
    assert tokens == preparer.tokenizer.encode("what stands", "A tall tower.").tokens
    (folder / "modules.json").write_text(json.dumps([*rows, {"type": "sentence_transformers.models.Dense"}]))
    with pytest.raises(ServerError, match=r"modules.json .* names Dense"):
        asked_of(folder)


def test_qwen3_rerankers_prompt_is_one_text(tmp_path: Path) -> None:
    """As its publisher tokenizes it: a query begins with a token that has the space in front."""
    folder = tiny_model("qwen3", tmp_path / "qwen3-reranker", vocab_size=400)
    words = Tokenizer(BPE())
    words.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(vocab_size=400, initial_alphabet=ByteLevel.alphabet(), special_tokens=["<|im_end|>"])
    words.train_from_iterator([INSTRUCTION, "so what stands"] * 2, trainer)
    words.save(str(folder / "tokenizer.json"))
    preparer, tokens = asked_of(folder)
    assert words.token_to_id("Ġwhat") in tokens
    whole = f"{PREFIX}<Instruct>: {INSTRUCTION}\n<Query>: what stands\n<Document>: A tall tower.{SUFFIX}"
    assert tokens == preparer.tokenizer.template(whole)


def test_a_wrapper_in_the_names_of_an_encoders_tensors_is_told(minilm: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(minilm, tmp_path / "model")
    arrays = mx.load(str(folder / "model.safetensors"))
    mx.save_safetensors(
        str(folder / "model.safetensors"), {f"module.{name}": arrays[name] for name in arrays}
    )
    with pytest.raises(ServerError, match=r"model\.module\.save_pretrained"):
        load(folder)
