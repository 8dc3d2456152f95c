"""The engine of rerankers: a score for each pair of query and document, across requests in padded batches.

A reranker is a cross-encoder of mlx-vlm with one label, or a language model that was trained to answer yes or no.
"""

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from pippin.config.errors import install_command
from pippin.config.options.model import ModelOptions
from pippin.core.conversation import Image, Message, Part, Text, Video
from pippin.core.decoding import convert
from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Event, Ranked
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.tasks import Rerank, RerankDocument, Task
from pippin.engines.base import Job, LoadProgress, Preparer
from pippin.engines.conversations import ConversationPreparer, ConversationStates
from pippin.engines.device import configure, decide, find_facts
from pippin.engines.encoding import (
    EncoderInput,
    EncodingEngine,
    EncodingJob,
    EncodingTokenizer,
    Floats,
    Forward,
    floats,
    gathered,
    load_encoder,
    padded,
)
from pippin.engines.language.configuration import spelled_out
from pippin.engines.language.kernels import ways
from pippin.engines.language.model.weights import load_weights
from pippin.engines.language.text.tokenizer import TooLong
from pippin.engines.language.vision.checkpoint import read_config, takes_media
from pippin.engines.language.vision.model import VisionModel

# The prompt that Qwen3-Reranker was trained with (its model card).
SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
PREFIX = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n"
SEEN_INSTRUCTION = "Given a search query, retrieve relevant candidates that answer the query."
"""Qwen3-VL-Reranker's, as mlx-vlm gives it; the chat template writes the rest of the prompt."""
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


class Build(Protocol):
    def __call__(self, query: str, document: str, *, truncating: bool) -> tuple[EncoderInput, int]:
        """The sequence, cut to the limit, and how many tokens it had. Raises `TooLong`."""


