"""Makes random weights for a vision-language model's folder, and logits of them, with transformers on torch.

    python tests/oracles/vision_logits.py FOLDER INPUTS.npz LOGITS.npy

FOLDER holds config.json, and gets model.safetensors as a checkpoint of this family has it. INPUTS holds `input_ids`
and what the family's processor makes of pictures.
"""

import json
import sys
import tempfile
from pathlib import Path


def main(folder: Path, inputs: Path, logits: Path) -> None:
    import numpy as np
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    torch.manual_seed(5)
    described = json.loads((folder / "config.json").read_text())
    if described["model_type"] == "pixtral":  # transformers gives this name to its tower alone
        described["model_type"] = "llava"
    config = AutoConfig.for_model(**described)
    model = AutoModelForImageTextToText.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Wide enough that the random model answers differently to different pictures.
            parameter.add_(torch.randn_like(parameter) * (0.08 if parameter.ndim > 1 else 0.02))
        given = {name: torch.from_numpy(array) for name, array in np.load(inputs).items()}
        given["attention_mask"] = torch.ones_like(given["input_ids"])
        found = model(**given).logits[0].numpy()
    with tempfile.TemporaryDirectory() as saved:
        model.save_pretrained(saved)
        (folder / "model.safetensors").write_bytes((Path(saved) / "model.safetensors").read_bytes())
    np.save(logits, found)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
