"""Which kind of model a task is for: told before a model is loaded for nothing."""

from collections.abc import Iterable
from typing import Final

from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo, ModelKind
from pippin.core.tasks import Embed, Generate, GenerateImages, ListVoices, Rerank, Speak, Task, Transcribe

KIND_OF: Final[dict[type, tuple[ModelKind, str]]] = {
    Generate: ("language", "generate text"),
    Embed: ("embeddings", "embed texts"),
    Rerank: ("reranking", "rank texts"),
    Transcribe: ("transcription", "transcribe sound"),
    Speak: ("speech", "speak"),
    ListVoices: ("speech", "speak"),
    GenerateImages: ("images", "make pictures"),
}
"""Tasks of tokenizers are for every kind that has one; its engine says where it has none."""

NAMED: Final = 5  # models in an error


def check_kind(task: Task, info: ModelInfo, others: Iterable[ModelInfo]) -> None:
    """Raise `ServerError` with the models that can, where this one can't."""
    if info.kind == "scripted" or type(task) not in KIND_OF:
        return
    kind, doing = KIND_OF[type(task)]
    if info.kind == kind:
        return
    able = [other.id for other in others if other.kind == kind][:NAMED]
    hint = (
        f"Name one that can: {', '.join(able)}."
        if able
        else f"None that can is here; serve one of kind {kind}."
    )
    message = f"The model {info.id!r} is of kind {info.kind} and can't {doing}. {hint}"
    raise ServerError("unsupported", message, "model")
