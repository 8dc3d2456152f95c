"""Makes tiny vision-language models as transformers saves them, and logits of theirs.

    python tests/oracles/vision_oracle.py FOLDER

Each folder in FOLDER holds a family's config.json and `inputs.npz`: `input_ids` [1, tokens] and what the family's
processor makes of pictures. It gets config.json and weights as transformers writes them, and `logits.npy` [tokens,
vocabulary], and `text.npy` of `TEXT` without pictures. What transformers cannot make has `failed.txt`. Needs torch
and transformers.
"""

import inspect
import json
import sys
import traceback
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.modeling_outputs import MoeCausalLMOutputWithPast

Json = dict[str, Any]

SECTIONS = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "mrope_section": [1, 1, 2],
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 24,
    "beta_fast": 3.0,
    "attention_factor": 1.3,
    "truncate": False,
}
"""What is laid over the rotary settings of checkpoints `...-scaled`."""
TEXT = [1, 5, 9, 14, 33, 2, 70]
PARTS = ("text_config", "vision_config")
TEXTS = {"aya_vision": "cohere2", "internvl": "qwen3", "qwen4_exp": "qwen4_exp_text", "step3p7": "step3p5"}
"""What published models of a family have, where transformers takes another."""
LARGEST = 20_000_000  # parameters: a size that the family's own classes do not name has transformers' default


def in_pairs(rotary: torch.nn.Module, angles: torch.Tensor) -> torch.Tensor:
    """HunYuanVL's sines or cosines [axes, rows, tokens, half a head]: both numbers of a pair turn by one axis, as in
    Tencent's code and vLLM. transformers 5.23 cuts twice as long sections of the doubled angles, which turns the two by
    different axes, and is no rotation."""
    sections = list(rotary.mrope_section)
    parts = angles.split(sections, dim=-1)
    half = torch.cat([part[axis] for axis, part in enumerate(parts)], dim=-1)
    return torch.cat((half, half), dim=-1)


def flattened(kind: str, described: Json) -> None:
    """Give a configuration the fields that transformers has under another name or in another part, in place."""
    text, vision = described.get("text_config"), described.get("vision_config")
    if kind == "florence2":
        vision |= {"embed_dim": vision["dim_embed"], "model_type": "florence_vision"}
        text["model_type"] = "bart"
        described["image_token_id"] = described["vocab_size"] - 2
    if kind == "cohere_compass":
        text |= {"layer_types": ["sliding_attention", "full_attention"], "logit_scale": 0.7}
        text["rope_parameters"] = {
            "sliding_attention": {"rope_type": "default", "rope_theta": 50000.0, "mrope_section": [4, 2, 2]},
            "full_attention": None,
        }
        vision |= {"deepstack_visual_indexes": [0], "num_position_embeddings": 64}
        described["vision_start_token_id"] = described["image_token_id"] - 2
    if kind == "minimax_m3_vl":
        text |= {"rotary_dim": 8, "partial_rotary_factor": 0.5, "index_head_dim": 16}
    if (
        kind == "granite4_vision"
    ):  # transformers has the form with layers of two matrices, as granite-vision-4.1
        del text["shared_intermediate_size"]
        vision["model_type"] = "siglip_vision_model"
        described["vision_feature_select_strategy"] = "full"
    if kind == "kimi_k25":
        described["projection_hidden_size"] = vision["hidden_size"]
        described["image_token_id"] = described["media_placeholder_token_id"]
        vision |= {"num_hidden_layers": vision["depth"], "num_attention_heads": vision["num_heads"]}
        described["tie_word_embeddings"] = text["tie_word_embeddings"] = False
    if kind == "molmo2":
        text["additional_vocab_size"] = text["vocab_size"]  # transformers cuts the embedding in two halves
        described |= {"adapter_config": vision["adapter_config"], "vision_config": vision["vit_config"]}
        described["adapter_config"]["vision_feature_layer"] = described["adapter_config"].pop("vit_layers")
    if kind == "minicpmv4_6":
        vision["insert_layer_id"] = described["insert_layer_id"]
        described["image_token_id"] = described["vocab_size"] - 1
    if kind.startswith("minicpmv4"):
        vision["model_type"] = f"{kind}_vision"
    if kind == "qwen4_exp":
        text |= {"hc_lowrank": 16, "ple_layer_ids": [1], "ple_embed_dim": 64, "heads_per_ngram": 2}
        text |= {
            "ngram_vocab_size_base": 100,
            "make_ngram_vocab_size_divisible_by": 8,
            "split_ngram_parts": 4,
        }
        text |= {"indexer_n_heads": 8, "indexer_kv_heads": 1, "indexer_head_dim": 16}
        text |= {"indexer_compress_ratio": 4, "indexer_budget": 12, "rope_parameters": SECTIONS}
        text["output_gate_type"] = "silu"
    if kind == "step3p7":
        text |= {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 9}
        text |= {"num_sliding_attention_heads": 2 * text["num_attention_heads"]}
        text |= {
            "moe_router_scaling_factor": 1.7,
            "swiglu_limits": [None, 0.3],
            "swiglu_limits_shared": [0.4, 0.5],
        }
        scaled = {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 32.0}
        scaled["original_max_position_embeddings"] = 64
        text["rope_parameters"] = {
            "full_attention": {"rope_theta": 50000.0, "partial_rotary_factor": 0.5, **scaled},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2345.0},
        }
        vision["layer_scale_init_value"] = 0.3
    if kind == "unlimited-ocr":
        described["model_type"] = "unlimited_ocr"


