"""Tiny random checkpoints of real vision-language families, in the real format: weights, tokenizer, processor files."""

import importlib
import io
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

EOS = 256
HIDDEN = 64
TEXT: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
QWEN_TOKENS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
QWEN_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in part %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN_PIXELS = {
    "patch_size": 4,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "min_pixels": 64,
    "max_pixels": 4096,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


QWEN_IDS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}


@dataclass(frozen=True, kw_only=True)
class Family:
    """How a tiny checkpoint of one family is made. Values that are names of `tokens` become their ids."""

    tokens: tuple[str, ...]  # special ones, beside the end of the text
    config: dict[str, Any]
    template: str
    preprocessor: dict[str, Any]
    processor: dict[str, Any] = field(default_factory=dict)
    tokenizer: dict[str, Any] = field(default_factory=dict)


PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: "
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}IMAGE{% elif part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}"
    "{% endif %}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
QWEN_VISION = {"spatial_merge_size": 2, "temporal_patch_size": 2, "patch_size": 4, "num_heads": 2, "depth": 2}
SIGLIP: dict[str, Any] = {
    "model_type": "siglip_vision_model",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "patch_size": 4,
    "image_size": 32,
}
PIXTRAL: dict[str, Any] = {
    "model_type": "pixtral",
    "hidden_act": "silu",  # as all checkpoints say; it is not the default of transformers
    "hidden_size": 32,
    "head_dim": 16,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "patch_size": 4,
    "image_size": 48,
}
HALVES = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
SQUARE = {"size": {"height": 32, "width": 32}, **HALVES}
IMG = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")
PATCHES = {"image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 48}, **HALVES}
ROWS = tuple(f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4))
IDEFICS_TOKENS = ("<fake_token_around_image>", "<image>", "<global-img>", "<end_of_utterance>", *ROWS)
IDEFICS = Family(
    tokens=IDEFICS_TOKENS,
    config={
        "image_token_id": "<image>",
        "scale_factor": 2,
        "text_config": {"model_type": "llama", **TEXT},
        "vision_config": {**SIGLIP, "model_type": "idefics3_vision"},
    },
    template=PLAIN_TEMPLATE.replace("IMAGE", "<image>"),
    preprocessor={
        "image_processor_type": "Idefics3ImageProcessor",
        "size": {"longest_edge": 64},
        "max_image_size": {"longest_edge": 32},
        "do_image_splitting": True,
        "do_resize": True,
        **HALVES,
    },
    processor={"processor_class": "Idefics3Processor", "image_seq_len": 16},
)

GEMMA4_TOKENS = (
    *("<|image>", "<|image|>", "<image|>"),
    *("<|audio>", "<|audio|>", "<audio|>", "<|video|>"),
)

