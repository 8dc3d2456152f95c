"""A processor as checkpoints bring it as Python code: copied into the folder of a tiny one, and run from there.

It stands in for the published processors of families of which mlx-vlm has none. Pictures become squares of 32 pixels.
"""

from typing import Any, ClassVar

import numpy as np
from transformers import BatchFeature, ProcessorMixin

SIDE, PATCH, TOKENS = 32, 8, 4  # of a picture


class TinyProcessor(ProcessorMixin):  # type: ignore[misc]
    attributes: ClassVar = ["tokenizer"]
    tokenizer_class = "AutoTokenizer"

    def __init__(self, tokenizer: Any = None, packed: bool = False, **given: Any) -> None:
        """`packed`: patches [patches, pixels] with the grids that they make, in place of pictures."""
        super().__init__(tokenizer, **given)
        self.packed = packed

    def __call__(self, text: Any = None, images: Any = None, **given: Any) -> BatchFeature:
        texts = [text] if isinstance(text, str) else list(text)
        made = self.tokenizer([each.replace("<image>", "<image>" * TOKENS) for each in texts])
        found: dict[str, Any] = {name: np.array(made[name]) for name in ("input_ids", "attention_mask")}
        if images:
            squares = [np.asarray(image.convert("RGB").resize((SIDE, SIDE)), np.float32) for image in images]
            pixels = np.stack(squares).transpose(0, 3, 1, 2) / 127.5 - 1
            if self.packed:
                grid = SIDE // PATCH
                cut = pixels.reshape(len(pixels), 3, grid, PATCH, grid, PATCH).transpose(0, 2, 4, 1, 3, 5)
                pixels = cut.reshape(-1, 3 * PATCH * PATCH)
                found["spatial_shapes"] = np.array([[grid, grid]] * len(images))
            found["pixel_values"] = pixels
        return BatchFeature(found, tensor_type="mlx")