WRITTEN = {
    "kimi_k25": (
        ("language_model.model.blocks.", "language_model.model.layers."),
        ("model.mm_projector.", "mm_projector."),
    ),
}
"""Beginnings of names that transformers writes and no publisher has, and the published ones, which it reads."""


def named_as_published(kind: str, folder: Path) -> None:
    path, arrays = folder / "model.safetensors", {}
    for name, array in load_file(path).items():
        own = next((old for old, _ in WRITTEN[kind] if name.startswith(old)), None)
        arrays[name if own is None else dict(WRITTEN[kind])[own] + name.removeprefix(own)] = array
    save_file(arrays, path, {"format": "pt"})


def regrouped(kind: str, arrays: dict[str, Any], picture: int) -> dict[str, Any]:
    """A processor's arrays as transformers' class of the family takes them; `picture` is the token of its features."""
    if kind == "kimi_k25":
        grids = arrays.pop("image_grid_hws")
        arrays["image_grid_thw"] = np.concatenate([np.ones_like(grids[:, :1]), grids], axis=1)
    if kind == "step3p7":
        arrays["pixel_values_local"] = arrays.pop("patch_pixel_values")
        arrays["num_local_patches"] = arrays.pop("num_patches")
    if kind.startswith("glm4v") and 2 in (kinds := arrays["mm_token_type_ids"]):
        if 1 in kinds:  # which transformers fails with, as both have one token
            arrays["mm_token_type_ids"] = np.minimum(kinds, 1)
        else:  # pairs of frames of one size are a film
            arrays["pixel_values_videos"], grids = arrays.pop("pixel_values"), arrays.pop("image_grid_thw")
            runs = [(size, len(list(run))) for size, run in groupby(map(tuple, grids[:, 1:].tolist()))]
            arrays["video_grid_thw"] = np.array([(steps, *size) for size, steps in runs])
    if kind == "gemma4":
        if "pixel_values" in arrays:
            _, _, height, width = (pixels := arrays["pixel_values"]).shape
            patches = pixels.reshape(1, 3, height // 4, 4, width // 4, 4).transpose(0, 2, 4, 3, 5, 1)
            arrays["pixel_values"] = patches.reshape(1, -1, 48)
            places = np.stack(np.indices((height // 4, width // 4))[::-1], axis=-1)
            arrays["image_position_ids"] = places.reshape(1, -1, 2)
        for name in {"pixel_values_videos", "video_position_ids"} & arrays.keys():
            arrays[name] = arrays[name][0]
    if kind == "muse_spark" and "pixel_values" in arrays:  # patches of two equal frames, in rows
        _, channels, height, width = (pixels := arrays["pixel_values"]).shape
        grid = (1, height // 8, width // 8)
        patches = pixels.reshape(channels, grid[1], 8, grid[2], 8).transpose(1, 3, 0, 2, 4)
        arrays["pixel_values"] = np.repeat(patches[:, :, None], 2, axis=2).reshape(grid[1] * grid[2], -1)
        arrays["image_grid_thw"] = np.array([grid])
    if kind.startswith("minicpmv4"):
        arrays["target_sizes"] = arrays.pop("tgt_sizes")[0]
        arrays["pixel_values"] = arrays["pixel_values"][0]
        arrays.pop("downsample_mode", None)
        for first, last in arrays.pop("image_bound")[0]:
            arrays["input_ids"][0, first:last] = picture
    return arrays


def write(folder: Path) -> None:
    torch.manual_seed(5)
    described = json.loads((folder / "config.json").read_text())
    kind, text, vision = described["model_type"], described.get("text_config"), described.get("vision_config")
    if kind in ("glm4v", "glm_ocr", "qwen3_5_moe"):
        text["rope_parameters"] = SECTIONS
    if kind == "qwen3_vl_moe":
        text |= {"tie_word_embeddings": False, "moe_intermediate_size": 48}
    if kind in ("aya_vision", "gemma3", "lfm2_vl", "paligemma"):
        vision["vision_use_head"] = False  # as all checkpoints say
    if kind in TEXTS:
        text["model_type"] = TEXTS[kind]
    if kind == "paligemma":
        vision["projection_dim"] = described["projection_dim"] = text["hidden_size"]
        # PaliGemma 2's: transformers 5.23 fails with the mask that it makes for the first Gemma.
        text |= {"model_type": "gemma2", "query_pre_attn_scalar": 20, "sliding_window": 4096}
    if kind == "mllama":
        text["pad_token_id"] = 0
    if kind == "lfm2_vl":
        vision["model_type"] = "siglip2_vision_model"
    if kind == "llama4":
        vision["projector_dropout"] = 0.0
        text["moe_layers"] = None  # told by `interleave_moe_layer_step`
        # transformers 5.24.0 asks the answer of the text model for this, and fails without.
        MoeCausalLMOutputWithPast.image_outputs = None
    if kind == "granite_vision":  # published under this name, and told by its text model
        described |= {"model_type": "llava_next", "vision_feature_select_strategy": "full"}
        text["model_type"] = "granite"
        text |= {"attention_multiplier": 0.31, "embedding_multiplier": 3.0, "logits_scaling": 1.3}
        vision["model_type"] = "siglip_vision_model"
    flattened(kind, described)
    if described["model_type"] == "pixtral":  # transformers gives this name to its tower alone
        described["model_type"] = "llava"
    # Published configurations have no other fields beside their parts.
    known = AutoConfig.for_model(described["model_type"]).to_dict().keys()
    given = {name: value for name, value in described.items() if name in known}
    if kind == "aya_vision":  # the class reads it and does not list it
        given["alignment_intermediate_size"] = 96
    if text is None and "text_config" in known:  # the fields of the text model lie beside its parts
        given["text_config"] = {
            name: described[name] for name in described if name != "model_type" and name not in PARTS
        }
    config = AutoConfig.for_model(**given)
    if folder.name.endswith("-scaled"):
        table = config.get_text_config().rope_parameters
        if "full_attention" in table:  # where transformers looks for `truncate` beside the tables
            table["full_attention"].update({**YARN, "truncate": True})
        else:
            table.update(YARN)
    if kind == "paddleocr_vl":  # as the published one says
        config.tie_word_embeddings = config.get_text_config().tie_word_embeddings = False
    with torch.device("meta"):
        size = sum(each.numel() for each in AutoModelForImageTextToText.from_config(config).parameters())
    assert size < LARGEST, f"{size} parameters"
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Wide enough that the random model answers differently to different pictures.
            parameter.add_(torch.randn_like(parameter) * (0.08 if parameter.ndim > 1 else 0.02))
    model.save_pretrained(folder)
    if kind in WRITTEN:
        named_as_published(kind, folder)
    # What the folder says is compared, not what was in memory.
    model = type(model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    for module in model.modules():
        if type(module).__name__.startswith("HunYuanVL") and hasattr(module, "recomposition_frequencies"):
            module.recomposition_frequencies = partial(in_pairs, module)
    scales = {"aya_vision": "logit_scale", "granite_vision": "logits_scaling"}
    by = getattr(config.text_config, scales[kind]) if kind in scales else 1.0
    by = (
        by if kind == "aya_vision" else 1 / by
    )  # as their text models do alone, and vLLM: here their classes leave it out
    with torch.no_grad():
        np.save(folder / "text.npy", by * model(input_ids=torch.tensor([TEXT])).logits[0].numpy())
        for path in sorted(folder.glob("*.npz"), key=lambda each: each.stem != "inputs"):
            given = given_of(kind, described["model_type"], model, dict(np.load(path)))
            logits = model(**given).logits[0].numpy()
            blind = {name: array for name, array in given.items() if name in ("input_ids", "attention_mask")}
            assert np.abs(logits - model(**blind).logits[0].numpy()).max() > 1e-2, (
                f"{path.stem}: nothing is seen"
            )
            np.save(path.with_suffix(".npy"), by * logits)


def given_of(kind: str, named: str, model: Any, arrays: Json) -> Json:
    """What a model is given, of a family's kind and of transformers' name for it, of the arrays of a processor."""
    config, taken = model.config, inspect.signature(model.forward).parameters
    arrays = regrouped(kind, arrays, getattr(config, "image_token_id", 0))
    given = {name: torch.from_numpy(array) for name, array in arrays.items() if name in taken}
    if named in ("internvl", "paddleocr_vl"):
        given["pixel_values"] = given["pixel_values"][0]
    if named == "paligemma":  # with labels a prompt is one to learn from
        del given["labels"]
    if named == "hunyuan_vl":
        del given["position_ids"]
    if named in ("cohere_compass", "hunyuan_vl"):
        given["mm_token_type_ids"] = (given["input_ids"] == config.image_token_id).long()
    given["input_ids"] = given["input_ids"].long()
    given["attention_mask"] = torch.ones_like(given["input_ids"])
    if named in ("qwen2_vl", "qwen2_5_vl") and "video_grid_thw" in given:
        given["position_ids"] = after_films(model, given)
    return given


def after_films(model: Any, given: Json) -> torch.Tensor:
    """The positions [axes, 1, tokens] of Qwen2-VL, where text after a film goes on after the largest position, as in
    the paper and in transformers 4.57. Version 5.24 gives such text positions of the film."""
    own = {name: each for name, each in given.items() if name.endswith(("_thw", "_ts", "_ids", "_mask"))}
    positions, _ = model.model.get_rope_index(**own)
    kinds = given["mm_token_type_ids"][0]
    for start in (1 + np.flatnonzero(np.diff(kinds))).tolist():
        positions[:, :, start:] += positions[:, :, :start].max() + 1 - positions[:, :, start].min()
    return positions


def main(root: Path) -> None:
    torch.set_num_threads(1)
    for path in sorted(root.glob("*/inputs.npz")):
        try:
            write(path.parent)
        except Exception:
            (path.parent / "failed.txt").write_text(traceback.format_exc())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
