"""The small "MLX Server" (MLXServer, its Python version)."""

from typing import Final

from pippin.config.compat import conversions as to
from pippin.config.compat.terms import KnownModel, Server, same

FLAGS = (
    same("--model", "model", "mlx-community/gemma-3-4b-it-4bit", "an alias, a repository or a partial name"),
    same("--host", "host", "127.0.0.1"),
    same("--port", "port", "1234"),
    same("--log-level", "log_level", "info", convert=to.log_level),
)

VARIABLES = (
    same("MODEL", "model", "gemma", "with `--compat mlx-server`"),
    same("HOST", "host", "127.0.0.1", "with `--compat mlx-server`"),
    same("PORT", "port", "1234", "with `--compat mlx-server`"),
)

SERVER: Final = Server(
    name="mlx-server",
    title="MLX Server",
    command="`./run.sh gemma` becomes `pippin serve --compat mlx-server gemma`",
    flags=FLAGS,
    variables=VARIABLES,
    keys=(),
    general_variables=("MODEL", "HOST", "PORT"),
    profile={
        "model": ("mlx-community/gemma-3-4b-it-4bit",),
        "lazy_load": True,
        "host": "127.0.0.1",
        "port": 1234,
        "max_tokens": 4096,
        "temperature": 0.7,
        "top_p": 0.9,
        "repetition_penalty": 1.1,
        "overflow": "summarize",
        "max_models": 1,
        "allowed_origins": ("*",),
        "stream_usage": "always",
    },
    known_models=(
        KnownModel(path="mlx-community/gemma-3-4b-it-4bit", listed=True),
        KnownModel(path="mlx-community/gemma-3n-E4B-it-4bit", listed=True),
        KnownModel(path="mlx-community/Qwen3-VL-4B-Instruct-4bit", listed=True),
    ),
)
