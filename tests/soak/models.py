"""The small models that a soak serves: random weights in the real formats, of every kind that there is.

What writes them is imported when it is called: the soak's server reads this file too, and must stay as small as the
server that people run.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.running_server import ROOT

LANGUAGE: Final = ("llama", "gemma3_text", "qwen3_next", "lfm2")
ADAPTED: Final = LANGUAGE[0]
EMBEDDER: Final = "embedder"
VISION: Final = "qwen2_5_vl"
HEARING: Final = "whisper"
SPEAKING: Final = "soprano"
PAINTING: Final = "painter"
ADAPTERS: Final = {"one": 4, "two": 8}  # ranks
WHISPER: Final = ROOT / ".cache" / "faster-whisper-base"
NARROWER: Final = {512: 64, 2048: 256, 1536: 192, 448: 64}  # sizes of Whisper base, and what they become


@dataclass(frozen=True)
class Served:
    """`words` are for the command line; `kinds` names what the models can do."""

    words: tuple[str, ...]
    kinds: frozenset[str]


def make_models(folder: Path) -> Served:
    """Write the models and adapters into `folder`. Sound is left out where its parts are not fetched."""
    from pippin.config.options.model import ModelOptions
    from pippin.engines.cpu.blas import accelerate_blas

    accelerate_blas(ModelOptions(), 1)
    from tests.engines.images.tiny_pipelines import tiny_z_image  # these import mlx
    from tests.engines.language.model.test_lora import adapter
    from tests.engines.language.vision.tiny_vision_models import tiny_vision_model
    from tests.engines.speech.test_speech_models import write_model
    from tests.engines.tiny_models import tiny_model

    place = folder / "models"
    kinds = {"chat", "embeddings", "vision", "speech", "images"}
    for name in LANGUAGE:
        tiny_model(name, place / name)
    tiny_model("qwen3", place / EMBEDDER)
    tiny_vision_model(VISION, place / VISION)
    write_model(place / SPEAKING)
    adapters = {name: str(adapter(folder / name, rank, rank)) for name, rank in ADAPTERS.items()}
    lines = [
        *(f"  - path: {place / name}" for name in (*LANGUAGE[1:], VISION, SPEAKING)),
        f"  - path: {place / ADAPTED}",
        f"    adapters: {json.dumps(adapters)}",
        f"  - path: {place / EMBEDDER}",
        "    kind: embeddings",
        f"  - path: {place / PAINTING}",
        "    kind: images",
    ]
    if WHISPER.is_dir():
        write_whisper(place / HEARING)
        lines.append(f"  - path: {place / HEARING}")
        kinds.add("transcription")
    tiny_z_image(place / PAINTING, turbo=True)
    file = folder / "pippin.yaml"
    file.write_text("\n".join(["max_models: 3", "contention_wait: 240", "models:", *lines]) + "\n")
    return Served(("--config", str(file)), frozenset(kinds))


def write_whisper(folder: Path) -> None:
    """Whisper base, cut to an eighth of its width and one layer a side: it hears nothing, at the real model's pace."""
    import numpy as np
    from safetensors.numpy import load_file, save_file

    from tests.oracles.whisper_from_ctranslate2 import convert

    convert(WHISPER, folder)
    weights = load_file(folder / "model.safetensors")
    small = {
        name: np.ascontiguousarray(
            array[tuple(slice(NARROWER.get(length, length)) for length in array.shape)], dtype=np.float32
        )
        for name, array in weights.items()
        if ".layers." not in name or ".layers.0." in name
    }
    save_file(small, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    for side in ("encoder", "decoder"):
        config |= {f"{side}_layers": 1, f"{side}_attention_heads": 1, f"{side}_ffn_dim": 256}
    (folder / "config.json").write_text(json.dumps(config | {"d_model": 64, "max_target_positions": 64}))
    generation = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(generation | {"alignment_heads": [[0, 0]]}))