FAMILIES: dict[str, Family] = {
    "qwen2_vl": Family(
        tokens=QWEN_TOKENS,
        config={
            **TEXT,
            **QWEN_IDS,
            "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
            "vision_config": {
                **QWEN_VISION,
                "model_type": "qwen2_vl",
                "embed_dim": 32,
                "hidden_size": HIDDEN,
                "spatial_patch_size": 4,
                "mlp_ratio": 2,
            },
        },
        template=QWEN_TEMPLATE,
        preprocessor={"image_processor_type": "Qwen2VLImageProcessor", **QWEN_PIXELS},
        processor={"processor_class": "Qwen2VLProcessor"},
    ),
    "qwen2_5_vl": Family(
        tokens=QWEN_TOKENS,
        config={
            **TEXT,
            **QWEN_IDS,
            "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
            "vision_config": {
                **QWEN_VISION,
                "model_type": "qwen2_5_vl",
                "hidden_size": 32,
                "intermediate_size": 48,
                "out_hidden_size": HIDDEN,
                "spatial_patch_size": 4,
                "window_size": 16,
                "fullatt_block_indexes": [1],
            },
        },
        template=QWEN_TEMPLATE,
        preprocessor={"image_processor_type": "Qwen2VLImageProcessor", **QWEN_PIXELS},
        processor={"processor_class": "Qwen2_5_VLProcessor"},
    ),
    "qwen3_vl": Family(
        tokens=QWEN_TOKENS,
        config={
            **QWEN_IDS,
            "text_config": {
                **TEXT,
                "model_type": "qwen3_vl_text",
                "head_dim": 16,
                "rope_scaling": {
                    "rope_type": "default",
                    "mrope_interleaved": True,
                    "mrope_section": [2, 3, 3],
                },
            },
            "vision_config": {
                **QWEN_VISION,
                "model_type": "qwen3_vl",
                "hidden_size": 32,
                "intermediate_size": 48,
                "out_hidden_size": HIDDEN,
                "num_position_embeddings": 64,
                "deepstack_visual_indexes": [0],
            },
        },
        template=QWEN_TEMPLATE,
        preprocessor={"image_processor_type": "Qwen2VLImageProcessorFast", **QWEN_PIXELS},
        processor={"processor_class": "Qwen3VLProcessor"},
    ),
    "qwen3_5": Family(
        tokens=QWEN_TOKENS,
        config={
            **QWEN_IDS,
            "text_config": {
                **TEXT,
                "model_type": "qwen3_5_text",
                "head_dim": 16,
                "full_attention_interval": 2,
                "linear_num_value_heads": 4,
                "linear_num_key_heads": 2,
                "linear_key_head_dim": 32,
                "linear_value_head_dim": 16,
                "linear_conv_kernel_dim": 4,
                "rope_parameters": {
                    "rope_type": "default",
                    "mrope_interleaved": True,
                    "mrope_section": [2, 1, 1],
                    "rope_theta": 10000.0,
                    "partial_rotary_factor": 0.5,
                },
            },
            "vision_config": {
                **QWEN_VISION,
                "model_type": "qwen3_5",
                "hidden_size": 32,
                "intermediate_size": 48,
                "out_hidden_size": HIDDEN,
                "num_position_embeddings": 64,
                "deepstack_visual_indexes": [],
            },
        },
        template=QWEN_TEMPLATE,
        preprocessor={"image_processor_type": "Qwen2VLImageProcessorFast", **QWEN_PIXELS},
        processor={"processor_class": "Qwen3VLProcessor"},
    ),
    "gemma3": Family(
        tokens=("<start_of_image>", "<image_soft_token>", "<end_of_image>"),
        config={
            "image_token_index": "<image_soft_token>",
            "hidden_size": HIDDEN,
            "mm_tokens_per_image": 16,
            "text_config": {
                **TEXT,
                "model_type": "gemma3_text",
                "num_hidden_layers": 4,
                "head_dim": 16,
                "query_pre_attn_scalar": 16,
                "sliding_window": 24,
                "sliding_window_pattern": 2,
                "mm_tokens_per_image": 16,
            },
            "vision_config": SIGLIP,
        },
        template=PLAIN_TEMPLATE.replace("IMAGE", "<start_of_image>"),
        preprocessor={"image_processor_type": "Gemma3ImageProcessor", "image_seq_length": 16, **SQUARE},
        processor={"processor_class": "Gemma3Processor", "image_seq_length": 16},
        tokenizer={
            "extra_special_tokens": {
                "image_token": "<image_soft_token>",
                "boi_token": "<start_of_image>",
                "eoi_token": "<end_of_image>",
            }
        },
    ),
    "gemma4": Family(
        tokens=("<|image>", "<|image|>", "<image|>", "<|video|>"),
        config={
            "image_token_id": "<|image|>",
            "video_token_id": "<|video|>",
            "hidden_size": HIDDEN,
            "text_config": {
                **TEXT,
                "model_type": "gemma4_text",
                "num_hidden_layers": 4,
                "num_kv_shared_layers": 0,
                "hidden_size_per_layer_input": 8,
                "head_dim": 16,
                "global_head_dim": 16,
                "use_bidirectional_attention": "vision",
                "sliding_window": 24,
                "sliding_window_pattern": 2,
                "tie_word_embeddings": True,
            },
            "vision_config": {
                **SIGLIP,
                "model_type": "gemma4_vision",
                "num_key_value_heads": 2,
                "head_dim": 16,
                "pooling_kernel_size": 2,
                "default_output_length": 32,
                "position_embedding_size": 64,
            },
        },
        template=PLAIN_TEMPLATE.replace("IMAGE", "<|image|>").replace(
            "{% elif part.type == 'text' %}",
            "{% elif part.type == 'video' %}<|video|>{% elif part.type == 'text' %}",
        ),
        preprocessor={},
        processor={
            "processor_class": "Gemma4Processor",
            "image_processor": {"patch_size": 4, "pooling_kernel_size": 2, "max_soft_tokens": 32},
            "video_processor": {"patch_size": 4, "pooling_kernel_size": 2, "max_soft_tokens": 70},
            "feature_extractor": {"feature_size": 32},  # more are too many for its window, it warns
        },
        tokenizer={
            "extra_special_tokens": {
                "image_token": "<|image|>",
                "boi_token": "<|image>",
                "eoi_token": "<image|>",
                "video_token": "<|video|>",
            }
        },
    ),
    "idefics3": IDEFICS,
    "smolvlm": replace(
        IDEFICS,
        preprocessor={**IDEFICS.preprocessor, "image_processor_type": "SmolVLMImageProcessor"},
        processor={"processor_class": "SmolVLMProcessor", "image_seq_len": 16},
    ),
    "llava": Family(
        tokens=("<image>",),
        config={
            "image_token_index": "<image>",
            "vision_feature_layer": -2,
            "vision_feature_select_strategy": "default",
            "text_config": {**TEXT, "model_type": "llama"},
            "vision_config": {**SIGLIP, "model_type": "clip_vision_model", "projection_dim": 32},
        },
        template=PLAIN_TEMPLATE.replace("IMAGE", "<image>\n"),
        preprocessor={"image_processor_type": "CLIPImageProcessor", "do_center_crop": False, **SQUARE},
        processor={
            "processor_class": "LlavaProcessor",
            "patch_size": 4,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
    ),
    "pixtral": Family(
        tokens=IMG,
        config={
            "image_token_index": "[IMG]",
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
            "text_config": {**TEXT, "model_type": "mistral", "head_dim": 16},
            "vision_config": PIXTRAL,
        },
        template=PLAIN_TEMPLATE.replace("IMAGE", "[IMG]"),
        preprocessor={**PATCHES, "patch_size": 4},
        processor={"processor_class": "PixtralProcessor", "patch_size": 4},
    ),
    "mistral3": Family(
        tokens=IMG,
        config={
            "image_token_index": "[IMG]",
            "spatial_merge_size": 2,
            "tie_word_embeddings": False,
            "text_config": {**TEXT, "model_type": "mistral", "head_dim": 16},
            "vision_config": PIXTRAL,
        },
        template=PLAIN_TEMPLATE.replace("IMAGE", "[IMG]"),
        preprocessor={**PATCHES, "patch_size": 4},
        processor={"processor_class": "Mistral3Processor", "patch_size": 4, "spatial_merge_size": 2},
    ),
}

HEARING: dict[str, Family] = {
    "gemma4_unified": Family(
        tokens=GEMMA4_TOKENS,
        config={
            "image_token_id": "<|image|>",
            "audio_token_id": "<|audio|>",
            "video_token_id": "<|video|>",
            "text_config": {
                **TEXT,
                "model_type": "gemma4_unified_text",
                "attention_k_eq_v": True,
                "num_hidden_layers": 4,
                "head_dim": 16,
                "global_head_dim": 16,
                "num_global_key_value_heads": 2,
                "sliding_window": 24,
                "sliding_window_pattern": 2,
                "tie_word_embeddings": True,
            },
            "vision_config": {
                "model_type": "gemma4_unified_vision",
                "patch_size": 4,
                "pooling_kernel_size": 2,
                "model_patch_size": 8,
                "mm_embed_dim": HIDDEN,
                "mm_posemb_size": 64,
                "num_soft_tokens": 16,
                "output_proj_dims": HIDDEN,
            },
            "audio_config": {"model_type": "gemma4_unified_audio"},
        },
        template=PLAIN_TEMPLATE.replace("IMAGE", "<|image|>").replace(
            "{% elif part.type == 'text' %}",
            "{% elif part.type == 'video' %}<|video|>{% elif part.type == 'audio' %}<|audio|>"
            "{% elif part.type == 'text' %}",
        ),
        preprocessor={},
        processor={
            "processor_class": "Gemma4UnifiedProcessor",
            "image_processor": {
                "patch_size": 4,
                "pooling_kernel_size": 2,
                "model_patch_size": 8,
                "max_soft_tokens": 16,
            },
            "feature_extractor": {"sampling_rate": 16000},
        },
        tokenizer={
            "extra_special_tokens": {
                "image_token": "<|image|>",
                "boi_token": "<|image>",
                "eoi_token": "<image|>",
                "audio_token": "<|audio|>",
                "boa_token": "<|audio>",
                "eoa_token": "<audio|>",
                "video_token": "<|video|>",
            }
        },
    ),
}
"""Families that take recordings."""

WITH_SOUND: dict[str, Family] = {
    "gemma4": replace(
        FAMILIES["gemma4"],
        tokens=GEMMA4_TOKENS,
        config={
            **FAMILIES["gemma4"].config,
            "audio_token_id": "<|audio|>",
            "audio_config": {
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "subsampling_conv_channels": [8, 4],
                "output_proj_dims": 32,
            },
        },
        template=HEARING["gemma4_unified"].template,
        processor={
            **FAMILIES["gemma4"].processor,
            "feature_extractor": {"fft_overdrive": True},  # else it warns of filters without a frequency
        },
        tokenizer=HEARING["gemma4_unified"].tokenizer,
    )
}
"""Families whose checkpoints are with a tower for sound or without."""


def tiny_vision_model(family: str, folder: Path, *, seed: int = 7, hears: bool = False, **text: Any) -> Path:
    """Write a random float32 checkpoint of this family into `folder`; `text` changes its text configuration."""
    made = {**FAMILIES, **HEARING, **(WITH_SOUND if hears else {})}[family]
    folder.mkdir(parents=True, exist_ok=True)
    ids = _write_tokenizer(folder, made)
    config = _numbered({"model_type": family, "eos_token_id": EOS, **made.config}, ids)
    config.get("text_config", config).update(text)
    for part in (config, config.get("text_config")):
        if part is not None:
            part["vocab_size"] = part["vocab_size_per_layer_input"] = len(ids)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(made.preprocessor))
    (folder / "processor_config.json").write_text(json.dumps(made.processor))
    _write_weights(family, folder, config, seed)
    return folder


