"""The engine of rerankers: a score for each pair of query and document, across requests in padded batches.

A reranker is a classifier with one label (an encoder of mlx-vlm, or a language model with a head for scores), or a
language model that was trained to answer yes or no.
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import mlx.core as mx
import numpy as np
from msgspec import Meta, Struct

from pippin.core.conversation import Image, Message, Part, Text, Video
from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Event, Ranked
from pippin.core.models import WorkerSpec
from pippin.core.published import broken, fields_in
from pippin.core.tasks import Rerank, Task
from pippin.engines.base import Job, LoadProgress, Preparer
from pippin.engines.conversations import ConversationPreparer, EncodingPreparer
from pippin.engines.embeddings import modules_in
from pippin.engines.encoding import (
    EncoderInput,
    EncodingEngine,
    EncodingJob,
    Floats,
    Forward,
    floats,
    gathered,
    padded,
)
from pippin.engines.language.model.encoders import (
    arrays_aside,
    body_of,
    hidden_states,
    is_encoder,
)
from pippin.engines.language.model.weights import Reading, refuse_unreadable
from pippin.engines.language.text.tokenizer import TooLong
from pippin.engines.messages import Frame, messages_of
from pippin.engines.refusals import refused

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


ASKED = Frame((f"{PREFIX}<Instruct>: ", "\n<Query>: ", "\n<Document>: ", SUFFIX), (0, 1, 2))
PAIR = ("query", "document")
"""sentence-transformers' roles of the messages that a reranker compares."""


class Around(Struct, frozen=True):
    """What a reranker is asked in, but for query and document: the prompt, and its instruction, if it has one."""

    frame: Frame
    instruction: tuple[str, ...]

    def sorted(self, query: str, document: str) -> list[str]:
        return self.frame.sorted(*self.instruction, query, document)


