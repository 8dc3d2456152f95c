"""Runs an imported model in float32 with mlx-lm and prints its logits' verdicts, as JSON.

    python tests/oracles/mlx_forward.py FOLDER < sequences.json

Each sequence is {"ids", "greedy", "top_ids"}; the answer has the greedy choice behind each position of `ids + greedy`
from the last of `ids` on, and the logits of `top_ids` behind `ids`. A process of its own, so that OpenBLAS can be put
in front of MLX's slow BLAS before MLX is imported.
"""

import json
import sys
from pathlib import Path

from pippin.config.options.model import ModelOptions
from pippin.engines.cpu.blas import accelerate_blas


def main(folder: Path) -> None:
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_map, tree_unflatten
    from mlx_lm import load

    model, _ = load(str(folder))
    dense = []
    for name, module in model.named_modules():
        if isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding):
            scales, biases = module.scales.astype(mx.float32), module.biases.astype(mx.float32)
            weight = mx.dequantize(module.weight, scales, biases, module.group_size, module.bits)
            if isinstance(module, nn.QuantizedEmbedding):
                layer: nn.Module = nn.Embedding(*weight.shape)
            else:
                layer = nn.Linear(weight.shape[1], weight.shape[0], bias="bias" in module)
                if "bias" in module:
                    layer.bias = module.bias
            layer.weight = weight
            dense.append((name, layer))
    model.update_modules(tree_unflatten(dense))
    model.update(tree_map(lambda array: array.astype(mx.float32), model.parameters()))

    def inputs(ids: mx.array) -> dict[str, mx.array]:
        """mlx-lm rounds Gemma's scale of embeddings to bfloat16; the reference does not, so that is made good."""
        if model.model_type != "gemma3_text":
            return {}
        exact = model.args.hidden_size**0.5
        rounded = mx.array(exact, mx.bfloat16).astype(mx.float32)
        return {"input_embeddings": model.model.embed_tokens(ids) * (exact / rounded)}

    answers = []
    for sequence in json.load(sys.stdin):
        first = len(sequence["ids"]) - 1
        ids = mx.array([sequence["ids"] + sequence["greedy"][:-1]])
        logits = model(ids, **inputs(ids))[0, first:].astype(mx.float32)
        top = logits[0][mx.array(sequence["top_ids"])]
        answers.append({"greedy": mx.argmax(logits, axis=-1).tolist(), "top_logits": top.tolist()})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    accelerate_blas(ModelOptions(), threads=None)
    main(Path(sys.argv[1]))
