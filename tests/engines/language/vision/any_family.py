"""Tiny random checkpoints of any family of mlx-vlm, made from its own configuration classes.

Every size in the defaults of a family's configuration is brought down by its name (`SIZES`), and what a family needs
beyond that is in `FAMILIES`. Special tokens are those that its package spells.
"""

import dataclasses
import importlib
import inspect
import json
import re
import typing
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

Json = dict[str, Any]

WIDTH = 64
LARGEST = 100_000_000  # bytes of weights, before any is made
SIZES: dict[str, int] = {
    **dict.fromkeys(
        (
            *(
                "hidden_size",
                "embed_dim",
                "dim",
                "d_model",
                "width",
                "n_embd",
                "mm_hidden_size",
                "text_hidden_size",
            ),
            *("out_hidden_size", "projection_dim", "vision_hidden_size", "llm_hidden_size", "embedding_size"),
            *("hidden_dim", "feat_dim", "n_embed", "output_dim", "input_dim", "vision_output_dim", "out_dim"),
            *("projector_hidden_size", "audio_hidden_size", "enc_dim", "vision_output_size", "proj_out_dim"),
        ),
        WIDTH,
    ),
    **dict.fromkeys(
        (
            *("num_hidden_layers", "depth", "layers", "num_layers", "n_layers", "n_layer", "encoder_layers"),
            *("decoder_layers", "num_global_layers", "vt_num_hidden_layers", "enc_n_layers", "dec_n_layers"),
        ),
        2,
    ),
    **dict.fromkeys(
        (
            *("num_attention_heads", "num_heads", "heads", "n_heads", "n_head", "encoder_attention_heads"),
            *("decoder_attention_heads", "attention_heads", "vt_num_attention_heads", "num_key_value_heads"),
            *("n_kv_heads", "attention_num_heads", "enc_n_heads", "dec_n_heads"),
        ),
        4,
    ),
    **dict.fromkeys(
        (
            *("intermediate_size", "mlp_dim", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "ff_dim"),
            *("mlp_hidden_size", "vt_intermediate_size", "projector_intermediate_size", "enc_ff_dim"),
        ),
        96,
    ),
    **dict.fromkeys(("head_dim", "v_head_dim", "qk_nope_head_dim", "attention_head_size", "kv_channels"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "n_shared_experts", "moe_k", "n_group", "topk_group"), 1),
    **dict.fromkeys(
        ("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 32
    ),
    "image_size": 32,
    "img_size": 32,
    "patch_size": 8,
    "spatial_patch_size": 8,
    "max_position_embeddings": 4096,
    "sliding_window": 24,
    "eos_token_id": 256,
    "bos_token_id": 256,
    "pad_token_id": 256,
}
PLACEHOLDERS = ("image_token_index", "image_token_id")
HALVES = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: "
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}IMAGE{% elif part.type == 'text' %}"
    "{{ part.text or part.content }}{% endif %}{% endfor %}"
    "{% endif %}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
MARKER = re.compile(r"<[|/]?[\w|/ :\-.]{2,40}\|?>|\[[A-Z_]{2,12}\]|<｜[\w▁]+｜>")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """What a family needs beyond its own defaults. Values that are names of tokens become their ids."""

    config: Json = dataclasses.field(default_factory=dict)
    tokens: tuple[str, ...] = ()
    ids: dict[str, int] = dataclasses.field(
        default_factory=dict
    )  # of tokens whose ids the package spells as numbers
    mark: str | None = None  # the token that features replace, where it is not all of `image`
    image: str = "<image>"  # what the chat template writes for a picture; None for a model without a template
    template: str | None = TEMPLATE
    preprocessor: Json = dataclasses.field(default_factory=dict)
    processor: Json = dataclasses.field(default_factory=dict)
    tokenizer: Json = dataclasses.field(default_factory=dict)


CLIP = {"vision_config": {"model_type": "clip_vision_model"}, "vision_feature_layer": -2}
SQUARE: Json = {"size": {"height": 32, "width": 32}, **HALVES}
GLM = {
    "patch_size": 8,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "size": {"shortest_edge": 256, "longest_edge": 4096},
}
ANYRES: Json = {
    "size": {"shortest_edge": 32},
    "crop_size": {"height": 32, "width": 32},
    "image_grid_pinpoints": [[32, 64], [64, 32]],
    **HALVES,
}
WITH_CLASS: Json = {
    "patch_size": 8,
    "vision_feature_select_strategy": "default",
    "num_additional_image_tokens": 1,
}
QWEN = "<|vision_start|><|image_pad|><|vision_end|>"
QWEN_PIXELS: Json = {
    "patch_size": 8,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "min_pixels": 256,
    "max_pixels": 4096,
}
QWEN_TOKENS = ("<|vision_start|>", "<|image_pad|>", "<|video_pad|>", "<|vision_end|>")
QWEN_IDS: Json = {
    "video_token_id": "<|video_pad|>",
    "video_token_index": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}
