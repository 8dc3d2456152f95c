"""What each family of mlx-vlm needs beyond its own defaults to be made tiny (`any_family.py`)."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from tests.engines.language.vision.any_family import HALVES, WIDTH, Family, Json
from tests.engines.language.vision.tiny.plain_kernels import MUSE_SPARK
from tests.engines.language.vision.tiny.python_tokenizers import write_plamo, write_sentencepiece

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

SAM: Json = {
    "img_size": 128,
    "embed_dim": 64,
    "depth": 2,
    "num_heads": 4,
    "global_attn_indexes": (1,),
    "final_out_chans": WIDTH,
}
OCR: Json = {
    "projector_config": {"projector_type": "linear", "input_dim": 2 * WIDTH, "n_embed": WIDTH},
    "vision_config": {"model_type": "vision", "patch_size": 14},
    "text_config": {
        "model_type": "deepseek_v2",
        "qk_rope_head_dim": 0,
        "qk_nope_head_dim": 0,
        "topk_method": "greedy",
    },
}
OCR_SIZES: Json = {"candidate_resolutions": [[1024, 1024]], "patch_size": 16, "downsample_ratio": 4}
OCR_PAD = "<｜▁pad▁｜>"
SMALL_VIEWS: Json = {"base_size": 128, "image_size": 64}
MOON_VISION: Json = {"crop_size": 378, "patch_size": 14, "proj_inner_dim": 96, "proj_out_dim": WIDTH}
GOT_TEMPLATE = (
    "{% for m in messages %}{{ m.content if m.content is string else m.content[-1].text }}{% endfor %}"
)
POINT_IDS = {
    "image_start_token_id": "<im_start>",
    "image_end_token_id": "<im_end>",
    "image_patch_id": "<im_patch>",
    "image_high_res_id": "<im_patch>",
    "image_col_id": "<im_col>",
    "image_non_indexable_patch_id": "<im_low>",
    "frame_start_token_id": "<frame_start>",
    "frame_end_token_id": "<frame_end>",
    "patch_token_id": "<patch>",
    "subpatch_token_id": "<subpatch>",
    "location_token_id": "<location>",
}


def small_mobilenet() -> list[list[Any]]:
    """In place of Gemma 3n's table of MobileNet blocks: one of each kind, whose last two stages have the channels that
    the adapter behind them takes together."""
    from mlx_vlm.models.gemma3n.config import (
        EdgeResidualConfig,
        MultiQueryAttentionBlockConfig,
        UniversalInvertedResidualConfig,
    )

    return [
        [EdgeResidualConfig(3, 16, 2, 1.0)],
        [UniversalInvertedResidualConfig(3, 5, 32, 2, 1.0)],
        [UniversalInvertedResidualConfig(5, 5, 640, 2, 1.0), MultiQueryAttentionBlockConfig(2, 16, 2)],
        [UniversalInvertedResidualConfig(3, 0, 1280, 2, 1.0, True)],
    ]


def write_small_frames(folder: Path) -> None:
    """The sizes of a video's frames, in the file of their own that LLaVA-OneVision has for them."""
    (folder / "video_preprocessor_config.json").write_text(json.dumps({"size": {"height": 32, "width": 32}}))


def write_audio_tokenizer(folder: Path) -> None:
    """MiMo-V2's tokenizer of sound, a model of mlx-audio in a folder of its own: recordings become its codes."""
    from mlx_audio.codec.models.mimo_audio_tokenizer import MiMoAudioTokenizer
    from mlx_audio.codec.models.mimo_audio_tokenizer.config import ModelConfig

    config: Json = {
        "d_model": 32,
        "encoder_layers": 2,
        "encoder_skip_layer_id": 1,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 48,
        "decoder_layers": 1,
        "decoder_attention_heads": 2,
        "decoder_ffn_dim": 48,
        "vocoder_dim": 16,
        "vocoder_intermediate_dim": 32,
        "vocoder_num_layers": 1,
        "vocoder_attention_heads": 2,
        "weights_format": "mlx",
    }
    model = MiMoAudioTokenizer(ModelConfig.from_dict(config))
    spread = [
        (name, array + 0.1 * mx.random.normal(array.shape))
        for name, array in tree_flatten(model.parameters())
    ]
    own = folder / "audio_tokenizer"
    own.mkdir()
    (own / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(own / "model.safetensors"), dict(spread))


OMNI_TEXT: Json = {
    "num_hidden_layers": 2,
    "hidden_size": WIDTH,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_experts": 4,
    "num_experts_per_tok": 1,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "rms_norm_eps": 1e-5,
    "vocab_size": 300,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rope_theta": 10000.0,
    "max_position_embeddings": 4096,
    "rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3]},
}
RADIO: Json = {
    "hidden_size": WIDTH,
    "num_heads": 4,
    "num_layers": 2,
    "patch_size": 8,
    "neck_dim": WIDTH,
    "image_size": [64, 64],
}

