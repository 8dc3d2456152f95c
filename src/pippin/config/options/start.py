"""The options that are read first at the start: where the others come from, and shorthands for naming models."""

from typing import Annotated, Literal

from msgspec import Struct

from pippin.config.options.marks import about
from pippin.core.models import ModelKind

Compat = Literal[
    "mlx-vlm",
    "mlx-server",
    "mlx-openai-server",
    "vllm-mlx",
    "mlx-lm",
    "omlx",
    "rapid-mlx",
    "ollama",
    "lm-studio",
]


class StartOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Resolved into `ServerOptions.models`, and not needed after the start."""

    config: Annotated[str | None, about("YAML file of options and models.")] = None
    models_config: Annotated[str | None, about("YAML registry of models, as vllm-mlx writes it.")] = None
    compat: Annotated[Compat | None, about("Take over the defaults of a server that Pippin replaces.")] = None

    model: Annotated[
        tuple[str, ...], about("Model to serve, as the positional argument.", flag="--model")
    ] = ()
    served_model_name: Annotated[str | None, about("Name of the first model for clients.")] = None
    model_kind: Annotated[
        ModelKind | None, about("Kind of the first model; read from its files if not set.")
    ] = None
    lazy_load: Annotated[bool, about("Load models at their first request.")] = False
    image_model: Annotated[str | None, about("Image model to serve beside them.")] = None
    tts_model: Annotated[str | None, about("Text-to-speech model to serve.")] = None
    stt_model: Annotated[str | None, about("Speech-to-text model to serve.")] = None
    embedding_model: Annotated[str | None, about("Embedding model to serve.")] = None
    reranker_model: Annotated[str | None, about("Reranker to serve.")] = None
    decision_model: Annotated[str | None, about("Decision model to serve.")] = None