class RerankingPreparer:
    """Tokenizes pairs of query and document and checks their lengths against the model's limit."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.folder = Path(spec.info.path or "")
        options = convert(spec.options, ModelOptions)
        self.info: ModelInfo = spec.info
        self.tokenizer = EncodingTokenizer(self.folder, options.embedding_max_length)
        self.options = options
        self.threads = spec.threads or os.cpu_count() or 1
        self.is_classifier = is_classifier(self.tokenizer.config)
        if not self.is_classifier:
            refuse_other_prompts(spec.info.id, self.tokenizer.config)
        self.conversations: ConversationPreparer | None = None
        if not self.is_classifier and takes_media(self.tokenizer.config):
            self.conversations = ConversationPreparer(spec, self.tokenizer.limit)
            self.info = self.conversations.described(self.info)
        elif not self.is_classifier:
            self._check_room()

    def _check_room(self) -> None:
        """Raises `ServerError("load_failed")` if the prompt that the model was trained with leaves no room for a
        query."""
        frame = len(self._usual_start) + len(self._end)
        if frame >= self.tokenizer.limit:
            raise ServerError(
                "load_failed",
                f"{self.info.id} writes {frame} tokens around each query, and takes {self.tokenizer.limit} in all; "
                "raise embedding_max_length.",
                "embedding_max_length",
            )

    def prepare(self, id: str, task: Task) -> Job | tuple[Event, ...]:
        if not isinstance(task, Rerank):
            raise ServerError("invalid_request", f"{self.info.id} is a reranker; it only scores.", "model")
        if not task.query and not task.query_media:
            raise ServerError("invalid_request", "query is empty; send the text to compare with.", "query")
        if not task.documents:
            raise ServerError("invalid_request", "documents is empty; send at least one.", "documents")
        sequences = gathered(self._sequences(task), "documents")
        tokens = sum(len(sequence.tokens) for sequence in sequences)

        def answer(logits: Floats) -> Event:
            scores = 1 / (1 + np.exp(-logits[:, 0].astype(np.float64)))
            return Ranked(tuple(float(score) for score in scores), tokens)

        return EncodingJob(id, Accepted(tokens), sequences, answer)

    def _sequences(self, task: Rerank) -> Iterator[EncoderInput]:
        if self.conversations is not None:
            for index in range(len(task.documents)):
                yield self._seen(self.conversations, task, index)
            return
        if task.query_media:
            raise ServerError("unsupported", "query is not text; this reranker reads text only.", "query")
        if self.is_classifier and task.instruction is not None:
            raise ServerError(
                "unsupported",
                "This reranker compares two texts and takes no `instruction`; leave it out.",
                "instruction",
            )
        build: Build = (
            self._pair if self.is_classifier else partial(self._question, self._start(task.instruction))
        )
        for index in range(len(task.documents)):
            yield self._sequence(build, task, index)

    def _seen(self, conversations: ConversationPreparer, task: Rerank, index: int) -> EncoderInput:
        """The pair as a question to a vision model, in the words and order of mlx-vlm's `_vl_messages`."""
        document = task.documents[index]
        query = (*task.query_media, *((Text(task.query),) if task.query else ()))
        asked: tuple[Part, ...] = (
            Text(f"<Instruct>: {task.instruction or SEEN_INSTRUCTION}"),
            Text("<Query>:"),
            *_media_first(query),
            Text("\n<Document>:"),
            *_media_first(document.parts),
        )
        messages = (Message("system", (Text(SYSTEM),)), Message("user", tuple(_joined(asked))))
        return conversations.sequence(messages, f"documents[{index}]")

    def _sequence(self, build: Build, task: Rerank, index: int) -> EncoderInput:
        document, param = task.documents[index], f"documents[{index}]"
        truncating = (task.overflow or self.options.embedding_overflow) == "truncate"
        text = plain_text(document, param)
        try:
            sequence, length = build(task.query, text, truncating=truncating)
        except TooLong as error:
            raise self._too_long(f"{param} and the query have {error.least} tokens or more", param) from None
        if length > self.tokenizer.limit and not truncating:
            raise self._too_long(f"{param} and the query have {length} tokens", param)
        return sequence

    def _pair(self, query: str, document: str, *, truncating: bool) -> tuple[EncoderInput, int]:
        """The sequence, cut to the limit, and how many tokens it had. Raises `TooLong`."""
        sequence = self.tokenizer.encode(query, document, truncating=truncating)
        length = len(sequence.tokens)
        excess = length - self.tokenizer.limit
        if excess <= 0:
            return sequence, length
        segments = (
            None if sequence.segments is None else (*sequence.segments[: -excess - 1], sequence.segments[-1])
        )
        return EncoderInput((*sequence.tokens[: -excess - 1], sequence.tokens[-1]), segments), length

    def _question(
        self, start: tuple[int, ...], query: str, document: str, *, truncating: bool
    ) -> tuple[EncoderInput, int]:
        """The sequence, cut to the limit, and how many tokens it had. Raises `TooLong`."""
        middle = self.tokenizer.plain(f"{query}\n<Document>: {document}", truncating=truncating)
        available = self.tokenizer.limit - len(start) - len(self._end)
        length = len(start) + len(middle) + len(self._end)
        return EncoderInput((*start, *middle[:available], *self._end)), length

    def _start(self, instruction: str | None) -> tuple[int, ...]:
        """The tokens before each query. Raises `ServerError` for an instruction that leaves no room for a query."""
        if instruction is None:
            return self._usual_start
        try:
            written = self.tokenizer.plain(f"<Instruct>: {instruction}\n<Query>: ")
        except TooLong as error:
            raise self._too_long(f"instruction has {error.least} tokens or more", "instruction") from None
        start = (*self.tokenizer.template(PREFIX), *written)
        if len(start) + len(self._end) >= self.tokenizer.limit:
            raise self._too_long(f"instruction has {len(written)} tokens", "instruction")
        return start

    @cached_property
    def _usual_start(self) -> tuple[int, ...]:
        return self.tokenizer.template(f"{PREFIX}<Instruct>: {INSTRUCTION}\n<Query>: ")

    @cached_property
    def _end(self) -> tuple[int, ...]:
        return self.tokenizer.template(SUFFIX)

    def _too_long(self, found: str, param: str) -> ServerError:
        return ServerError(
            "context_length_exceeded",
            f"{found}; {self.info.id} takes {self.tokenizer.limit} in all. "
            "Send less, or `truncate`: true, or start the server with --embedding-overflow truncate.",
            param,
        )


def is_classifier(config: dict[str, Any]) -> bool:
    """Whether a model's `config.json` is that of a cross-encoder."""
    return any(str(name).endswith("ForSequenceClassification") for name in config.get("architectures") or ())


def refuse_other_prompts(name: str, config: dict[str, Any]) -> None:
    """Raises `ServerError("load_failed")` for a language model that was not trained with Qwen3-Reranker's prompt."""
    classes = config.get("architectures") or ("Qwen3",)
    is_qwen = str(config.get("model_type")).startswith("qwen3")
    if not is_qwen or not all(str(each).startswith("Qwen3") for each in classes) or "zerank" in name.lower():
        raise ServerError(
            "load_failed",
            f"{name} is no reranker whose prompt is known here. Language models that rerank are served if they are "
            "Qwen3-Reranker, Qwen3-VL-Reranker, or trained from these; all cross-encoders with one label are.",
        )