DEEPSEEK_TURNS = ("<｜User｜>", "<｜Assistant｜>", "</think>")
MINICPM_V = Family(
    image="(<image>./</image>)\n",
    mark="<|image_pad|>",
    tokens=(
        *("<unk>", "<|im_start|>", "<|im_end|>", "<|video_pad|>"),
        *("<image>", "</image>", "<slice>", "</slice>", "<image_id>", "</image_id>"),
    ),
    config={
        "insert_layer_id": 0,
        "vision_config": {"model_type": "siglip_vision_model", "image_size": 64},
        "text_config": {
            "model_type": "qwen3_5_text",
            "full_attention_interval": 2,
            "num_key_value_heads": 2,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "rope_parameters": {
                "type": "default",
                "mrope_section": [2, 3, 3],
                "rope_theta": 10000.0,
                "partial_rotary_factor": 1.0,
            },
        },
    },
    preprocessor={"patch_size": 8, "scale_resolution": 64, "max_slice_nums": 4, "image_feature_size": 4},
)

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
    "glm4v": Family(image="<|image|>", video="<|video|>", tokens=("<|video|>",), preprocessor=GLM),
    "glm_ocr": Family(image="<|image|>", video="<|video|>", tokens=("<|video|>",), preprocessor=GLM),
    "llava_onevision": Family(
        video="<video>",
        tokens=("<video>",),
        config={
            "video_token_index": "<video>",
            "image_grid_pinpoints": [[32, 64], [64, 32]],
            "vision_feature_layer": -1,
            "vision_aspect_ratio": "anyres_max_9",
            "text_config": {"model_type": "qwen2"},
        },
        preprocessor={**ANYRES, "size": {"height": 32, "width": 32}},
        processor={"num_image_tokens": 16, "vision_feature_select_strategy": "full"},
        beside=write_small_frames,
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
        video="<|vision_start|><|video_pad|><|vision_end|>",
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
        video="<|vision_start|><|video_pad|><|vision_end|>",
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
        video="<|vision_start|><|video_pad|><|vision_end|>",
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
    "inkling": Family(
        sound="<|content_audio_input|><|unused_200053|>", config={"audio_token_id": "<|unused_200053|>"}
    ),
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
                "num_hidden_layers": 4,
                "no_rope_layers": [1, 1, 1, 0],
                "intermediate_size_mlp": 96,
                "moe_layers": [],
                "attention_chunk_size": 24,
                "floor_scale": 16,
                "attn_scale": 0.5,
            },
            "vision_config": {
                "image_size": 56,
                "patch_size": 14,  # mlx-vlm's processor reads no other from the folder
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
            "size": {"height": 56, "width": 56},
            "max_patches": 4,
            **HALVES,
        },
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
        video="<|video|>",
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
        video="<|vision_start|><|video_pad|><|vision_end|>",
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
        sound="<audio>./</audio>",
        tokens=("<unk>",),
        config={
            "query_num": 16,
            "vision_config": {"image_size": 448, "patch_size": 14},
            "audio_config": {"num_mel_bins": 80, "encoder_ffn_dim": 4 * WIDTH},
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
    "falcon_ocr": Family(flat=True, image="<|image|>", config={"img_id": "<|image|>"}),
    "falcon_perception": Family(
        flat=True,
        image="",
        mark="<|image|>",
        config={
            "img_id": "<|image|>",
            "do_segmentation": False,
            **dict.fromkeys(("coord_enc_dim", "size_enc_dim"), 32),
            **dict.fromkeys(("coord_dec_dim", "size_dec_dim"), 64),
            **dict.fromkeys(("coord_out_dim", "size_out_dim"), 32),
        },
    ),
    "kimi_k3": Family(
        image="<|media_pad|>",
        config={
            "media_placeholder_token_id": "<|media_pad|>",
            "vision_config": {"vt_hidden_size": WIDTH, "qkv_hidden_size": WIDTH, "mm_hidden_size": WIDTH},
            "text_config": {
                "num_experts_per_token": 2,
                "linear_attn_config": {
                    "kda_layers": [1],
                    "full_attn_layers": [2],
                    "num_heads": 4,
                    "head_dim": 16,
                    "short_conv_kernel_size": 4,
                },
            },
        },
        preprocessor={"media_proc_cfg": {"patch_size": 8, "merge_kernel_size": [2, 2]}, "patch_size": 8},
    ),
    "mimo_v2": Family(
        image=QWEN,
        sound="<|audio_start|><|audio_pad|><|audio_end|>",
        video="<|vision_start|><|video_pad|><|vision_end|>",
        mark="<|image_pad|>",
        tokens=(*QWEN_TOKENS, "<|audio_start|>", "<|audio_pad|>", "<|audio_end|>"),
        config={
            **QWEN_IDS,
            "text_config": {
                "hybrid_layer_pattern": [1, 0],
                "moe_layer_freq": [0, 1],
                "partial_rotary_factor": 0.5,
                "v_head_dim": 16,
                "swa_head_dim": 16,
                "swa_v_head_dim": 16,
                "swa_num_attention_heads": 4,
                "swa_num_key_value_heads": 4,
                "sliding_window_size": 24,
            },
            "vision_config": {
                "qk_channels": 16,
                "fullatt_block_indexes": [0],
                "vit_window_attn_types": [0, 1],
            },
            "audio_config": {
                "input_local_layers": 1,
                "input_local_dim": 64,
                "input_local_head_dim": 16,
                "input_local_attn_heads": 4,
                "input_local_intermediate_size": 96,
                "out_hidden_size": WIDTH,
            },
            "audio_token_id": "<|audio_pad|>",
        },
        preprocessor=QWEN_PIXELS,
        beside=write_audio_tokenizer,
    ),
    "molmo": Family(
        image="",
        mark="<im_patch>",
        config={
            "text_config": {"additional_vocab_size": 16, "embedding_size": 400},
            "vision_config": {
                "image_emb_dim": WIDTH,
                "image_num_heads": 4,
                "image_num_key_value_heads": 4,
                "image_num_layers": 2,
                "image_head_dim": 16,
                "image_mlp_dim": 96,
                "d_model": WIDTH,
                "vit_layers": [-1, -2],
                "intermediate_size": 588,
            },
        },
    ),
    "minimax_m3_vl": Family(
        image="]<]image[>[",
        video="]<]video[>[",
        tokens=("]<]video[>[",),
        config={"video_token_index": "]<]video[>["},
    ),
    "muse_glimmer": Family(
        image="<|image_start|><|patch|><|image_end|>",
        mark="<|patch|>",
        video="<|image_start|><|video|><|image_end|>",
        tokens=("<|video|>",),
        config={
            "text_config": {"num_key_value_heads": 2},
            "video_token_id": "<|video|>",
            "out_hidden_size": 256,
            "projector_hidden_size": 96,
        },
        preprocessor={"patch_size": 8, "merge_size": 2, "temporal_patch_size": 2},
        processor={
            "image_processor": {
                "patch_size": 8,
                "merge_size": 2,
                "temporal_patch_size": 2,
                "max_image_tokens": 64,
            }
        },
    ),
    "nemotron_h_nano_omni": Family(
        preprocessor={
            "norm_mean": [0.5] * 3,
            "norm_std": [0.5] * 3,
            "patch_size": 8,
            "downsample_ratio": 0.5,
            "min_num_patches": 16,
            "max_num_patches": 64,
            "video_target_num_patches": 16,
        },
        image="<image>",
        sound="<so_embedding>",
        video="<video>",
        tokens=("<so_embedding>", "<so_start>", "<so_end>", "<video>", "<img>", "</img>"),
        config={
            "vit_hidden_size": WIDTH,
            "projector_hidden_size": 96,
            "img_context_token_id": "<image>",
            "sound_context_token_id": "<so_embedding>",
            "sound_config": {
                "hidden_size": WIDTH,
                "num_attention_heads": 4,
                "num_hidden_layers": 2,
                "intermediate_size": 96,
                "subsampling_conv_channels": 16,
                "projection_hidden_size": 96,
            },
            "text_config": {"hybrid_override_pattern": ["M", "*"]},
        },
    ),
    "paddleocr_vl": Family(
        flat=True,
        image="<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>",
        mark="<|IMAGE_PLACEHOLDER|>",
        tokens=("<|IMAGE_START|>", "<|IMAGE_END|>"),
        tokenizer={"extra_special_tokens": {"image_token": "<|IMAGE_PLACEHOLDER|>"}},
        config={
            "hidden_size": 1024,
            "head_dim": 16,
            "use_bias": False,
            "hidden_act": "silu",
            "video_token_id": 300,
            "vision_start_token_id": "<|IMAGE_START|>",
            "vision_end_token_id": "<|IMAGE_END|>",
            "rope_scaling": {"type": "default", "rope_type": "default", "mrope_section": [2, 3, 3]},
            "num_key_value_heads": 4,
        },
        preprocessor={
            "patch_size": 8,
            "merge_size": 2,
            "min_pixels": 256,
            "max_pixels": 4096,
            "temporal_patch_size": 1,
        },
    ),
    "qwen4_exp": Family(
        image=QWEN,
        video="<|vision_start|><|video_pad|><|vision_end|>",
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
    "zaya1_vl": Family(
        flat=True,
        image=QWEN,
        mark="<|image_pad|>",
        tokens=QWEN_TOKENS,
        preprocessor=QWEN_PIXELS,
        config={
            **QWEN_IDS,
            "ffn_hidden_size": 96,
            "zaya_mlp_expansion": 32,
            "num_key_value_heads": 2,
            "vision_config": {"fullatt_block_indexes": [1], "window_size": 32},
        },
    ),
    "glm5_next": Family(
        processor={
            "image_processor": {
                "patch_size": 8,
                "merge_size": 2,
                "min_pixels": 256,
                "max_pixels": 4096,
                "size": {"shortest_edge": 256, "longest_edge": 8192},
            },
            "video_processor": {"patch_size": 8, "merge_size": 2},
        },
        image="<|begin_of_image|><|image|><|end_of_image|>",
        mark="<|image|>",
        video="<|begin_of_video|><|video|><|end_of_video|>",
        tokens=(
            "<|video|>",
            "<|begin_of_image|>",
            "<|end_of_image|>",
            "<|begin_of_video|>",
            "<|end_of_video|>",
        ),
        preprocessor=GLM,
        config={
            "video_token_id": "<|video|>",
            "video_start_token_id": "<|begin_of_video|>",
            "video_end_token_id": "<|end_of_video|>",
            "image_start_token_id": "<|begin_of_image|>",
            "image_end_token_id": "<|end_of_image|>",
            "text_config": {
                "qk_rope_head_dim": 0,
                "layer_types": ["linear_attention", "deepseek_sparse_attention"],
                "first_k_dense_replace": 1,
                "index_topk": 32,
                "index_kpool": 4,
                "index_head_dim": 16,
                "index_n_heads": 2,
                "linear_head_dim": 16,
                "linear_num_heads": 4,
            },
            "vision_config": {"projection_intermediate_size": 96},
        },
    ),
    "dots_ocr": Family(
        image="<|img|><|imgpad|><|endofimg|>",
        mark="<|imgpad|>",
        tokens=("<|img|>", "<|endofimg|>"),
        ids={"<|imgpad|>": 151665, "<|video_pad|>": 151656},
        preprocessor={
            "image_processor_type": "Qwen2VLImageProcessor",
            **QWEN_PIXELS,
            "temporal_patch_size": 1,
        },
    ),
    "deepseekocr": Family(
        template=None,
        tokens=(OCR_PAD,),
        config=OCR,
        processor={"processor_class": "DeepseekOCRProcessor", **OCR_SIZES},
        instead={
            "deepseekocr.deepseekocr.SAMEncoder": SAM,
            "deepseekocr.processing_deepseekocr.DeepseekOCRProcessor.__call__.__kwdefaults__": SMALL_VIEWS,
        },
    ),
    "deepseekocr_2": Family(
        template=None,
        tokens=(OCR_PAD,),
        config={
            **OCR,
            "projector_config": {**OCR["projector_config"], "input_dim": WIDTH},
            "vision_config": {"model_type": "vision", "width": {}},
        },
        processor={"processor_class": "DeepseekOCR2Processor", **OCR_SIZES},
        instead={
            "deepseekocr_2.deepseekocr_2.SAMEncoder": {
                **SAM,
                "img_size": 1024,
                "embed_dim": 16,
                "depth": 1,
                "num_heads": 1,
                "global_attn_indexes": (),
            },
            "deepseekocr_2.vision.Qwen2EncoderConfig": {
                "dim": WIDTH,
                "layers": 2,
                "heads": 4,
                "kv_heads": 2,
                "intermediate_size": 96,
            },
        },
    ),
    "unlimited_ocr": Family(
        tokens=(OCR_PAD,),
        config={**OCR, "model_type": "unlimited-ocr"},
        processor={"processor_class": "UnlimitedOCRProcessor", **OCR_SIZES},
        instead={
            "deepseekocr.deepseekocr.SAMEncoder": SAM,
            "unlimited_ocr.processing_unlimitedocr.UnlimitedOCRProcessor.__call__.__kwdefaults__": SMALL_VIEWS,
        },
    ),
    "fastvlm": Family(
        config={
            "mm_hidden_size": 2 * WIDTH,
            "image_token_index": -200,
            "text_config": {"model_type": "qwen2"},
            "vision_config": {"model_type": "fastvlm", "image_size": 256},
        },
        preprocessor={
            "image_processor_type": "FastVLMImageProcessor",
            "size": {"shortest_edge": 256},
            "crop_size": {"height": 256, "width": 256},
        },
        instead={
            "fastvlm.config.VisionConfig.embed_dims": [32, 32, 32, 64, 64],
            "fastvlm.config.VisionConfig.layers": [1, 1, 1, 1, 1],
        },
    ),
    "got": Family(
        flat=True,
        template=GOT_TEMPLATE,
        tokens=("<img>", "</img>", "<imgpad>", "<|im_start|>", "<|im_end|>"),
        config={
            "im_patch_token": "<imgpad>",
            "im_start_token": "<img>",
            "im_end_token": "</img>",
            "text_config": {
                "model_type": "qwen2",
                "hidden_size": WIDTH,
                "num_hidden_layers": 2,
                "rms_norm_eps": 1e-5,
                "intermediate_size": 96,
                "num_attention_heads": 4,
                "num_key_value_heads": 4,
            },
            "vision_config": {
                "img_size": 1024,
                "patch_size": 16,
                "depth": 1,
                "embed_dim": 16,
                "num_heads": 1,
                "global_attn_indexes": [],
            },
        },
    ),
    "moondream2": Family(
        template=None, config={"vision_config": MOON_VISION, "text_config": {"num_key_value_heads": 4}}
    ),
    "moondream3": Family(
        template=None,
        config={
            "vision_config": MOON_VISION,
            "text_config": {
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "head_dim": 32,
                "moe_start_layer": 1,
            },
        },
    ),
    "internvl": Family(
        image="<IMG_CONTEXT>",
        tokens=("<img>", "</img>"),
        config={"image_token_id": "<IMG_CONTEXT>", "max_dynamic_patch": 2, "use_thumbnail": False},
        processor={"image_seq_length": 4},
    ),
    "phi3_v": Family(
        flat=True,
        image="<|image_1|>\n",
        mark="<|image|>",
        config={"num_key_value_heads": 4},
        instead={
            "phi3_v.vision.VisionModel.CLIP_VIT_LARGE_PATCH14_336_CONFIG": SimpleNamespace(
                model_type="phi3_v",
                hidden_size=1024,
                image_size=336,
                intermediate_size=96,
                layer_norm_eps=1e-5,
                num_attention_heads=4,
                num_channels=3,
                num_hidden_layers=2,
                patch_size=14,
            ),
        },
    ),
    "phi4mm": Family(
        seed=8,
        flat=True,
        image="<|image_1|>",
        sound="<|audio_1|>",
        mark="<|endoftext11|>",
        config={
            "image_token_index": -200,
            "audio_token_index": "<|endoftext11|>",
            "mm_hidden_size": WIDTH,
            "partial_rotary_factor": 0.75,
            "max_num_patches": 64,
            "min_num_patches": 4,
            "num_key_value_heads": 2,
            "audio_processor": {
                "config": {
                    "attention_dim": WIDTH,
                    "attention_heads": 4,
                    "num_blocks": 2,
                    "linear_units": 96,
                    "ext_pw_out_channel": WIDTH,
                    "depthwise_seperable_out_channel": WIDTH,
                    "conv_channels": WIDTH,
                }
            },
        },
        instead={"phi4mm.processing_phi4mm.AUDIO_TOKEN_INDEX": "<|endoftext11|>"},
    ),
    "nemotron_parse": Family(
        image="",
        mark="<image>",
        config={
            "text_config": None,
            "image_size": [64, 64],
            "decoder_start_token_id": 256,
            "encoder": RADIO,
            "vision_config": RADIO,
            "decoder": {
                "d_model": WIDTH,
                "decoder_attention_heads": 4,
                "decoder_ffn_dim": 96,
                "decoder_layers": 2,
                "pad_token_id": 256,
                "bos_token_id": 256,
                "eos_token_id": 256,
            },
        },
        instead={
            "nemotron_parse.processing_nemotron_parse.NemotronParseImageProcessor": {"final_size": (64, 64)},
        },
    ),
    "hunyuan_vl": Family(
        seed=8,
        image="<|im_begin|><|im_image|><|im_end|>",
        mark="<|im_image|>",
        ids={
            "<|im_pad|>": 259,
            "<|im_begin|>": 260,
            "<|im_end|>": 261,
            "<|im_image|>": 262,
            "<|im_newline|>": 263,
            "<|im_spare|>": 264,
        },
        config={
            "image_start_token_id": 260,
            "image_end_token_id": 261,
            "image_token_id": 262,
            "image_newline_token_id": 263,
            "text_config": {
                "attention_head_dim": 16,
                "num_key_value_heads": 4,
                "rope_scaling": {
                    "alpha": 1000.0,
                    "factor": 1.0,
                    "type": "xdrope",
                    "xdrope_section": [2, 2, 2, 2],
                },
            },
            "vision_config": {"max_image_size": 64},
        },
        instead={
            "hunyuan_vl.processing_hunyuan_vl.HunYuanVLProcessor.IMAGE_TOKEN_ID": 262,
            "hunyuan_vl.processing_hunyuan_vl.HunYuanVLProcessor.IM_START_TOKEN_ID": 260,
            "hunyuan_vl.processing_hunyuan_vl.HunYuanVLProcessor.IM_END_TOKEN_ID": 261,
            "hunyuan_vl.processing_hunyuan_vl.HunYuanVLProcessor.PAD_TOKEN_ID": 259,
            "hunyuan_vl.processing_hunyuan_vl.HunYuanVLImageProcessor.__init__.__defaults__": (
                256,
                4096,
                8,
                1,
                2,
                (0.5, 0.5, 0.5),
                (0.5, 0.5, 0.5),
                True,
                True,
                True,
                None,
            ),
        },
    ),
    "phi4_siglip": Family(
        config={
            "mm_vision_tower": "siglip2-so400m-patch16-naflex",
            "mm_hidden_size": WIDTH,
            "max_num_patches": 64,
            "min_num_patches": 4,
            "model_type": "phi4-siglip",
            "text_config": {"num_key_value_heads": 2},
            "vision_config": {"num_patches": 64},
        },
    ),
    "mistral_large3": Family(
        image="[IMG]",
        tokens=("[IMG_BREAK]", "[IMG_END]"),
        config={
            "image_token_id": "[IMG]",
            "text_config": {"first_k_dense_replace": 1, "v_head_dim": 16},
            "vision_config": {"model_type": "pixtral"},
        },
        preprocessor={
            "image_processor_type": "PixtralImageProcessor",
            "patch_size": {"height": 8, "width": 8},
            "size": {"longest_edge": 64},
            **HALVES,
        },
        processor={"processor_class": "PixtralProcessor", "patch_size": 8, "spatial_merge_size": 2},
    ),
    "prism_hadamard_qwen35": Family(
        image=QWEN,
        video="<|vision_start|><|video_pad|><|vision_end|>",
        mark="<|image_pad|>",
        tokens=QWEN_TOKENS,
        preprocessor=QWEN_PIXELS,
        config={
            **QWEN_IDS,
            "text_config": {"full_attention_interval": 2, "intermediate_size": 512},
            "vision_config": {"num_position_embeddings": 64, "deepstack_visual_indexes": []},
            "quantization": {"bits": 2, "group_size": 128, "mode": "affine"},
            "modules": [
                {
                    "path": f"model.layers.{layer}.mlp.down_proj",
                    "embedding": False,
                    "dtype": "float16",
                    "block": 512,
                }
                for layer in (0, 1)
            ],
        },
        processor={"processor_class": "Qwen3VLProcessor"},
    ),
    "gemma3n": Family(
        image="<image_soft_token>",
        sound="<audio_soft_token>",
        tokens=(
            "<start_of_image>",
            "<end_of_image>",
            "<audio_soft_token>",
            "<start_of_audio>",
            "<end_of_audio>",
        ),
        config={
            "image_token_id": "<image_soft_token>",
            "image_token_index": "<image_soft_token>",
            "audio_token_id": "<audio_soft_token>",
            "text_config": {
                "model_type": "gemma3n_text",
                "num_hidden_layers": 4,
                "num_kv_shared_layers": 2,
                "intermediate_size": [96] * 4,
                "num_key_value_heads": 2,
                "head_dim": 16,
                "laurel_rank": 8,
                "hidden_size_per_layer_input": 8,
                "vocab_size_per_layer_input": 256,
                "sliding_window": 24,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "activation_sparsity_pattern": [0.0] * 4,
            },
            "vision_config": {"vocab_offset": 256, "hidden_size": 2048, "model_type": "gemma3n_vision"},
            "audio_config": {
                "hidden_size": WIDTH,
                "conf_num_attention_heads": 4,
                "conf_num_hidden_layers": 2,
                "sscp_conv_channel_size": [16, 8],
                "vocab_offset": 384,
            },
        },
        preprocessor={
            "image_processor_type": "SiglipImageProcessor",
            "feature_extractor_type": "Gemma3nAudioFeatureExtractor",
            "feature_size": 80,
            "size": {"height": 256, "width": 256},
            **HALVES,
        },
        processor={"processor_class": "Gemma3nProcessor", "audio_seq_length": 188, "image_seq_length": 256},
        tokenizer={
            "extra_special_tokens": {
                "image_token": "<image_soft_token>",
                "boi_token": "<start_of_image>",
                "eoi_token": "<end_of_image>",
                "audio_token": "<audio_soft_token>",
                "boa_token": "<start_of_audio>",
                "eoa_token": "<end_of_audio>",
            }
        },
        seed=2,
        instead={"gemma3n.vision.gemma3n_mobilenet_def": small_mobilenet},
    ),
    "qwen3_omni_moe": Family(
        image=QWEN,
        sound="<|audio_start|><|audio_pad|><|audio_end|>",
        video="<|vision_start|><|video_pad|><|vision_end|>",
        mark="<|image_pad|>",
        tokens=(*QWEN_TOKENS, "<|audio_start|>", "<|audio_pad|>", "<|audio_end|>"),
        config={
            "enable_audio_output": False,
            "talker_config": {"text_config": OMNI_TEXT},
            "thinker_config": {
                "image_token_id": "<|image_pad|>",
                "video_token_id": "<|video_pad|>",
                "audio_token_id": "<|audio_pad|>",
                "audio_start_token_id": "<|audio_start|>",
                "audio_end_token_id": "<|audio_end|>",
                "vision_start_token_id": "<|vision_start|>",
                "vision_end_token_id": "<|vision_end|>",
                "text_config": OMNI_TEXT,
                "vision_config": {
                    "depth": 2,
                    "hidden_size": WIDTH,
                    "intermediate_size": 96,
                    "out_hidden_size": WIDTH,
                    "num_heads": 4,
                    "patch_size": 8,
                    "spatial_patch_size": 8,
                    "num_position_embeddings": 64,
                    "deepstack_visual_indexes": [0],
                },
                "audio_config": {
                    "d_model": WIDTH,
                    "encoder_layers": 2,
                    "num_hidden_layers": 2,
                    "encoder_attention_heads": 4,
                    "encoder_ffn_dim": 96,
                    "num_mel_bins": 128,
                    "output_dim": WIDTH,
                    "downsample_hidden_size": 16,
                },
            },
        },
        preprocessor={
            "feature_extractor_type": "WhisperFeatureExtractor",
            "return_attention_mask": True,
            "feature_size": 128,
            **QWEN_PIXELS,
        },
        tokenizer={
            "extra_special_tokens": {
                "image_token": "<|image_pad|>",
                "video_token": "<|video_pad|>",
                "audio_token": "<|audio_pad|>",
                "vision_bos_token": "<|vision_start|>",
                "vision_eos_token": "<|vision_end|>",
                "audio_bos_token": "<|audio_start|>",
                "audio_eos_token": "<|audio_end|>",
            }
        },
    ),
    "jina_vlm": Family(
        template=None,
        image="<|image|>",
        ids={"<im_patch>": 260, "<im_start>": 261, "<im_end>": 262, "<im_col>": 263},
        instead={
            "jina_vlm.processing_jinavlm.ImageProcessor": {
                "base_input_size": (56, 56),
                "overlap_margins": (1, 1),
                "max_crops": 2,
                "max_pixels": 12544,
                "patch_token_id": 260,
                "start_token_id": 261,
                "end_token_id": 262,
                "column_token_id": 263,
            }
        },
        config={
            "model_type": "jvlm",
            "text_config": {
                "hidden_size": WIDTH,
                "n_layers": 2,
                "additional_vocab_size": 16,
                "block_config": {
                    "attn_config": {"n_heads": 4, "n_kv_heads": 2, "head_dim": 16},
                    "ffn_config": {"size": 96},
                },
            },
            "vision_config": {
                "hidden_size": WIDTH,
                "n_layers": 2,
                "input_size": [56, 56],
                "patch_size": 14,
                "image_size": 56,
                "vit_layers": [-1, -2],
                "output_size": WIDTH,
                "block_config": {
                    "attn_config": {"n_heads": 4, "head_dim": 16},
                    "ffn_config": {"size": 96},
                },
                "vl_connector_config": {"mlp_projector_config": {"size": 96}},
            },
        },
    ),
    "molmo_point": Family(
        image="<|image|>",
        tokens=tuple(POINT_IDS.values()),
        config={
            **POINT_IDS,
            "patch_embed_dim": 16,
            "text_config": {"additional_vocab_size": 16, "num_key_value_heads": 2, "head_dim": 16},
            "vision_config": {**TOWER},
            "adapter_config": {
                **TOWER,
                "hidden_size": WIDTH,
                "text_hidden_size": WIDTH,
                "vit_layers": [-1, -2],
            },
        },
    ),
    "deepseek_v4": Family(
        template=None,
        image="<｜deepseek_image｜>",
        tokens=DEEPSEEK_TURNS,
        config={
            "compress_ratios": [0, 4],
            "num_key_value_heads": 1,
            "head_dim": 32,
            "qk_rope_head_dim": 16,
            "o_groups": 2,
            "o_lora_rank": 16,
            "q_lora_rank": 16,
            "index_n_heads": 2,
            "index_head_dim": 16,
            "index_topk": 32,
            "num_hash_layers": 1,
            "num_nextn_predict_layers": 0,
            "vision_n_layers": 2,
            "vision_dim": WIDTH,
            "vision_n_heads": 4,
            "vision_inter_dim": 96,
            "vision_patch_size": 8,
            "vision_max_n_token": 64,
            "vision_min_pixels": 1024,
        },
    ),
    "deepseek_v41": Family(
        template=None,
        image="<｜deepseek_image｜>",
        tokens=DEEPSEEK_TURNS,
        config={
            "compress_ratios": [0, 2, 1],
            "num_hidden_layers": 3,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "qk_rope_head_dim": 16,
            "o_groups": 2,
            "o_lora_rank": 16,
            "q_lora_rank": 32,
            "index_n_heads": 2,
            "index_head_dim": 32,
            "index_topk": 32,
            "kv_source_layer_ids": [1],
            "index_source_layer_ids": [1, 2],
            "candidate_source_layer_id": 1,
            "candidate_topk_blocks": 8,
            "candidate_block_size": 4,
            "engram_layer_ids": [1],
            "engram_num_embeddings": [600],
            "engram_vocab_size": 64,
            "engram_n_heads": 2,
            "engram_head_dim": 32,
            "engram_max_ngram_size": 3,
            "engram_compressed_vocab_size": 238,  # words of this tokenizer that differ in more than case
            "vision_num_layers": 2,
            "vision_hidden_size": WIDTH,
            "vision_num_heads": 4,
            "vision_intermediate_size": 96,
            "vision_patch_size": 8,
            "vision_max_image_tokens": 64,
            "vision_min_pixels": 1024,
        },
    ),
    "deepseek_vl_v2": Family(
        template=None,
        tokens=("<|User|>", "<|Assistant|>", OCR_PAD),
        config={
            "vision_config": {
                "model_type": "vision",
                "width": WIDTH,
                "layers": 2,
                "intermediate_size": 96,
                "num_attention_heads": 4,
                "mlp_ratio": 1.5,
            },
            "text_config": {"model_type": "deepseek_v2", "num_experts_per_tok": 2},
            "projector_config": {"input_dim": WIDTH, "n_embed": WIDTH},
        },
        processor={
            "processor_class": "DeepseekVLV2Processor",
            "candidate_resolutions": [[32, 32], [32, 64], [64, 32]],
            "patch_size": 8,
            "downsample_ratio": 2,
        },
    ),
    "minicpmv4_6": MINICPM_V,
    "minicpmv4_7": replace(MINICPM_V, image="<|image_pad|>", seed=8),
    "muse_spark": Family(
        image="<|patch|>",
        sound="<|audio|>",
        video="<|video|>",
        config={
            "image_token_id": "<|patch|>",
            "audio_token_id": "<|audio|>",
            "video_token_id": "<|video|>",
            "eos_token_id": [256],
            "text_config": {
                "num_key_value_heads": 2,
                "rope_parameters": {"rope_theta": 10000.0},
                "layer_rope_theta": [10000.0, 0],
                "layer_types": ["sliding_attention", "full_attention"],
                "final_logit_softcapping": 30.0,
                "output_multiplier": 1.0,
                "num_experts_per_tok": 2,
                "moe_hidden_size": 32,
            },
            "vision_config": {
                "pos_emb_height": 4,
                "pos_emb_width": 4,
                "rope_parameters": {"rope_theta": 10000.0},
                "layer_types": ["window_attention", "full_attention"],
            },
            "audio_config": {
                "patch_sizes": [16, 6],
                "hidden_sizes": [32, WIDTH],
                "depths": [1, 1],
                "num_hidden_layers": 2,
                "out_hidden_size": WIDTH,
            },
            "out_hidden_size": 4 * WIDTH,
            "projector_hidden_size": 96,
        },
        processor={"image_processor": {"max_image_tokens": 64}},
        instead=MUSE_SPARK,
    ),
    "plamo2vl": Family(
        template=None,
        vocabulary=write_plamo,
        image="<plamo:image>",
        config={
            "tokenizer_class": "Plamo2Tokenizer",
            "eos_token_id": [1],
            "text_config": {
                "num_key_value_heads": 2,
                "tie_word_embeddings": False,
                "hidden_size_per_head": 16,
                "attention_window_size": 24,
                "mamba_num_heads": 4,
                "mamba_d_state": 8,
                "full_attention_idx": [],
            },
            "vision_config": {
                "image_token_id": "<plamo:image>",
                "image_feature_size": WIDTH,
                "image_proj_hidden_size": WIDTH,
            },
        },
        preprocessor={
            "image_processor_type": "SiglipImageProcessor",
            "patch_size": 8,
            "max_image_width": 64,
            "max_image_height": 64,
            "downsample_ratio": 1.0,
            "tile_context_length": 200,
            **SQUARE,
        },
    ),
    "ernie4_5_moe_vl": Family(
        flat=True,
        vocabulary=write_sentencepiece,
        image="<|IMAGE_START|><|image@placeholder|><|IMAGE_END|>",
        mark="<|IMAGE_PLACEHOLDER|>",
        config={
            "im_patch_id": "<|IMAGE_PLACEHOLDER|>",
            "image_start_token_id": "<|IMAGE_START|>",
            "image_end_token_id": "<|IMAGE_END|>",
            "video_token_id": "<|IMAGE_PLACEHOLDER|>",
            "video_start_token_id": "<|VIDEO_START|>",
            "video_end_token_id": "<|VIDEO_END|>",
            "eos_token_id": [2],
            "pixel_hidden_size": WIDTH,
            "text_config": {
                "num_key_value_heads": 2,
                "moe_num_experts": [4, 4],
                "moe_intermediate_size": [32, 16],
                "moe_layer_start_index": 1,
                "moe_layer_end_index": 1,
                "mrope_section": [2, 2, 4],
                "rope_scaling": {"type": "default", "mrope_section": [2, 2, 4]},
            },
            "vision_config": {"patch_size": 14},
        },
    ),
    "llmjpvl": Family(trusted=True, config={"text_config": {"model_type": "llama"}}),
    "youtu_vl": Family(
        trusted=True,
        flat=True,
        config={
            "text_config": {"q_lora_rank": 32, "kv_lora_rank": 32},
            "vision_config": {"num_patches": 16, "window_size": 32, "fullatt_block_indexes": [1]},
        },
        processor={"packed": True},
    ),
}