class RerankingPreparer(EncodingPreparer):
    """Tokenizes pairs of query and document and checks their lengths against the model's limit."""

    counts = " in all"

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__(spec)
        self.messages = messages_of(self.folder)
        modules = has_modules_of_its_own(self.folder, self.sentences["model_type"])
        # As sentence-transformers gives pairs to a model of its own without messages.
        compared = modules or compares(spec.info.id, self.config)
        self.is_classifier = self.messages is None and compared
        self._prompt = self.prompts.get(self.sentences["default_prompt_name"], "")
        if self.messages is None and not modules and not is_classifier(self.config):
            refuse_other_prompts(spec.info.id, self.config)
        if not self.is_classifier:
            self.see(spec)
            self._check_room()

    def _check_room(self) -> None:
        """Raises `ServerError("load_failed")` if the prompt that the model was trained with leaves no room for a
        query."""
        if self.conversations is not None:
            return
        around = self._around(None)
        frame = len(self.tokenizer.framed(around.frame.pieces, around.sorted("", ""))[0])
        if frame >= self.tokenizer.limit:
            raise ServerError(
                "load_failed",
                f"{self.info.id} writes {frame} tokens around each query, and takes {self.tokenizer.limit} in all; "
                "raise embedding_max_length.",
                "embedding_max_length",
            )

    def prepare(self, id: str, task: Task) -> Job | tuple[Event, ...]:
        assert isinstance(task, Rerank)
        if not task.query and not task.query_media:
            raise refused("query", "is empty; send the text to compare with.")
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
            raise refused("query", "is not text; this reranker reads text only.", "unsupported")
        if self.is_classifier and task.instruction is not None:
            raise ServerError(
                "unsupported",
                "This reranker compares two texts and takes no `instruction`; leave it out.",
                "instruction",
            )
        around = None if self.is_classifier else self._around(task.instruction)
        for index in range(len(task.documents)):
            yield self._sequence(around, task, index)

    def _seen(self, conversations: ConversationPreparer, task: Rerank, index: int) -> EncoderInput:
        """The pair as a question to a vision model, in the words and order of mlx-vlm's `_vl_messages`."""
        document = task.documents[index]
        query = (*task.query_media, *((Text(task.query),) if task.query else ()))
        asked: tuple[Part, ...] = (
            Text(f"<Instruct>: {task.instruction or self._prompt or SEEN_INSTRUCTION}"),
            Text("<Query>:"),
            *_media_first(query),
            Text("\n<Document>:"),
            *_media_first(document.parts),
        )
        messages = (Message("system", (Text(SYSTEM),)), Message("user", tuple(_joined(asked))))
        return conversations.sequence(messages, f"documents[{index}]")

    def _sequence(self, around: Around | None, task: Rerank, index: int) -> EncoderInput:
        document, param = task.documents[index], f"documents[{index}]"
        truncating = (task.overflow or self.options.embedding_overflow) == "truncate"
        if not all(isinstance(part, Text) for part in document.parts):
            raise refused(param, "is not text; this reranker reads text only.", "unsupported")
        text = "".join(part.text for part in document.parts if isinstance(part, Text))
        try:
            sequence, length = self._built(around, task.query, text, truncating=truncating)
        except TooLong as error:
            raise self.too_long(f"{param} and the query have {error.least} tokens or more", param) from None
        if length > self.tokenizer.limit and not truncating:
            raise self.too_long(f"{param} and the query have {length} tokens", param)
        return sequence

    def _built(
        self, around: Around | None, query: str, document: str, *, truncating: bool
    ) -> tuple[EncoderInput, int]:
        """The sequence, cut to the limit, and how many tokens it had: a pair, or a prompt with these pieces. Raises
        `TooLong`."""
        if around is None:
            sequence = self.tokenizer.encode(self._prompt + query, document, truncating=truncating)
            return sequence, len(sequence.tokens)
        # As one text: "<Query>: what" has a token " what".
        texts = around.sorted(query, document)
        tokens, length = self.tokenizer.framed(around.frame.pieces, texts, truncating=truncating)
        return EncoderInput(tokens), length

    def _around(self, instruction: str | None) -> Around:
        """What is written around query and document. Raises `ServerError` for an instruction that leaves no room for
        them, or that the folder's own template does not have."""
        asked = instruction or self._prompt
        if self.messages is None:
            return self._with_room(Around(ASKED, (asked or INSTRUCTION,)), instruction)
        if not asked:
            return Around(self.messages.frame(PAIR), ())
        try:
            return self._with_room(Around(self.messages.frame(("system", *PAIR)), (asked,)), instruction)
        except ServerError as error:
            if instruction is None or error.report.kind != "load_failed":
                raise
            text = "has no place in this reranker's chat template; leave it out."
            raise refused("instruction", text, "unsupported") from error

    def _with_room(self, around: Around, instruction: str | None) -> Around:
        """Raises `ServerError` for an instruction of a client that leaves no room for a query."""
        if instruction is not None:
            try:
                found, _ = self.tokenizer.framed(around.frame.pieces, around.sorted("", ""))
            except TooLong as error:
                raise self.too_long(f"instruction has {error.least} tokens or more", "instruction") from None
            if len(found) >= self.tokenizer.limit:
                raise self.too_long(f"instruction has {len(found)} tokens with its prompt", "instruction")
        return around


def is_classifier(config: dict[str, Any]) -> bool:
    """Whether a model's `config.json` is that of a cross-encoder."""
    return any(str(name).endswith("ForSequenceClassification") for name in config.get("architectures") or ())


def compares(name: str, config: dict[str, Any]) -> bool:
    """Whether a model is given two texts alone. Qwen3-Reranker's conversions to a classifier are asked in its prompt,
    as it is."""
    converted = config.get("model_type") == "qwen3" and "qwen3-reranker" in name.lower()
    return is_classifier(config) and not converted


def has_modules_of_its_own(folder: Path, kind: str | None) -> bool:
    """Whether a folder is a CrossEncoder that sentence-transformers wrote with its modules. Raises
    `ServerError("load_failed")` for a module that is not computed here."""
    if kind != "CrossEncoder" or not (file := folder / "modules.json").exists():
        return False
    names = [str(module.get("type")).rpartition(".")[2] for module in modules_in(file)]
    if other := [name for name in names if name not in ("Transformer", "LogitScore")]:
        raise broken(file, f"names {', '.join(other)}, which no reranker has here: choose another model")
    return True


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