TOWER: Json = {
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
}
MOLMO_IDS = {
    "image_patch_id": "<im_patch>",
    "image_start_token_id": "<im_start>",
    "image_end_token_id": "<im_end>",
    "image_col_id": "<im_col>",
    "low_res_image_start_token_id": "<low_res_im_start>",
    "image_low_res_id": "<im_low>",
    "frame_start_token_id": "<frame_start>",
    "frame_end_token_id": "<frame_end>",
}

FAMILIES: dict[str, Family] = {
    "internvl_chat": Family(),
    "llava_next": Family(
        config={**CLIP, "text_config": {"model_type": "llama"}, "image_grid_pinpoints": [[32, 64], [64, 32]]},
        preprocessor={"image_processor_type": "LlavaNextImageProcessor", **ANYRES},
        processor={"processor_class": "LlavaNextProcessor", **WITH_CLASS},
    ),
    "granite_vision": Family(
        config={"vision_feature_layer": [-2, -1], "image_grid_pinpoints": [[32, 64], [64, 32]]},
        preprocessor={"image_processor_type": "LlavaNextImageProcessor", **ANYRES},
        processor={"processor_class": "LlavaNextProcessor", **WITH_CLASS},
    ),
    "paligemma": Family(
        config={
            "text_config": {"model_type": "gemma"},
            "vision_config": {"model_type": "siglip_vision_model"},
        },
        preprocessor={"image_processor_type": "SiglipImageProcessor", "image_seq_length": 16, **SQUARE},
        processor={"processor_class": "PaliGemmaProcessor", "image_seq_length": 16},
        tokenizer={"extra_special_tokens": {"image_token": "<image>"}},
    ),
    "idefics2": Family(
        tokens=("<fake_token_around_image>", "<end_of_utterance>"),
        config={"perceiver_config": {"resampler_n_latents": 8, "resampler_depth": 1, "resampler_n_heads": 4}},
        preprocessor={
            "image_processor_type": "Idefics2ImageProcessor",
            "size": {"shortest_edge": 24, "longest_edge": 32},
            "do_image_splitting": False,
            **HALVES,
        },
        processor={"processor_class": "Idefics2Processor", "image_seq_len": 8},
    ),
    "glm4v": Family(image="<|image|>", tokens=("<|video|>",), preprocessor=GLM),
    "glm_ocr": Family(image="<|image|>", tokens=("<|video|>",), preprocessor=GLM),
    "llava_onevision": Family(
        tokens=("<video>",),
        config={
            "image_grid_pinpoints": [[32, 64], [64, 32]],
            "vision_feature_layer": -1,
            "vision_aspect_ratio": "anyres_max_9",
            "text_config": {"model_type": "qwen2"},
        },
        preprocessor={**ANYRES, "size": {"height": 32, "width": 32}},
        processor={"num_image_tokens": 16, "vision_feature_select_strategy": "full"},
    ),
    "aya_vision": Family(
        config={
            "image_token_index": "<|IMG_PATCH|>",
            "downsample_factor": 2,
            "vision_feature_select_strategy": "full",
            "vision_feature_layer": -1,
            "text_config": {"layer_types": ["full_attention"] * 2, "sliding_window_pattern": 1},
            "vision_config": {"model_type": "siglip_vision_model"},
        },
        preprocessor=SQUARE,
        processor={"patch_size": 8, "img_size": 32, "downsample_factor": 2},
    ),
    "cohere_compass": Family(
        image="<|VISION_START|><|IMAGE_PAD|><|VISION_END|>",
        mark="<|IMAGE_PAD|>",
        tokens=("<|VISION_START|>", "<|VISION_END|>"),
        preprocessor=QWEN_PIXELS,
    ),
    "kimi_vl": Family(image="<|media_pad|>"),
    "qwen3_vl_moe": Family(
        image=QWEN,
        mark="<|image_pad|>",
        tokens=QWEN_TOKENS,
        preprocessor=QWEN_PIXELS,
        config={
            **QWEN_IDS,
            "text_config": {
                "mlp_only_layers": [],
                "rope_scaling": {"mrope_section": [2, 3, 3], "rope_type": "default"},
            },
            "vision_config": {"deepstack_visual_indexes": [0], "num_position_embeddings": 64},
        },
        processor={"processor_class": "Qwen3VLProcessor"},
    ),
    "qwen3_5_moe": Family(
        image=QWEN,
        mark="<|image_pad|>",
        tokens=QWEN_TOKENS,
        preprocessor=QWEN_PIXELS,
        config={
            **QWEN_IDS,
            "text_config": {"full_attention_interval": 2},
            "vision_config": {"num_position_embeddings": 64, "deepstack_visual_indexes": []},
        },
        processor={"processor_class": "Qwen3VLProcessor"},
    ),
    "locateanything": Family(image="<image-1>", mark="<IMG_CONTEXT>"),
    "indic_ocr": Family(
        image=QWEN,
        mark="<|image_pad|>",
        tokens=QWEN_TOKENS,
        preprocessor=QWEN_PIXELS,
        config={**QWEN_IDS, "text_config": {"full_attention_interval": 2}},
    ),
    "granite4_vision": Family(
        config={
            "image_grid_pinpoints": [[32, 64], [64, 32]],
            "downsample_rate": "2/4",
            "deepstack_layer_map": [[-1, 0]],
            "spatial_target_layers": [1],
            "text_config": {"shared_intermediate_size": 96},
        },
        preprocessor={"image_processor_type": "LlavaNextImageProcessor", **ANYRES},
        processor={"patch_size": 8, "downsample_rate": "2/4", "vision_feature_select_strategy": "full"},
    ),
    "inkling": Family(),
    "kimi_k25": Family(
        image="<|media_pad|>",
        config={"media_placeholder_token_id": "<|media_pad|>"},
        preprocessor={"media_proc_cfg": {"patch_size": 8, "merge_kernel_size": [2, 2]}},
    ),
    "mllama": Family(
        image="<|image|>",
        config={
            "text_config": {"cross_attention_layers": [1]},
            "vision_config": {
                "intermediate_layers_indices": [0],
                "num_global_layers": 1,
                "vision_output_dim": 2 * WIDTH,
            },
        },
        preprocessor={
            "image_processor_type": "MllamaImageProcessor",
            "size": {"height": 32, "width": 32},
            "max_image_tiles": 4,
            **HALVES,
        },
    ),
    "llama4": Family(
        image="<|image|>",
        mark="<|patch|>",
        tokens=(
            *("<|image_start|>", "<|image_end|>", "<|tile_x_separator|>", "<|tile_y_separator|>"),
            "<|image|>",
        ),
        config={
            "text_config": {
                "model_type": "llama4_text",
                "no_rope_layers": [1, 1],
                "intermediate_size_mlp": 96,
                "moe_layers": [],
                "attention_chunk_size": 64,
            },
            "vision_config": {
                "vision_feature_select_strategy": "default",
                "pixel_shuffle_ratio": 0.5,
                "intermediate_size": 4 * WIDTH,
                "projector_input_dim": WIDTH,
                "projector_output_dim": WIDTH,
                "vision_output_dim": WIDTH,
                "vision_feature_layer": -1,
                "num_channels": 3,
            },
        },
        preprocessor={
            "image_processor_type": "Llama4ImageProcessor",
            "size": {"height": 32, "width": 32},
            "max_patches": 4,
            **HALVES,
        },
        processor={"patch_size": 8, "pixel_shuffle_ratio": 0.5},
    ),
    "lfm2_vl": Family(
        tokens=("<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"),
        config={
            "text_config": {
                "layer_types": ["conv", "full_attention"],
                "block_dim": WIDTH,
                "conv_dim": WIDTH,
                "conv_dim_out": WIDTH,
                "block_auto_adjust_ff_dim": False,
            },
            "tile_size": 32,
            "max_num_patches": 64,
            "vision_config": {"num_patches": 16},
        },
        preprocessor={
            "image_processor_type": "Lfm2VlImageProcessor",
            "tile_size": 32,
            "encoder_patch_size": 8,
            "max_image_tokens": 16,
            "min_image_tokens": 4,
            "do_image_splitting": False,
            "downsample_factor": 2,
            "max_num_patches": 64,
        },
    ),
    "glm4v_moe": Family(
        image="<|image|>",
        tokens=("<|video|>", "<|begin_of_image|>", "<|end_of_image|>"),
        preprocessor=GLM,
        config={
            "text_config": {
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "rope_scaling": {"type": "default", "mrope_section": [1, 1, 2]},
                "first_k_dense_replace": 1,
                "routed_scaling_factor": 1.0,
            },
            "image_token_id": "<|image|>",
            "video_token_id": "<|video|>",
            "vision_config": {"in_channels": 3},
        },
    ),
    "mage_vl": Family(
        image=QWEN,
        mark="<|image_pad|>",
        tokens=QWEN_TOKENS,
        config={
            **QWEN_IDS,
            "vision_config": {"num_attention_heads": 2, "num_channels": 3, "image_size": 32},
            "text_config": {"head_dim": 16},
        },
        preprocessor={
            "image_processor_type": "Qwen2VLImageProcessor",
            **QWEN_PIXELS,
            "temporal_patch_size": 1,
        },
    ),
    "minicpmo": Family(
        tokens=("<unk>",),
        config={
            "query_num": 16,
            "vision_config": {"image_size": 448, "patch_size": 14},
            "audio_config": {"num_mel_bins": 80},
        },
    ),
    "florence2": Family(
        config={
            "vision_config": {
                "depths": [1, 1, 1, 1],
                "dim_embed": [16, 32, 32, WIDTH],
                "num_heads": [2, 2, 2, 2],
                "num_groups": [2, 2, 2, 2],
                "window_size": 2,
                "patch_size": [7, 3, 3, 3],
                "patch_stride": [4, 2, 2, 2],
                "projection_dim": WIDTH,
            }
        },
        preprocessor={
            "image_processor_type": "CLIPImageProcessor",
            "size": {"height": 32, "width": 32},
            "crop_size": {"height": 32, "width": 32},
            "image_seq_length": 2,
            **HALVES,
        },
    ),
    "llava_bunny": Family(
        config={
            "auto_map": {},
            "text_config": {"model_type": "qwen2"},
            "vision_config": {"model_type": "siglip_vision_model", "image_size": 378, "patch_size": 14},
        },
        preprocessor={
            "image_processor_type": "SiglipImageProcessor",
            "size": {"height": 378, "width": 378},
            **HALVES,
        },
    ),
    "multi_modality": Family(
        config={
            "vision_config": {
                "model_type": "vision",
                "cls": "CLIPVisionTower",
                "params": {},
                "image_size": 384,
                "patch_size": 16,
            },
            "projector_config": {
                "model_type": "projector",
                "cls": "MlpProjector",
                "params": {
                    "n_embed": WIDTH,
                    "input_dim": WIDTH,
                    "depth": 2,
                    "projector_type": "mlp_gelu",
                },
            },
            "text_config": {"model_type": "llama"},
        },
    ),
    "step3p7": Family(
        image="<im_patch>",
        config={
            "text_config": {
                "num_attention_groups": 2,
                "moe_layers_enum": [1],
                "share_expert_dim": 32,
                "moe_top_k": 2,
                "moe_num_experts": 4,
            },
            "vision_config": {"image_size": 728, "patch_size": 14},
        },
    ),
    "molmo2": Family(
        image="<|image|>",
        tokens=tuple(MOLMO_IDS.values()),
        config={
            **MOLMO_IDS,
            "text_config": {"additional_vocab_size": 16},
            "vision_config": {
                "vit_config": {**TOWER, "hidden_size": WIDTH, "num_hidden_layers": 2},
                "adapter_config": {
                    **TOWER,
                    "hidden_size": WIDTH,
                    "text_hidden_size": WIDTH,
                    "vit_layers": [-1, -2],
                },
            },
        },
    ),
}


