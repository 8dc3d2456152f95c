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
from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

SECTIONS = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "mrope_section": [1, 1, 2],
}
TEXT = [1, 5, 9, 14, 33, 2, 70]
PARTS = ("text_config", "vision_config")
TEXTS = {"aya_vision": "cohere2", "internvl": "qwen3", "step3p7": "step3p5"}
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
    if kind == "granite_vision":  # published under this name, and told by its text model
        described |= {"model_type": "llava_next", "vision_feature_select_strategy": "full"}
        text["model_type"] = "granite"
        text |= {"attention_multiplier": 0.31, "embedding_multiplier": 3.0, "logits_scaling": 1.3}
        vision["model_type"] = "siglip_vision_model"
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
    # What the folder says is compared, not what was in memory.
    model = type(model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    for module in model.modules():
        if type(module).__name__.startswith("HunYuanVL") and hasattr(module, "recomposition_frequencies"):
            module.recomposition_frequencies = partial(in_pairs, module)
    taken = inspect.signature(model.forward).parameters
    arrays = {name: array for name, array in np.load(folder / "inputs.npz").items() if name in taken}
    given = {name: torch.from_numpy(array) for name, array in arrays.items()}
    if described["model_type"] in ("internvl", "paddleocr_vl"):
        given["pixel_values"] = given["pixel_values"][0]
    if described["model_type"] == "paligemma":  # with labels a prompt is one to learn from
        del given["labels"]
    if described["model_type"] == "hunyuan_vl":
        del given["position_ids"]
        given["mm_token_type_ids"] = (given["input_ids"] == config.image_token_id).long()
    given["attention_mask"] = torch.ones_like(given["input_ids"])
    with torch.no_grad():
        logits = model(**given).logits[0].numpy()
        blind = {name: array for name, array in given.items() if name in ("input_ids", "attention_mask")}
        assert np.abs(logits - model(**blind).logits[0].numpy()).max() > 1e-2, "no picture is seen"
        text = model(input_ids=torch.tensor([TEXT])).logits[0].numpy()
    scales = {"aya_vision": "logit_scale", "granite_vision": "logits_scaling"}
    if kind in scales:  # as their text models do alone, and vLLM: here their classes leave it out
        by = getattr(config.text_config, scales[kind])
        logits, text = (each * by if kind == "aya_vision" else each / by for each in (logits, text))
    np.save(folder / "logits.npy", logits)
    np.save(folder / "text.npy", text)


def main(root: Path) -> None:
    torch.set_num_threads(1)
    for path in sorted(root.glob("*/inputs.npz")):
        try:
            write(path.parent)
        except Exception:
            (path.parent / "failed.txt").write_text(traceback.format_exc())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
