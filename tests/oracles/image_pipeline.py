"""Runs mflux's real pipelines, tiny and with random weights, through Pippin's engine; prints what came as JSON.

    PYTHONPATH=src:. PYTHON tests/oracles/image_pipeline.py FOLDER [PRESET ...]

PYTHON has mflux, torch and what they need; the project's own environment can't have mflux on Linux.
"""

import hashlib
import io
import json
import sys
import time
from pathlib import Path
from typing import Any

from pippin.config.options.model import ModelOptions
from pippin.engines.cpu.blas import accelerate_blas

accelerate_blas(ModelOptions(), 1)

from pippin.worker.main import end_now  # noqa: E402
from tests.oracles import small_mflux  # noqa: E402

small_mflux.shrink()

import mlx.core as mx  # noqa: E402
from PIL import Image  # noqa: E402

from pippin.core.events import Picture, Progress  # noqa: E402
from pippin.core.image_presets import PRESETS, ImagePreset  # noqa: E402
from pippin.core.models import ModelInfo, WorkerSpec  # noqa: E402
from pippin.core.tasks import GenerateImages  # noqa: E402
from pippin.engines import images  # noqa: E402
from pippin.engines.images.mflux_classes import CLASSES  # noqa: E402
from pippin.engines.images.painting import mflux_named  # noqa: E402

Ran = dict[str, Any]

ADAPTED = {
    # In diffusers' names: a product of the transformer's first block, and its width.
    "flux": ("transformer.transformer_blocks.0.attn.to_q", 128),
    "flux2": ("transformer.transformer_blocks.0.attn.to_q", 64),
    "qwen": ("diffusion_model.transformer_blocks.0.attn.to_q", 128),
    "z_image": ("diffusion_model.layers.0.attention.to_q", 384),
}
"""By the part of mflux that a preset's model comes from; mflux has no LoRA for the others."""


class Painter:
    def __init__(self, folder: Path, preset: ImagePreset, **options: Any) -> None:
        info = ModelInfo(id="tiny", kind="images", path=str(folder))
        spec = WorkerSpec(info=info, options={"config_name": preset.name, **options}, threads=1)
        self.given = (sample_picture(),) if preset.edits else ()
        self.preparer = images.open_preparer(spec)
        self.engine = images.open_engine(spec, self.preparer, lambda done, total, message: None)

    def paint(self, *, cancel_after: int | None = None, **fields: Any) -> Ran:
        fields = {"prompt": "a red fish", "seed": 7, "steps": 3, "images": self.given, **fields}
        task = GenerateImages(width=64, height=64, **fields)
        started = time.perf_counter()
        self.engine.submit(self.preparer.prepare("one", task))
        events = []
        while self.engine.busy:
            events += [event for _, event in self.engine.step()]
            if cancel_after is not None and len(events) >= cancel_after:
                self.engine.cancel("one")
                break
        pictures = [event for event in events if isinstance(event, Picture)]
        return {
            "steps": [event.done for event in events if isinstance(event, Progress)],
            "pictures": [hashlib.sha256(pixels(p)).hexdigest()[:16] for p in pictures if p.partial is None],
            "seeds": [picture.seed for picture in pictures if picture.partial is None],
            "partials": [picture.partial for picture in pictures if picture.partial is not None],
            "sizes": [[picture.width, picture.height] for picture in pictures],
            "last": type(events[-1]).__name__ + (str(events[-1]) if "Failed" in str(events[-1]) else ""),
            "seconds": round(time.perf_counter() - started, 2),
        }


def pixels(picture: Picture) -> bytes:
    with Image.open(io.BytesIO(picture.data)) as image:
        return image.tobytes()


def sample_picture() -> bytes:
    file = io.BytesIO()
    Image.linear_gradient("L").resize((96, 64)).convert("RGB").save(file, "PNG")
    return file.getvalue()


def write_lora(path: Path, stem: str, width: int) -> Path:
    mx.random.seed(2)
    arrays = {
        f"{stem}.lora_A.weight": mx.random.normal((4, width)),
        f"{stem}.lora_B.weight": mx.random.normal((width, 4)),
    }
    mx.save_safetensors(str(path), arrays)
    return path


def run(preset: ImagePreset, folder: Path) -> dict[str, Ran]:
    """What a preset does with all that may be asked of it."""
    model, classes = folder / "model", CLASSES[preset.name]
    config = getattr(mflux_named("common.config.model_config:ModelConfig"), classes.config)()
    small_mflux.write_model(model, mflux_named(classes.model), config)
    painter = Painter(model, preset)
    found = {
        "plain": painter.paint(),
        "again": painter.paint(),
        "two": painter.paint(n=2),
        "longer": painter.paint(steps=4),
        "other_prompt": painter.paint(prompt="two blue birds"),
        "partial": painter.paint(steps=6, partial_images=2, format="jpeg"),
        "cancelled": painter.paint(steps=150, cancel_after=3),
        "after_cancel": painter.paint(),
    }
    if preset.guidance is not None:
        found["guided"] = painter.paint(guidance=preset.guidance + 3.0)
    if preset.negative:
        found["negative"] = painter.paint(negative_prompt="green grass")
    if not preset.edits:
        found["from_picture"] = painter.paint(steps=4, images=(sample_picture(),), strength=0.5)
    if preset.pictures > 1:
        found["from_two"] = painter.paint(images=(sample_picture(),) * 2)
    painter.engine.close()
    found["quantized"] = changed(model, preset, quantize=8)
    part = classes.model.split(".")[0]
    if part in ADAPTED:
        lora = str(write_lora(folder / "lora.safetensors", *ADAPTED[part]))
        found["lora"] = changed(model, preset, lora_paths=[lora], lora_scales=[1.0])
        found["lora_off"] = changed(model, preset, lora_paths=[lora], lora_scales=[0.0])
    return found


def changed(model: Path, preset: ImagePreset, **options: Any) -> Ran:
    painter = Painter(model, preset, **options)
    try:
        return painter.paint()
    finally:
        painter.engine.close()


def main(folder: Path, names: list[str]) -> dict[str, dict[str, Ran]]:
    return {
        preset.name: run(preset, folder / preset.name)
        for preset in PRESETS
        if preset.name in names or not names
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2:])), flush=True)
    end_now(0)  # as workers do: the libraries' threads sometimes abort the interpreter's own way out
