"""Loading: what a broken or foreign folder is told, and the types that weights run in."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import msgspec
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import quantize_model, save_model

from pippin.cli.main import main
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo
from pippin.engines.language.model.weights import Reading, load_weights
from pippin.engines.language.upstream.stored import read_arrays, refuse_bytes
from tests.engines.language.architectures.any_architecture import write
from tests.engines.language.bench import PLAN
from tests.engines.language.vision.tiny_vision_models import tiny_vision_model
from tests.engines.tiny_models import tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_model("llama", tmp_path / "llama")


def load(folder: Path, *, trust: bool = False, plan=PLAN):  # type: ignore[no-untyped-def]
    info = ModelInfo(id="m", kind="language", path=str(folder), architecture="llama")
    return load_weights(info, plan, lambda *_: None, Reading(trust_remote_code=trust))


def config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def refusal(folder: Path, **how: object) -> str:
    with pytest.raises(ServerError) as caught:
        load(folder, **how)
    assert caught.value.report.kind == "load_failed"
    return caught.value.report.message


def test_code_in_the_folder_is_not_run_without_trust(folder: Path) -> None:
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    config(folder, model_file="evil.py")
    assert "--trust-remote-code" in refusal(folder)
    with pytest.raises(SystemExit, match="ran"):
        load(folder, trust=True)


def test_a_folder_without_safetensors_says_what_to_do(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    message = refusal(folder)
    assert "pytorch_model.bin, which is not read" in message
    assert f"Model.from_pretrained('{folder}').save_pretrained('{folder}')\"" in message


def test_weights_by_another_name_are_told(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    assert "weights.safetensors is not read. If its tensors" in refusal(folder)


def test_experts_that_were_repacked_for_the_disk_are_refused(folder: Path) -> None:
    (folder / "offload_index.json").write_text("{}")
    assert "use the checkpoint that it was made from" in refusal(folder)


def test_missing_shards_are_named(folder: Path) -> None:
    names = {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}
    index_of(folder, names)
    assert "1 of 2 files are missing (model-00002-of-00002.safetensors)" in refusal(folder)


def index_of(folder: Path, names: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def in_two(folder: Path) -> dict[str, str]:
    """The model's file becomes two with an index, which is returned."""
    weights = mx.load(str(folder / "model.safetensors"))
    names = sorted(weights)
    parts = {"model-00001-of-00002.safetensors": names[:5], "model-00002-of-00002.safetensors": names[5:]}
    for file, held in parts.items():
        mx.save_safetensors(str(folder / file), {name: weights[name] for name in held})
    (folder / "model.safetensors").unlink()
    index = {name: file for file, held in parts.items() for name in held}
    index_of(folder, index)
    return index


TOKENS = mx.array([[5, 90, 31, 7, 140, 18]])


