"""The model folders that benchmarks serve: the demo model in float32, and a tiny random one.

    python -m benchmarks.weights IMPORTED_MODEL DESTINATION

writes DESTINATION/smollm2-f32 and DESTINATION/tiny, readable by Pippin and by every peer.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.models import llama
from mlx_lm.utils import load_model

COPIED = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")


def copy_tokenizer(source: Path, folder: Path) -> None:
    for name in (*COPIED, "chat_template.jinja"):
        if (source / name).exists():
            shutil.copy(source / name, folder / name)


def save(model: nn.Module, config: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: value.astype(mx.float32) for name, value in tree_flatten(model.parameters())}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps({**config, "torch_dtype": "float32"}, indent=1))


def dense(source: Path, folder: Path) -> None:
    """The same weights without quantisation, as float32."""
    model, config = load_model(source)
    for name, module in model.named_modules():
        if not hasattr(module, "bits"):
            continue
        weight = mx.dequantize(module.weight, module.scales, module.biases, module.group_size, module.bits)
        plain: nn.Module
        if isinstance(module, nn.QuantizedEmbedding):
            plain = nn.Embedding(*weight.shape)
        else:
            plain = nn.Linear(weight.shape[1], weight.shape[0], bias="bias" in module)
            if "bias" in module:
                plain.bias = module.bias
        plain.weight = weight.astype(mx.float32)
        parent = model
        *path, last = name.split(".")
        for part in path:
            parent = parent[int(part)] if part.isdigit() else getattr(parent, part)
        setattr(parent, last, plain)
    config.pop("quantization", None)
    config.pop("quantization_config", None)
    save(model, config, folder)
    copy_tokenizer(source, folder)


def tiny(source: Path, folder: Path) -> None:
    """A random model so small that a server's own cost per token is what remains. It keeps the tokenizer."""
    config = json.loads((source / "config.json").read_text())
    config |= {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    config.pop("quantization", None)
    config.pop("quantization_config", None)
    mx.random.seed(7)
    model = llama.Model(llama.ModelArgs.from_dict(config))
    save(model, config, folder)
    copy_tokenizer(source, folder)


def main() -> None:
    source, destination = Path(sys.argv[1]), Path(sys.argv[2])
    dense(source, destination / "smollm2-f32")
    tiny(source, destination / "tiny")


if __name__ == "__main__":
    main()