def picture(width: int, height: int, seed: int = 0, format: str = "PNG", mode: str = "RGB") -> bytes:
    """A picture of soft coloured spots, encoded."""
    spots = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    image = Image.fromarray(spots).resize((width, height), Image.Resampling.BICUBIC).convert(mode)
    written = io.BytesIO()
    image.save(written, format)
    return written.getvalue()


def _numbered(value: Any, ids: dict[str, int]) -> Any:
    match value:
        case str():
            return ids.get(value, value)
        case dict():
            return {key: _numbered(held, ids) for key, held in value.items()}
        case _:
            return value


def _write_weights(family: str, folder: Path, config: dict[str, Any], seed: int) -> None:
    from mlx_vlm.utils import update_module_configs

    module = importlib.import_module(f"mlx_vlm.models.{family}")
    copied = json.loads(json.dumps(config))
    copied.setdefault("text_config", {})
    mx.random.seed(seed)
    settings = module.ModelConfig.from_dict(copied)
    settings = update_module_configs(settings, module, copied, ["text", "vision", "audio"])
    model = module.Model(settings)
    spread = [
        # Wide enough that the random model answers differently to different pictures.
        (name, array if array.ndim < 2 else array + 0.08 * mx.random.normal(array.shape))
        for name, array in tree_flatten(model.parameters())
    ]
    model.update(tree_unflatten([(name, array.astype(mx.float32)) for name, array in spread]))
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})


def _write_tokenizer(folder: Path, made: Family) -> dict[str, int]:
    """Token i is byte i; the special tokens follow. Gives the ids of all."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>", *made.tokens])
    backend.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>",
        "pad_token": "<|end|>",
        "chat_template": made.template,
        **made.tokenizer,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    return vocabulary
