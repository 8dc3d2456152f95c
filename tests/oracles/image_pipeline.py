"""Runs mflux's real pipelines, tiny and with random weights, through Pippin's engine; prints what came as JSON.

    PYTHONPATH=src PYTHON tests/oracles/image_pipeline.py FOLDER

PYTHON has mflux, torch and what they need; the project's own environment can't have mflux on Linux.
"""

import hashlib
import io
import json
import sys
import time
from pathlib import Path
from typing import Any

from pippin.config.model_options import ModelOptions
from pippin.engines.device import accelerate_blas

accelerate_blas(ModelOptions(), 1)

import mlx.core as mx  # noqa: E402
from mflux.models.common.config.model_config import AVAILABLE_MODELS  # noqa: E402
from mflux.models.flux2.flux2_initializer import Flux2Initializer  # noqa: E402
from mflux.models.flux2.variants import Flux2Klein  # noqa: E402
from PIL import Image  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402

from pippin.core.events import Picture, Progress  # noqa: E402
from pippin.core.models import ModelInfo, WorkerSpec  # noqa: E402
from pippin.core.tasks import GenerateImages  # noqa: E402
from pippin.engines import images  # noqa: E402

TRANSFORMER = {
    "num_layers": 1,
    "num_single_layers": 1,
    "num_attention_heads": 2,
    "attention_head_dim": 32,
    "joint_attention_dim": 192,
    "axes_dims_rope": (8, 8, 8, 8),
}
TEXT = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 28,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
}


def shrink() -> None:
    """The preset keeps its name and its code; its sizes become tiny."""
    config = AVAILABLE_MODELS["flux2-klein-4b"]
    config.transformer_overrides = TRANSFORMER
    config.text_encoder_overrides = TEXT


def write_tokenizer(folder: Path) -> None:
    folder.mkdir(parents=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {token: number for number, token in enumerate([*alphabet, *special])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_model(folder: Path) -> None:
    """As `mflux-save` writes it."""
    mx.random.seed(1)
    model = Flux2Klein.__new__(Flux2Klein)
    super(Flux2Klein, model).__init__()
    Flux2Initializer._init_config(model, AVAILABLE_MODELS["flux2-klein-4b"])
    model.small_text_encoder = model.small_decoder = False
    Flux2Initializer._init_models(model)
    write_tokenizer(folder / "tokenizer")
    Flux2Initializer._init_tokenizers(model, str(folder))
    model.bits = None
    model.save_model(str(folder))
    (folder / "tokenizer").mkdir(exist_ok=True)


class Painter:
    def __init__(self, folder: Path, **options: Any) -> None:
        info = ModelInfo(id="tiny", kind="images", path=str(folder))
        spec = WorkerSpec(info=info, options=options, threads=1)
        self.preparer = images.open_preparer(spec)
        self.engine = images.open_engine(spec, self.preparer, lambda done, total, message: None)

    def paint(self, *, cancel_after: int | None = None, **fields: Any) -> dict[str, Any]:
        task = GenerateImages(prompt="a red fish", width=64, height=64, **fields)
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


def write_lora(folder: Path) -> Path:
    """A LoRA of the first block's attention, in diffusers' names."""
    path = folder / "lora.safetensors"
    stem = "transformer.transformer_blocks.0.attn.to_q"
    width = TRANSFORMER["num_attention_heads"] * TRANSFORMER["attention_head_dim"]  # type: ignore[operator]
    mx.random.seed(2)
    mx.save_safetensors(
        str(path),
        {
            f"{stem}.lora_A.weight": mx.random.normal((4, width)),
            f"{stem}.lora_B.weight": mx.random.normal((width, 4)),
        },
    )
    return path


def main(folder: Path) -> dict[str, Any]:
    shrink()
    write_model(folder / "model")
    lora = str(write_lora(folder))
    found: dict[str, Any] = {}
    painter = Painter(folder / "model", config_name="flux2-klein-4b")
    found["plain"] = painter.paint(seed=7, steps=3)
    found["again"] = painter.paint(seed=7, steps=3)
    found["two"] = painter.paint(seed=7, steps=3, n=2)
    found["guided"] = painter.paint(seed=7, steps=3, guidance=4.0)
    found["partial"] = painter.paint(seed=7, steps=6, partial_images=2, format="jpeg")
    found["from_picture"] = painter.paint(seed=7, steps=4, images=(sample_picture(),), strength=0.5)
    found["cancelled"] = painter.paint(seed=7, steps=150, cancel_after=3)
    found["after_cancel"] = painter.paint(seed=7, steps=3)
    painter.engine.close()
    quantized = Painter(folder / "model", config_name="flux2-klein-4b", quantize=8)
    found["quantized"] = quantized.paint(seed=7, steps=3)
    quantized.engine.close()
    adapted = Painter(folder / "model", config_name="flux2-klein-4b", lora_paths=[lora], lora_scales=[1.0])
    found["lora"] = adapted.paint(seed=7, steps=3)
    adapted.engine.close()
    off = Painter(folder / "model", config_name="flux2-klein-4b", lora_paths=[lora], lora_scales=[0.0])
    found["lora_off"] = off.paint(seed=7, steps=3)
    off.engine.close()
    editor = Painter(folder / "model", config_name="flux2-klein-edit-4b")
    found["edit"] = editor.paint(seed=7, steps=3, images=(sample_picture(), sample_picture()))
    editor.engine.close()
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