def write(name: str, made: Family, folder: Path, seed: int = 7) -> Path:
    """Write a random float32 checkpoint of the family into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    package = importlib.import_module(f"mlx_vlm.models.{name}")
    ids = write_tokenizer(folder, made, spelled(package))
    fields = inspect.signature(package.ModelConfig).parameters
    marks = {each: ids[made.mark or made.image] for each in PLACEHOLDERS if each in fields}
    config = merged({**shrunk(package), **marks}, numbered(made.config, ids))
    config = {**config, "model_type": made.config.get("model_type", name)}
    for part in (config, config.get("text_config"), config.get("language_config"), config.get("llm_config")):
        if isinstance(part, dict):
            part["vocab_size"] = len(ids)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(numbered(made.preprocessor, ids)))
    if made.processor:
        (folder / "processor_config.json").write_text(json.dumps(numbered(made.processor, ids)))
    write_weights(package, folder, config, seed)
    return folder


def spelled(package: Any) -> list[str]:
    """The special tokens that the source of a family spells."""
    folder = Path(package.__file__).parent
    found: dict[str, None] = {}
    for path in sorted(folder.glob("*.py")):
        found |= dict.fromkeys(MARKER.findall(path.read_text("utf-8")))
    return [each for each in found if each.count("<") <= 1 and len(each) < 40]


def shrunk(package: Any) -> Json:
    """The configuration of a family as its classes have it, with small sizes."""
    config = fields_of(package.ModelConfig)
    for name in dir(package):
        kind = getattr(package, name)
        if inspect.isclass(kind) and name.endswith("Config") and name != "ModelConfig":
            part = name.removesuffix("Config").lower() + "_config"
            if part in inspect.signature(package.ModelConfig).parameters:
                config[part] = {**fields_of(kind), **named(package, part)}
    return config


def named(package: Any, part: str) -> Json:
    """The model type that the family's own code asks of a part's configuration."""
    file = {"text_config": "language", "vision_config": "vision", "audio_config": "audio"}.get(part)
    path = Path(package.__file__).parent / f"{file}.py"
    source = path.read_text("utf-8") if path.exists() else ""
    found = re.search(r"model_type\s*(?:not in|in|!=|==)\s*[\[({]?\s*\"([\w\-.]+)\"", source)
    return {} if found is None else {"model_type": found.group(1)}


def fields_of(kind: Any) -> Json:
    found: Json = {}
    if not dataclasses.is_dataclass(kind):
        return found
    for field in dataclasses.fields(kind):
        default = field.default
        if field.name in SIZES and (isinstance(default, int) or default in (None, dataclasses.MISSING)):
            found[field.name] = SIZES[field.name]
        elif default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            found[field.name] = guessed(field)
    return {name: value for name, value in found.items() if value is not None}


def guessed(field: Any) -> Any:
    """A value for a field without a default."""
    kind = str(field.type)
    if "Config" in kind:
        return None
    if "model_type" in field.name:
        return "llama"
    if "bool" in kind:
        return False
    if "float" in kind:
        return 1e-5 if "eps" in field.name else 10000.0
    if "int" in kind:
        return SIZES.get(field.name, 2)
    return None


def merged(first: Json, second: Json) -> Json:
    found = dict(first)
    for key, value in second.items():
        held = found.get(key)
        found[key] = merged(held, value) if isinstance(held, dict) and isinstance(value, dict) else value
    return found


def numbered(value: Any, ids: dict[str, int]) -> Any:
    match value:
        case str():
            return ids.get(value, value)
        case dict():
            return {key: numbered(held, ids) for key, held in value.items()}
        case _:
            return value


def write_weights(package: Any, folder: Path, config: Json, seed: int) -> None:
    from mlx_vlm.utils import update_module_configs

    copied = json.loads(json.dumps(config))
    copied.setdefault("text_config", {})
    mx.random.seed(seed)
    settings = package.ModelConfig.from_dict(copied)
    settings = update_module_configs(
        settings, package, copied, ["text", "vision", "perceiver", "projector", "audio"]
    )
    model = package.Model(settings)
    size = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    assert size < LARGEST, f"{size / 1e6:.0f} MB: a size in the configuration is not small"
    spread = [
        (name, _spread(name, array))
        for name, array in tree_flatten(model.parameters())
        if mx.issubdtype(array.dtype, mx.floating)
    ]
    model.update(tree_unflatten([(name, array.astype(mx.float32)) for name, array in spread]))
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})


def _spread(name: str, array: mx.array) -> mx.array:
    """Weights far enough from those that a class begins with. Gates that are closed at first would hide a picture."""
    if array.ndim > 1:
        return array + 0.08 * mx.random.normal(array.shape)
    return array + 0.5 if name.endswith("gate") else array


def write_tokenizer(folder: Path, made: Family, found: list[str]) -> dict[str, int]:
    """Token i is byte i; the special tokens follow. Gives the ids of all."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    marks = [made.image] if made.mark is None else [made.mark]
    backend.add_special_tokens(list(dict.fromkeys(["<|end|>", *made.tokens, *marks, *found])))
    backend.save(str(folder / "tokenizer.json"))
    settings: Json = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>",
        "bos_token": "<|end|>",
        "pad_token": "<|end|>",
        "unk_token": "<|end|>",
        **made.tokenizer,
    }
    if made.template is not None:
        settings["chat_template"] = made.template.replace("IMAGE", made.image)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return typing.cast(dict[str, int], backend.get_vocab(with_added_tokens=True))