def test_an_index_of_other_files_than_there_are_is_left_aside(folder: Path) -> None:
    expected = load(folder)[0](TOKENS)
    index_of(folder, {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"})
    assert mx.array_equal(load(folder)[0](TOKENS), expected)
    index_of(folder, None)
    assert mx.array_equal(load(folder)[0](TOKENS), expected)


def test_a_stray_file_beside_those_of_the_index_is_left_aside(folder: Path, tmp_path: Path) -> None:
    expected = load(folder)[0](TOKENS)
    in_two(folder)
    other = tiny_model("llama", tmp_path / "other", seed=8)
    # Whatever order the folder is listed in, one of them is the last.
    for name in ("model.safetensors", "model-00000.safetensors", "model-zzz.safetensors"):
        shutil.copy(other / "model.safetensors", folder / name)
    assert mx.array_equal(load(folder)[0](TOKENS), expected)


def test_two_files_with_the_same_tensor_and_no_index_are_refused(folder: Path) -> None:
    in_two(folder)
    (folder / "model.safetensors.index.json").unlink()
    shutil.copy(folder / "model-00001-of-00002.safetensors", folder / "model.safetensors")
    message = refusal(folder)
    assert "model-00001-of-00002.safetensors" in message
    assert "both hold" in message


def test_the_file_that_the_index_names_for_a_tensor_counts(folder: Path) -> None:
    expected = load(folder)[0](TOKENS)
    index = in_two(folder)
    second = folder / "model-00002-of-00002.safetensors"
    first = next(name for name, file in index.items() if file != second.name)
    weights = mx.load(str(second))
    mx.save_safetensors(str(second), {**weights, first: weights[next(iter(weights))] * 0})
    assert mx.array_equal(load(folder)[0](TOKENS), expected)


def test_tensors_that_are_missing_or_too_many_are_named(folder: Path) -> None:
    weights = mx.load(str(folder / "model.safetensors"))
    norm = weights.pop("model.norm.weight")
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    message = refusal(folder)
    assert "the files lack model.norm.weight. Fetch them again, or take a newer mlx-lm" in message
    more = {**weights, "model.norm.weight": norm, **{f"mtp.{n}.weight": norm for n in range(6)}}
    mx.save_safetensors(str(folder / "model.safetensors"), more)
    assert "it does not know mtp.0.weight, mtp.1.weight, mtp.2.weight, mtp.3.weight and 2 more" in refusal(
        folder
    )


def test_an_untied_head_that_is_missing_is_named(folder: Path) -> None:
    config(folder, tie_word_embeddings=False)
    assert "the files lack lm_head.weight" in refusal(folder)


def test_a_head_that_is_the_embedding_counts_where_a_class_has_one_of_its_own(tmp_path: Path) -> None:
    untied = write("gpt_oss", tmp_path / "untied")
    config(untied, tie_word_embeddings=False)
    weights = mx.load(str(untied / "model.safetensors"))
    mx.save_safetensors(
        str(untied / "model.safetensors"), {**weights, "lm_head.weight": weights["model.embed_tokens.weight"]}
    )
    expected = load(untied)[0](TOKENS)
    del weights["lm_head.weight"]
    mx.save_safetensors(str(untied / "model.safetensors"), weights)
    assert "the files lack lm_head.weight" in refusal(untied)
    config(untied, tie_word_embeddings=True)
    assert mx.array_equal(load(untied)[0](TOKENS), expected)


def test_a_stored_head_that_is_not_the_embedding_counts_as_in_transformers(
    folder: Path, tmp_path: Path
) -> None:
    def with_head(folder: Path, factor: float) -> None:
        weights = mx.load(str(folder / "model.safetensors"))
        head = weights["model.embed_tokens.weight"] * factor
        mx.save_safetensors(str(folder / "model.safetensors"), {**weights, "lm_head.weight": head})

    expected = load(folder)[0](TOKENS)
    with_head(folder, 1.0)
    assert mx.array_equal(load(folder)[0](TOKENS), expected)
    with_head(folder, 2.0)
    assert mx.allclose(load(folder)[0](TOKENS), 2 * expected, rtol=1e-5)
    always_tied = tiny_model("gemma2", tmp_path / "gemma2")
    with_head(always_tied, 2.0)
    assert "lm_head.weight is not the embedding" in refusal(always_tied)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty: fetch it again"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"),
        (b"<!DOCTYPE html><html><body>Sign in</body></html>", "is a web page"),
    ],
    ids=["empty", "lfs", "page"],
)
def test_a_file_that_holds_something_else_is_told(folder: Path, content: bytes, what: str) -> None:
    (folder / "model.safetensors").write_bytes(content)
    message = refusal(folder)
    assert f"model.safetensors of the model 'm' {'is' if what == 'git lfs pull' else ''}".strip() in message
    assert what in message
    assert str(folder) not in message


def test_a_field_that_the_architecture_needs_is_named(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(
        json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "num_hidden_layers"})
    )
    message = refusal(folder)
    assert message.startswith(
        "The config.json of 'm' lacks 'num_hidden_layers', which the installed mlx-lm needs"
    )


def test_an_epsilon_that_a_file_leaves_out_is_the_one_that_transformers_takes(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(
        json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "rms_norm_eps"})
    )
    assert load(folder)[0].args.rms_norm_eps == 1e-6


def test_a_field_that_the_class_of_an_architecture_does_not_read_is_refused(folder: Path) -> None:
    expected = load(folder)[0](TOKENS)
    config(folder, hidden_act="silu")
    assert mx.array_equal(load(folder)[0](TOKENS), expected)
    config(folder, hidden_act="gelu")
    assert "hidden_act 'gelu' is not read by the class" in refusal(folder)
    for field, value in (("use_bidirectional_attention", True), ("is_causal", False)):
        config(folder, **{"hidden_act": "silu", "use_bidirectional_attention": False, field: value})
        assert "is_causal false are read with --model-kind embeddings alone" in refusal(folder)


def test_a_model_that_takes_pictures_and_attends_both_ways_is_refused(tmp_path: Path) -> None:
    folder = tiny_vision_model("gemma3", tmp_path / "m", use_bidirectional_attention=True)
    assert "use_bidirectional_attention true and is_causal false are read with" in refusal(folder)


@pytest.mark.parametrize(
    "fields", [{"num_attention_heads": 0}, {"num_hidden_layers": "3"}, {"rope_scaling": [1]}]
)
def test_a_configuration_of_which_no_model_can_be_made_is_refused(
    folder: Path, fields: dict[str, Any]
) -> None:
    config(folder, **fields)
    assert "cannot be loaded" in refusal(folder)
    config(folder, model_type=5)
    assert "names no model_type" in refusal(folder)