def _joined(parts: Sequence[Part]) -> Iterator[Part]:
    """The parts with adjacent texts as one, as the chat templates of these models write them."""
    for is_text, group in itertools.groupby(parts, key=lambda part: isinstance(part, Text)):
        if is_text:
            yield Text("".join(part.text for part in group if isinstance(part, Text)))
        else:
            yield from group


def _media_first(parts: Sequence[Text | Image | Video]) -> tuple[Text | Image | Video, ...]:
    """Video, then pictures, then text, as mlx-vlm orders them."""
    order: tuple[type, ...] = (Video, Image, Text)
    return tuple(sorted(parts, key=lambda part: order.index(type(part))))


def plain_text(document: RerankDocument, param: str) -> str:
    """The text of a document. Raises `ServerError` naming `param` for parts that are not text."""
    if not all(isinstance(part, Text) for part in document.parts):
        raise ServerError("unsupported", f"{param} is not text; this reranker reads text only.", param)
    return "".join(part.text for part in document.parts if isinstance(part, Text))


def open_preparer(spec: WorkerSpec) -> RerankingPreparer:
    return RerankingPreparer(spec)


def open_engine(spec: WorkerSpec, preparer: Preparer, progress: LoadProgress) -> EncodingEngine:
    assert isinstance(preparer, RerankingPreparer)
    progress(0, spec.info.size_bytes, "weights")
    forward = _classifier(preparer) if preparer.is_classifier else _language_model(preparer, progress)
    forward([EncoderInput((preparer.tokenizer.pad,))])
    progress(spec.info.size_bytes, spec.info.size_bytes, "weights")
    return EncodingEngine(forward)


def _classifier(preparer: RerankingPreparer) -> Forward:
    try:
        model = load_encoder(partial(load_classifier, preparer.folder), preparer.options, preparer.threads)
    except ImportError as error:
        raise ServerError(
            "load_failed", f"Rerankers need mlx-vlm: {install_command('embeddings')}"
        ) from error
    except ValueError as error:
        raise ServerError(
            "load_failed", f"{preparer.info.id} can't be loaded as a reranker: {error}"
        ) from error
    pad = preparer.tokenizer.pad

    def forward(batch: Sequence[EncoderInput]) -> Floats:
        tokens, mask, segments = padded(batch, pad)
        extra = {} if segments is None else {"token_type_ids": segments}
        return floats(model(tokens, attention_mask=mask, **extra).logits)

    return forward


def load_classifier(folder: Path) -> nn.Module:
    """mlx-vlm's model of a cross-encoder's folder; its weights are not read yet. Raises `ValueError` for other
    models."""
    from mlx_vlm.reranker_loader import load_sequence_classification_model

    config = spelled_out(read_config(folder))
    return load_sequence_classification_model(folder, lazy=True, config=config)


def _language_model(preparer: RerankingPreparer, progress: LoadProgress) -> Forward:
    """The score of Qwen3-Reranker and its like: the logit of `yes` as the next token less that of `no`."""
    yes, no = preparer.tokenizer.id("yes"), preparer.tokenizer.id("no")
    if yes is None or no is None:
        raise ServerError(
            "load_failed",
            f"{preparer.info.id} has no tokens `yes` and `no`; it is no reranker that Pippin knows.",
        )
    plan = decide(find_facts(), preparer.options)
    configure(plan)
    model, _ = load_weights(preparer.info, plan, progress, kernel_threads=preparer.threads)
    if preparer.conversations is not None:
        preparer.conversations.loaded(model)
        preparer.info = preparer.conversations.described(preparer.info)
    if isinstance(model, VisionModel):
        return _sees(preparer, model, yes, no)
    pad = preparer.tokenizer.pad
    head: Callable[[mx.array], Any] = (
        model.lm_head if "lm_head" in model else model.model.embed_tokens.as_linear
    )

    def forward(batch: Sequence[EncoderInput]) -> Floats:
        tokens, mask, _ = padded(batch, pad)
        lengths = mask.sum(axis=1)
        states = model.states(tokens, lengths) if ways.computes_all(model) else model.model(tokens)
        last = states[mx.arange(len(batch)), lengths - 1]
        logits = head(last)
        return floats((logits[:, yes] - logits[:, no])[:, None])

    return forward


def _sees(preparer: RerankingPreparer, model: VisionModel, yes: int, no: int) -> Forward:
    """The same score from a vision-language model, one pair at a time."""
    passes = ConversationStates(model, preparer.options)

    def forward(batch: Sequence[EncoderInput]) -> Floats:
        scores = []
        for sequence in batch:
            logits = passes.last_logits(sequence)
            scores.append(logits[yes] - logits[no])
        return floats(mx.stack(scores)[:, None])

    return forward
