"""Short names of models that Pippin knows by itself, as the small "MLX Server" has them."""

from typing import Final

ALIASES: Final = {
    "gemma": "mlx-community/gemma-3-4b-it-4bit",
    "gemma3n": "mlx-community/gemma-3n-E4B-it-4bit",
    "qwen": "mlx-community/Qwen3-VL-4B-Instruct-4bit",
}
