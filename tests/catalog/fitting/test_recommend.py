"""The list that `pippin recommend` picks from: its sizes against MLX's own modules, and what is picked."""

from typing import Any

import pytest

from pippin.catalog.fitting import QUICK, Recommended, bandwidth, pick, recommended
from pippin.catalog.footprint import context_bytes
from pippin.catalog.names import is_repository
from pippin.config.options.model import ModelOptions

LISTED = {each.id.removeprefix("mlx-community/"): each for each in recommended()}
PUBLISHED = {
    "Qwen3-Coder-30B-A3B-Instruct-4bit": 30.5,
    "Qwen3-30B-A3B-Instruct-2507-4bit": 30.5,
    "gpt-oss-20b-MXFP4-Q8": 20.9,
    "Qwen3-14B-4bit": 14.8,
    "Qwen3-8B-4bit": 8.2,
    "Qwen3-4B-Instruct-2507-4bit": 4.0,
    "Qwen3-1.7B-4bit": 1.7,
    "Llama-3.2-1B-Instruct-4bit": 1.24,
    "Qwen3-VL-8B-Instruct-4bit": 8.8,
    "Qwen3-VL-4B-Instruct-4bit": 4.4,
    "Qwen2.5-Coder-14B-Instruct-4bit": 14.7,
    "Qwen2.5-Coder-7B-Instruct-4bit": 7.6,
    "Qwen2.5-Coder-1.5B-Instruct-4bit": 1.54,
    "Qwen3-Embedding-8B-4bit-DWQ": 7.6,
    "Qwen3-Embedding-0.6B-4bit-DWQ": 0.6,
}
"""Billions of weights that the models' makers name. Gemma's store their embeddings twice, which makers count once."""


def config(listed: Recommended) -> dict[str, Any]:
    """What mlx-lm's classes need, with what the list says of the decoder."""
    return {
        "num_experts_per_tok": 4,
        "max_position_embeddings": 32_768,
        "num_experts": 0,
        "moe_intermediate_size": 0,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_traditional": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        **decoder_config(listed),
    }


def decoder_config(listed: Recommended) -> dict[str, Any]:
    found: dict[str, Any] = listed.config.get("text_config") or listed.config
    return found


def decoder(listed: Recommended) -> Any:
    """mlx-lm's module of this shape in 16 bits, quantised as the list says. Nothing of it is computed."""
    import mlx.core as mx
    from mlx import nn
    from mlx_lm.utils import _get_classes

    kind, arguments = _get_classes(config(listed))
    model = kind(arguments.from_dict(config(listed)))
    model.set_dtype(mx.bfloat16)

    def how(path: str, module: Any) -> Any:
        if not hasattr(module, "to_quantized"):
            return False
        if listed.config["model_type"] == "gpt_oss" and "experts" in path:
            return {"group_size": 32, "bits": 4, "mode": "mxfp4"}
        return {"group_size": 64, "bits": 8 if listed.config["model_type"] == "gpt_oss" else 4}

    nn.quantize(model, class_predicate=how)
    return model


def bytes_in(model: Any) -> int:
    from mlx.utils import tree_flatten

    return sum(array.nbytes for _, array in tree_flatten(model.parameters()))


DECODERS = [
    name
    for name, each in LISTED.items()
    if each.purposes[0] != "embed" and "vision_config" not in each.config
]


@pytest.mark.parametrize("name", DECODERS)
def test_sizes_are_those_of_the_modules_that_mlx_makes(name: str) -> None:
    listed = LISTED[name]
    assert listed.stored == pytest.approx(bytes_in(decoder(listed)), rel=0.005)