def test_a_weight_of_true_and_false_is_refused(folder: Path) -> None:
    arrays: Any = mx.load(str(folder / "model.safetensors"))
    name = next(each for each in arrays if each.endswith("q_proj.weight"))
    mx.save_safetensors(str(folder / "model.safetensors"), {**arrays, name: arrays[name] > 0})
    assert f"{name} holds integers (bool" in refusal(folder)


def test_a_bias_of_integers_is_refused() -> None:
    layer = nn.Linear(4, 4)
    layer.bias = layer.bias.astype(mx.int64)
    with pytest.raises(ValueError, match="bias holds integers"):
        refuse_bytes(nn.Sequential(layer))


def test_infinity_in_a_configuration_is_read(folder: Path) -> None:
    config(folder, time_step_limit=[0.0, float("inf")], other={"__float__": "Infinity"})
    assert load(folder)[1]["other"] == float("inf")


def test_a_size_of_heads_that_a_class_does_not_read_is_named(tmp_path: Path) -> None:
    folder = write("mixtral", tmp_path / "model")
    arrays = mx.load(str(folder / "model.safetensors"))
    for name, array in arrays.items():
        if "self_attn" in name:
            arrays[name] = mx.concatenate([array, array], axis=int("o_proj" in name))
    mx.save_safetensors(str(folder / "model.safetensors"), arrays, {"format": "mlx"})
    config = json.loads((folder / "config.json").read_text())
    size = 2 * config["hidden_size"] // config["num_attention_heads"]
    (folder / "config.json").write_text(json.dumps(config | {"head_dim": size}))
    assert f"head_dim {size} is not read by the class of this architecture" in refusal(folder)


def test_an_unknown_architecture_points_to_a_newer_mlx_lm(folder: Path) -> None:
    config(folder, model_type="tomorrow")
    assert "newer mlx-lm" in refusal(folder)
    config(folder, architectures=["TomorrowForConditionalGeneration"], vision_config={})
    assert "newer mlx-vlm" in refusal(folder)


@pytest.mark.parametrize(
    ("name", "told", "purpose"),
    [
        ("AlbertForMaskedLM", "its encoders are bert, camembert, distilbert", "embed"),
        ("T5ForConditionalGeneration", "an encoder and a decoder", "chat"),
        ("ViTForImageClassification", "no language model (ViTForImageClassification)", "chat"),
        ("Wav2Vec2ForCTC", "no language model (Wav2Vec2ForCTC)", "chat"),
    ],
)
def test_what_writes_no_text_is_not_promised_of_a_newer_mlx_lm(
    name: str, told: str, purpose: str, folder: Path
) -> None:
    config(folder, model_type="other", architectures=[name], is_encoder_decoder=name.startswith("T5"))
    message = refusal(folder)
    assert told in message
    assert f"`pippin recommend --for {purpose}`" in message
    assert "newer" not in message
    assert main(["recommend", "--for", purpose]) == 0


@pytest.mark.parametrize(
    ("old", "new", "way"),
    [
        ("model.", "module.model.", "model.module.save_pretrained"),
        ("layers.0.", "layers.0._orig_mod.", "model._orig_mod.save_pretrained"),
        ("model.", "base_model.model.model.", "merge_and_unload"),
        ("model.", "", "--model-kind embeddings"),
    ],
)
def test_names_of_tensors_that_a_wrapper_changed_are_told_of(
    old: str, new: str, way: str, folder: Path
) -> None:
    arrays = mx.load(str(folder / "model.safetensors"))
    renamed = {name.replace(old, new): array for name, array in arrays.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), renamed)
    message = refusal(folder)
    assert way in message
    assert "newer" not in message


