"""CPU time of embedding models by the kernels and without them, in turns in one process, on random weights of real
shapes: `python -m benchmarks.encoders`. The load of the kernels is timed with them, their comparison with MLX in it.
"""

import argparse
import time
from importlib import import_module
from statistics import median
from typing import Any

from pippin.config.options.model import ModelOptions
from pippin.engines.cpu.blas import accelerate_blas

SHAPES: dict[str, dict[str, Any]] = {
    "bert": {  # all-MiniLM-L6
        "hidden_size": 384,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
    },
    "modernbert": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 1152},
}
WORDS = 1000


def made(name: str, layers: int) -> Any:
    """With weights of bfloat16, as such models are stored."""
    import mlx.core as mx

    module = import_module(f"mlx_vlm.models.{name}.{name}")
    config = {
        "model_type": name,
        "vocab_size": WORDS,
        "num_hidden_layers": layers,
        "layer_norm_eps": 1e-12,
        **SHAPES[name],
    }
    mx.random.seed(1)
    model = module.Model(module.ModelConfig.from_dict(config))
    model.set_dtype(mx.bfloat16)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--lengths", type=int, nargs="+", default=[12, 25, 40, 60, 90, 140, 200, 256])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    accelerate_blas(ModelOptions(), options.threads)
    import mlx.core as mx
    import numpy as np

    from pippin.engines.encoding import EncoderInput, load_encoder, padded

    batch = [
        EncoderInput(tuple((7 * place + length) % (WORDS - 5) + 5 for place in range(length)))
        for length in options.lengths
    ]
    tokens, mask, _ = padded(batch, 0)
    for name in options.models:
        models, loads = {}, {}
        for way in ("auto", "off"):
            start = time.process_time()
            model = made(name, options.layers)
            models[way] = load_encoder(
                lambda made=model: made, ModelOptions(cpu_kernels=way), options.threads
            )
            loads[way] = time.process_time() - start
        spent: dict[str, list[float]] = {way: [] for way in models}
        vectors = {}
        for _ in range(options.rounds + 1):
            for way, model in models.items():
                start = time.process_time()
                vectors[way] = np.array(model(tokens, attention_mask=mask).text_embeds.astype(mx.float32))
                spent[way].append((time.process_time() - start) / len(batch) * 1000)
        # The first round touches memory for the first time.
        kernels, mlx = (median(spent[way][1:]) for way in ("auto", "off"))
        apart = np.abs(vectors["auto"] - vectors["off"]).max()
        print(
            f"{name:16} {options.layers} layers: {kernels:7.1f} ms of CPU a text by the kernels, {mlx:7.1f} without: "
            f"{mlx / kernels:.2f} times; load {loads['auto']:.2f} and {loads['off']:.2f} s; vectors {apart:.1g} apart"
        )


if __name__ == "__main__":
    main()