open_preparer = RerankingPreparer


def open_engine(spec: WorkerSpec, preparer: Preparer, progress: LoadProgress) -> EncodingEngine:
    assert isinstance(preparer, RerankingPreparer)
    refuse_unreadable(preparer.info, preparer.folder)
    preparer.spec = spec  # which has the pool's share by now
    encodes = is_classifier(preparer.config) and is_encoder(preparer.config)
    forward = _classifier(preparer) if encodes else _language_model(preparer, progress)
    forward([EncoderInput((preparer.tokenizer.pad,))])
    return EncodingEngine(forward)


def _classifier(preparer: RerankingPreparer) -> Forward:
    model = preparer.load_encoder(classifies=True)
    pad, segmented = preparer.tokenizer.pad, getattr(model.config, "type_vocab_size", 1) > 1

    def forward(batch: Sequence[EncoderInput]) -> Floats:
        tokens, mask, segments = padded(batch, pad)
        extra = {"token_type_ids": segments} if segmented else {}
        return floats(model(tokens, attention_mask=mask, **extra).logits)

    return forward


def _language_model(preparer: RerankingPreparer, progress: LoadProgress) -> Forward:
    """The score of a classifier's head, or of Qwen3-Reranker and its like: the logit of `yes` as the next token less
    that of `no`; both for the last token. A model that sees computes one pair at a time."""
    config, name = preparer.config, preparer.info.id
    aside = arrays_aside(preparer.folder, config) if is_classifier(config) else None
    reading = Reading() if aside is None else body_of(preparer.folder, config)
    tokens: mx.array | tuple[int, int] = yes_and_no(preparer) if aside is None else _head_of(name, aside)
    model, seen = preparer.load_language_model(progress, reading)
    if seen is not None:
        assert isinstance(tokens, tuple)
        yes, no = tokens

        def look(batch: Sequence[EncoderInput]) -> Floats:
            found = (seen.last_logits(sequence) for sequence in batch)
            return floats(mx.stack([logits[yes] - logits[no] for logits in found])[:, None])

        return look
    pad, states_of = preparer.tokenizer.pad, hidden_states(name, model, config)

    def score(last: mx.array) -> mx.array:
        if isinstance(tokens, mx.array):
            return last.astype(mx.float32) @ tokens.T
        yes, no = tokens
        logits: mx.array = (
            model.lm_head(last) if "lm_head" in model else model.model.embed_tokens.as_linear(last)
        )
        return (logits[:, yes] - logits[:, no])[:, None]

    def forward(batch: Sequence[EncoderInput]) -> Floats:
        ids, mask, _ = padded(batch, pad)
        lengths = mask.sum(axis=1)
        return floats(score(states_of(ids, lengths)[mx.arange(len(batch)), lengths - 1]))

    return forward


def _head_of(name: str, aside: dict[str, mx.array]) -> mx.array:
    """The head of a language model that scores, [1, hidden]. Raises `ServerError("load_failed")`."""
    head = aside.get("score.weight")
    if head is None or head.shape[0] != 1:
        rows = (
            f"it has {head.shape[0]} labels, not one"
            if head is not None
            else "its head for scores is not known"
        )
        way = "`pippin search reranker` finds others."
        raise ServerError("load_failed", f"{name} can't be loaded as a reranker: {rows}. {way}")
    return head


def yes_and_no(preparer: RerankingPreparer) -> tuple[int, int]:
    """The ids of the two answers, which sentence-transformers' files may name. Raises `ServerError("load_failed")`."""
    file, kind = "1_LogitScore/config.json", Annotated[int, Meta(ge=0, lt=preparer.tokenizer.vocabulary)]
    scored = fields_in(preparer.folder, file, true_token_id=kind, false_token_id=kind)
    yes, no = scored.values()
    if yes is no is None:
        yes, no = map(preparer.tokenizer.id, ("yes", "no"))
    if yes is None or no is None:
        raise ServerError(
            "load_failed",
            f"{preparer.info.id} has no tokens `yes` and `no`, or its {file} names only one of `true_token_id` and "
            "`false_token_id`: it is no reranker that Pippin knows.",
        )
    return yes, no
