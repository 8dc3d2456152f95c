"""Tiny random checkpoints of mlx-vlm's diffusion language models, and mlx-vlm's own generate as the judge."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image as Pictures

from tests.engines.language.vision.any_family import Family, write

MASKED = {"mask_token_id": "<mask>", "num_hidden_layers": 2}
PLAIN = (
    "{% for message in messages %}{{ message.role }}: {% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}{% if part.type == 'image' %}<|image|>{% else %}{{ part.text }}"
    "{% endif %}{% endfor %}{% endif %}\n{% endfor %}assistant: "
)
FAMILIES: dict[str, Family] = {
    "llada2_moe": Family(
        tokens=("<mask>",),
        config={**MASKED, "n_group": 2, "num_experts_per_tok": 2, "partial_rotary_factor": 0.5},
    ),
    "nemotron_labs_diffusion": Family(
        tokens=("<mask>",), config={**MASKED, "default_generation_mode": "diffusion"}
    ),
    "diffusion_gemma": Family(
        tokens=("<|image>", "<|image|>", "<image|>", "<|video|>"),
        config={
            "image_token_id": "<|image|>",
            "boi_token_id": "<|image>",
            "eoi_token_id": "<image|>",
            "canvas_length": 32,
            "generation_config": {"max_denoising_steps": 8},
            "text_config": {
                "num_hidden_layers": 4,
                "num_global_key_value_heads": 2,
                "global_head_dim": 16,
                "sliding_window": 64,
                "top_k_experts": 2,
            },
            "vision_config": {
                "model_type": "gemma4_vision",
                "patch_size": 4,
                "pooling_kernel_size": 2,
                "default_output_length": 32,
                "position_embedding_size": 64,
            },
        },
        template=PLAIN,
        processor={
            "processor_class": "DiffusionGemma4Processor",
            "image_processor": {"patch_size": 4, "pooling_kernel_size": 2, "max_soft_tokens": 32},
            "video_processor": {"patch_size": 4, "pooling_kernel_size": 2, "max_soft_tokens": 70},
            "feature_extractor": {"feature_size": 32},
        },
        tokenizer={
            "extra_special_tokens": {
                "image_token": "<|image|>",
                "boi_token": "<|image>",
                "eoi_token": "<image|>",
                "video_token": "<|video|>",
            }
        },
    ),
}


def tiny_diffusion_model(family: str, folder: Path) -> Path:
    return write(family, FAMILIES[family], folder)


class Judge:
    """mlx-vlm's model of a folder, and its own generate."""

    def __init__(self, folder: Path) -> None:
        from mlx_vlm.utils import load_model, load_processor

        self._model = load_model(folder)
        self._processor = load_processor(folder, eos_token_ids=256, trust_remote_code=False)
        self._tokenizer = getattr(self._processor, "tokenizer", self._processor)
        self._noted: list[int] = []
        decode = self._tokenizer.decode

        def noting(tokens: Sequence[int], **settings: Any) -> str:
            self._noted = list(tokens)
            text: str = decode(tokens, **settings)
            return text

        self._tokenizer.decode = noting

    def answer(
        self, text: str, picture: bytes | None = None, *, tokens: int = 32, **settings: Any
    ) -> list[int]:
        """The tokens of its answer to one message of the user."""
        from mlx_vlm.generate import stream_generate

        shown = [] if picture is None else [{"type": "image"}]
        prompt = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": [*shown, {"type": "text", "text": text}]}],
            tokenize=False,
            add_generation_prompt=True,
        )
        self._noted = []
        image = None if picture is None else [Pictures.open(io.BytesIO(picture))]
        results = list(
            stream_generate(self._model, self._processor, prompt, image=image, max_tokens=tokens, **settings)
        )
        singly = [
            int(result.token)
            for result in results
            if result.finish_reason is None and not result.diffusion_block_complete
        ]
        return self._noted or singly