def test_a_broken_config_is_a_refusal(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    assert "config.json" in refusal(folder)


def test_a_truncated_file_is_a_refusal(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert (
        f"model.safetensors of the model 'm' is cut off: {len(whole) - 1} of {len(whole)} bytes"
        in refusal(folder)
    )
    path.write_bytes(whole[:5])
    assert "has a damaged header" in refusal(folder)


def rewritten(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """A safetensors file with another header before the same numbers."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    change(header)
    words = json.dumps(header).encode()
    path.write_bytes(len(words).to_bytes(8, "little") + words + data[end:])


UP = "model.layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("told", "what"),
    [
        ({"dtype": "F64"}, f"holds {UP} in numbers of the type F64, which MLX does not read"),
        ({"data_offsets": [0, 4]}, f"says of {UP} that it lies where its numbers cannot be"),
        ({"shape": [-1, -1]}, f"says of {UP} that it lies where its numbers cannot be"),
    ],
)
def test_an_array_that_cannot_be_as_its_file_says_is_named(
    folder: Path, told: dict[str, Any], what: str
) -> None:
    rewritten(folder / "model.safetensors", lambda header: header[UP].update(told))
    assert f"model.safetensors of the model 'm' {what}" in refusal(folder)


def test_two_arrays_in_one_place_are_told(folder: Path) -> None:
    def as_the_gate(header: dict[str, Any]) -> None:
        header[UP] = header[UP.replace("up", "gate")]

    rewritten(folder / "model.safetensors", as_the_gate)
    assert "that it lies where its numbers cannot be" in refusal(folder)


def test_notes_that_are_no_texts_are_told(folder: Path) -> None:
    rewritten(folder / "model.safetensors", lambda header: header.update(__metadata__=[1]))
    assert "model.safetensors of the model 'm' has a damaged header" in refusal(folder)


def test_an_index_that_names_the_wrong_files_does_not_count(folder: Path) -> None:
    whole = load(folder)[0](mx.array([[1, 2, 3]]))
    index = in_two(folder)
    one, two = sorted({*index.values()})
    index_of(folder, {name: two if file == one else one for name, file in index.items()})
    assert mx.array_equal(load(folder)[0](mx.array([[1, 2, 3]])), whole)


def test_too_large_is_refused_with_the_numbers(folder: Path) -> None:
    assert "GiB" in refusal(folder, plan=msgspec.structs.replace(PLAN, memory_limit=1000))


def test_quantised_weights_are_widened_on_a_cpu_and_kept_elsewhere(folder: Path, tmp_path: Path) -> None:
    model, settings = load(folder)
    settings = json.loads((folder / "config.json").read_text())
    model, settings = quantize_model(model, settings, 32, 4)
    target = tmp_path / "quantised"
    target.mkdir()
    save_model(target, model)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, target)
    (target / "config.json").write_text(json.dumps(settings))
    tokens = mx.array([[1, 2, 3]])
    wide, _ = load(target)
    assert not any(isinstance(module, nn.QuantizedLinear) for module in wide.modules())
    assert all(array.dtype == mx.float32 for _, array in tree_flatten(wide.parameters()))
    kept, _ = load(target, plan=msgspec.structs.replace(PLAN, run_type=None, dequantize=False))
    assert any(isinstance(module, nn.QuantizedLinear) for module in kept.modules())
    assert mx.allclose(wide(tokens), kept(tokens), atol=1e-3)
    half, _ = load(target, plan=msgspec.structs.replace(PLAN, run_type="bfloat16", dequantize=False))
    assert half(tokens).dtype == mx.bfloat16


def test_rope_parameters_mean_what_rope_theta_and_rope_scaling_do(folder: Path) -> None:
    tokens, scaling = mx.array([[5, 90, 31, 7, 140, 18]]), {"rope_type": "linear", "factor": 4.0}
    config(folder, rope_theta=5e5, rope_scaling=scaling)
    expected = load(folder)[0](tokens)
    config(folder, rope_theta=None, rope_scaling=None, rope_parameters={"rope_theta": 5e5, **scaling})
    assert mx.array_equal(load(folder)[0](tokens), expected)


def test_a_null_that_transformers_refuses_is_named(tmp_path: Path) -> None:
    folder = tiny_model("llama", tmp_path / "llama")
    config(folder, rms_norm_eps=None)
    assert "rms_norm_eps is null in config.json" in refusal(folder)
    config(folder, rms_norm_eps=1e-5, rope_parameters={"rope_theta": None, "rope_type": "default"})
    assert "rope_theta is null in config.json" in refusal(folder)


def test_rotary_settings_that_a_class_leaves_out_are_named(tmp_path: Path) -> None:
    folder = tiny_model("llama", tmp_path / "llama")
    scaled = {"rope_theta": 5e5, "partial_rotary_factor": 0.5, "rope_type": "linear", "factor": 2.0}
    config(folder, rope_parameters=scaled)
    assert "partial_rotary_factor 0.5 is not read" in refusal(folder)


@pytest.mark.parametrize("whole", [True, False])
def test_a_stored_head_counts_where_the_parts_of_a_configuration_disagree(
    whole: bool, tmp_path: Path
) -> None:
    arrays = {"model.embed_tokens.weight": mx.ones((4, 2)), "lm_head.weight": mx.zeros((4, 2))}
    mx.save_safetensors(str(tmp_path / "model.safetensors"), arrays)
    said = {"tie_word_embeddings": whole, "text_config": {"tie_word_embeddings": not whole}}
    read_arrays(tmp_path, said)
    assert said == {"tie_word_embeddings": False, "text_config": {"tie_word_embeddings": False}}
