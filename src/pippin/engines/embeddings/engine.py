"""Embedding models: encoders of mlx-vlm, and language models of mlx-lm with their last hidden state pooled."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pippin.config.options.model import ModelOptions
from pippin.core.decoding import convert
from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Embedded, Event
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.tasks import Embed, Task
from pippin.engines.base import Job, LoadProgress, Preparer
from pippin.engines.embeddings.language import language_forward
from pippin.engines.embeddings.pooling import Pooling, read_pooling
from pippin.engines.embeddings.windows import restore_windows
from pippin.engines.encoding import (
    EncodingEngine,
    EncodingJob,
    EncodingTokenizer,
    Floats,
    TokenRow,
    floats,
    for_this_device,
    padded,
    read_json,
)

ENCODERS = frozenset(
    {"bert", "xlm-roberta", "modernbert", "llama_bidirec", "gemma3_text", "qwen3", "lfm2", "ministral3"}
)
"""`model_type`s that mlx-vlm's embedding loader builds; every other one is read as a language model."""


class EmbeddingPreparer:
    """Tokenizes inputs and checks their lengths."""

    def __init__(self, spec: WorkerSpec) -> None:
        folder = Path(spec.info.path or "")
        options = convert(spec.options, ModelOptions)
        self.folder = folder
        self.info: ModelInfo = spec.info
        self.tokenizer = EncodingTokenizer(folder, options.embedding_max_length)
        self.options = options
        self._overflow = options.embedding_overflow
        settings = read_json(folder / "config_sentence_transformers.json")
        prompts = settings.get("prompts") or {}
        self._prompts: dict[str, str] = {str(k): str(v) for k, v in prompts.items()}
        self._default_prompt = self._prompts.get(str(settings.get("default_prompt_name")), "")

    def prepare(self, id: str, task: Task) -> Job | tuple[Event, ...]:
        if not isinstance(task, Embed):
            raise ServerError(
                "invalid_request", f"{self.info.id} is an embedding model; it only embeds.", "model"
            )
        if task.content:
            raise ServerError(
                "unsupported", f"{self.info.id} embeds text only; send strings as input.", "input"
            )
        if not task.inputs:
            raise ServerError("invalid_request", "input is empty; send at least one text.", "input")
        prefix = self._prefix(task.instruction)
        overflow = task.overflow or self._overflow
        rows = tuple(self._row(item, f"input[{i}]", prefix, overflow) for i, item in enumerate(task.inputs))
        tokens = sum(len(row.tokens) for row in rows)
        return EncodingJob(id, Accepted(tokens), rows, self._answer(task.dimensions, tokens))

    def _prefix(self, instruction: str | None) -> str:
        """An instruction is a prompt's name in the model's own list, or the text to put in front."""
        if instruction is None:
            return self._default_prompt
        return self._prompts.get(instruction, instruction)

    def _row(self, item: str | tuple[int, ...], param: str, prefix: str, overflow: str) -> TokenRow:
        if isinstance(item, str):
            if not item:
                raise ServerError("invalid_request", f"{param} is empty; leave it out or send text.", param)
            row = self.tokenizer.encode(prefix + item)
        else:
            if not item:
                raise ServerError("invalid_request", f"{param} has no token ids.", param)
            row = self.tokenizer.checked(item, param)
        if len(row.tokens) <= self.tokenizer.limit:
            return row
        if overflow == "error":
            raise ServerError(
                "context_length_exceeded",
                f"{param} has {len(row.tokens)} tokens; {self.info.id} takes {self.tokenizer.limit}. "
                "Send less, or `truncate`: true, or start the server with --embedding-overflow truncate.",
                param,
            )
        # The last token (end of sequence, separator) is what several poolings read: it stays.
        return TokenRow((*row.tokens[: self.tokenizer.limit - 1], row.tokens[-1]))

    def _answer(self, dimensions: int | None, tokens: int) -> Callable[[Floats], Event]:
        def answer(vectors: Floats) -> Event:
            if dimensions is not None and dimensions < vectors.shape[1]:
                vectors = vectors[:, :dimensions]
                norms = np.linalg.norm(vectors, axis=1, keepdims=True)
                vectors = (vectors / np.maximum(norms, 1e-12)).astype(np.float32)
            return Embedded(np.ascontiguousarray(vectors, "<f4").tobytes(), vectors.shape[1], tokens)

        if dimensions is not None and self.info.dimensions and dimensions > self.info.dimensions:
            raise ServerError(
                "invalid_request",
                f"dimensions is {dimensions}; {self.info.id} has {self.info.dimensions}.",
                "dimensions",
            )
        return answer


def open_preparer(spec: WorkerSpec) -> EmbeddingPreparer:
    return EmbeddingPreparer(spec)


def open_engine(spec: WorkerSpec, preparer: Preparer, progress: LoadProgress) -> EncodingEngine:
    assert isinstance(preparer, EmbeddingPreparer)
    progress(0, spec.info.size_bytes, "weights")
    config = preparer.tokenizer.config
    pooling = read_pooling(preparer.folder)
    if config.get("model_type") in ENCODERS:
        if preparer.options.embedding_pooling is not None:
            raise ServerError(
                "load_failed",
                f"{spec.info.id} has a pooling of its own; leave embedding_pooling out.",
                "embedding_pooling",
            )
        forward = _encoder(preparer, pooling)
    else:
        forward = language_forward(spec.info, preparer.options, pooling, preparer.tokenizer.pad, progress)
    vector = forward([TokenRow((preparer.tokenizer.pad,))])  # a warm-up that also tells the size
    preparer.info = msgspec.structs.replace(preparer.info, dimensions=int(vector.shape[1]))
    progress(spec.info.size_bytes, spec.info.size_bytes, "weights")
    return EncodingEngine(forward)


def with_rope_theta(config: dict[str, Any]) -> dict[str, Any]:
    """transformers 5 writes it inside `rope_parameters`, where mlx-vlm does not look."""
    parameters = config.get("rope_parameters")
    if "rope_theta" in config or not isinstance(parameters, dict) or "rope_theta" not in parameters:
        return config
    return {**config, "rope_theta": parameters["rope_theta"]}


def _encoder(preparer: EmbeddingPreparer, pooling: Pooling | None) -> Callable[[Sequence[TokenRow]], Floats]:
    try:
        from mlx_vlm.embedding_loader import load_embedding_model
        from mlx_vlm.models.pooling import pool_by_config
    except ImportError as error:
        raise ServerError(
            "load_failed", 'Embedding models need an extra: pip install "pippin[vision]".'
        ) from error
    config = with_rope_theta(preparer.tokenizer.config)
    model = load_embedding_model(preparer.folder, config=config, trust_remote_code=False)
    if config["model_type"] == "gemma3_text":
        restore_windows(model, config)
    for_this_device(model, preparer.options)
    pad = preparer.tokenizer.pad
    if pooling is not None:
        model.pooling_config = pooling.config

    def forward(batch: Sequence[TokenRow]) -> Floats:
        tokens, mask, segments = padded(batch, pad)
        extra = {} if segments is None else {"token_type_ids": segments}
        out = model(tokens, attention_mask=mask, **extra)
        if pooling is not None and not pooling.normalize and "dense" not in model:
            return floats(pool_by_config(out.last_hidden_state, mask, pooling.config))
        return floats(out.text_embeds)  # mlx-vlm normalises these

    return forward