@pytest.mark.parametrize(
    "name", ["Qwen3-VL-2B-Instruct-4bit", "Qwen3-VL-4B-Instruct-4bit", "Qwen3-VL-8B-Instruct-4bit"]
)
def test_the_tower_for_pictures_is_counted(name: str) -> None:
    from mlx.utils import tree_flatten
    from mlx_vlm.models.qwen3_vl.config import VisionConfig
    from mlx_vlm.models.qwen3_vl.vision import VisionModel

    listed = LISTED[name]
    vision = VisionConfig(
        model_type="qwen3_vl",
        **listed.config["vision_config"],
        out_hidden_size=decoder_config(listed)["hidden_size"],
        num_heads=16,
        num_position_embeddings=2304,
        deepstack_visual_indexes=[5, 11, 17],
    )
    tower = sum(array.size for _, array in tree_flatten(VisionModel(vision).parameters()))
    packed = bytes_in(decoder(listed))
    assert listed.stored == pytest.approx(packed + 2 * tower, rel=0.005)
    assert listed.weights == pytest.approx(packed * 8 / 4.5 + tower, rel=0.01)


@pytest.mark.parametrize("name", PUBLISHED)
def test_as_many_weights_are_counted_as_the_makers_name(name: str) -> None:
    assert LISTED[name].weights / 1e9 == pytest.approx(PUBLISHED[name], rel=0.02, abs=0.05)


@pytest.mark.parametrize(("name", "billions"), [("4b", 4.3), ("12b", 12.2), ("27b", 27.4)])
def test_gemma_has_its_embeddings_twice(name: str, billions: float) -> None:
    listed = LISTED[f"gemma-3-{name}-it-4bit"]
    table = decoder_config(listed)["vocab_size"] * decoder_config(listed)["hidden_size"]
    assert (listed.weights - table) / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize("name", ["gpt-oss-20b-MXFP4-Q8", "gemma-3-27b-it-4bit"])
def test_windows_are_those_of_the_caches_which_mlx_makes(name: str) -> None:
    from mlx_lm.models.cache import KVCache

    told = decoder_config(LISTED[name])
    caches = decoder(LISTED[name]).make_cache()
    full = sum(type(each) is KVCache for each in caches)
    assert {each.max_size for each in caches if type(each) is not KVCache} == {told["sliding_window"]}
    tokens = full * 8192 + (len(caches) - full) * told["sliding_window"]
    token = 2 * told["num_key_value_heads"] * told["head_dim"] * 2
    assert context_bytes(LISTED[name].config, 8192, 2, ModelOptions()) == tokens * token


def test_the_list_that_ships_is_sound() -> None:
    assert len(LISTED) == len(recommended())
    assert all(is_repository(each.id) and each.purposes and each.stored > 0 for each in recommended())


def test_what_fits_best_comes_first() -> None:
    listed = recommended()
    assert pick(listed, "code", 8_000_000_000, on_cpu=False)[0].id.endswith("Qwen2.5-Coder-7B-Instruct-4bit")
    best = pick(listed, "code", 24_000_000_000, on_cpu=False)
    assert best[0].id.endswith("Qwen3-Coder-30B-A3B-Instruct-4bit")
    assert all(each.needed(on_cpu=False) <= 8e9 for each in pick(listed, "chat", 8_000_000_000, on_cpu=False))
    assert pick(listed, "vision", 10**12, on_cpu=True)[0].purposes[0] == "vision"
    assert pick(listed, "embed", 1000, on_cpu=False) == []


def test_a_cpu_without_kernels_holds_every_weight_in_float32() -> None:
    vision = LISTED["gemma-3-4b-it-4bit"]
    assert vision.needed(on_cpu=True) > 4 * vision.weights


def test_a_token_reads_the_weights_that_compute_it() -> None:
    experts, dense = LISTED["gpt-oss-20b-MXFP4-Q8"], LISTED["Qwen3-14B-4bit"]
    assert experts.speed(1e10, on_cpu=False) > dense.speed(1e10, on_cpu=False)
    assert dense.speed(dense.stored, on_cpu=False) == 1
    assert bandwidth() > 1e8


def test_what_is_quick_on_this_machine_comes_before_what_is_large() -> None:
    found = pick(recommended(), "chat", 10**12, on_cpu=False, bandwidth=2e10)
    speeds = [each.speed(2e10, on_cpu=False) for each in found]
    slow = next(number for number, speed in enumerate(speeds) if speed < QUICK)
    assert slow > 0
    assert all(speed >= QUICK for speed in speeds[:slow])
    assert all(speed < QUICK for speed in speeds[slow:])
