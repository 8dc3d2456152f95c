"""Padded batches of token sequences through an encoder, across requests: what embeddings and reranking share."""

import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt
from mlx_lm.utils import dequantize_model
from tokenizers import Tokenizer

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Event
from pippin.core.models import EngineStats
from pippin.engines.base import Emission, Forgetful, Job
from pippin.engines.device import RunType, configure, decide, find_facts

Floats = npt.NDArray[np.float32]

RUN_TYPES: dict[RunType, mx.Dtype] = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}

BATCH_TOKENS = 4096
"""Most tokens, padding included, in one forward pass: enough to fill the device, short enough to cancel soon."""

LENGTH_SPREAD = 1.25
"""How much longer than the shortest sequence of a batch the longest may be: bounds what padding wastes."""


@dataclass(frozen=True)
class TokenRow:
    """One row of a batch: token ids, and where the encoder tells two texts apart, their segment ids."""

    tokens: tuple[int, ...]
    segments: tuple[int, ...] | None = None


@dataclass(frozen=True)
class EncodingJob:
    """A request's sequences, and how their rows become its answer."""

    id: str
    accepted: Accepted
    sequences: tuple[TokenRow, ...]
    answer: Callable[[Floats], Event]


@dataclass
class _Running:
    job: EncodingJob
    rows: list[Floats | None]
    left: int = field(default=0)


def padded(batch: Sequence[TokenRow], pad: int) -> tuple[mx.array, mx.array, mx.array | None]:
    """Token ids, attention mask and segment ids, each [rows, longest], padded on the right."""
    longest = max(len(row.tokens) for row in batch)
    tokens = np.full((len(batch), longest), pad, dtype=np.int32)
    mask = np.zeros((len(batch), longest), dtype=np.int32)
    segments = np.zeros((len(batch), longest), dtype=np.int32)
    for number, row in enumerate(batch):
        tokens[number, : len(row.tokens)] = row.tokens
        mask[number, : len(row.tokens)] = 1
        if row.segments is not None:
            segments[number, : len(row.tokens)] = row.segments
    has_segments = any(row.segments is not None for row in batch)
    return mx.array(tokens), mx.array(mask), mx.array(segments) if has_segments else None


class EncodingEngine(Forgetful):
    """The five verbs over a function that maps a batch of sequences to one row of floats each."""

    def __init__(
        self, forward: Callable[[Sequence[TokenRow]], Floats], *, batch_tokens: int = BATCH_TOKENS
    ) -> None:
        self._forward = forward
        self._batch_tokens = batch_tokens
        self._running: dict[str, _Running] = {}
        self._queue: deque[tuple[str, int]] = deque()  # request id and row number, in order of arrival
        self._steps = 0
        self._tokens = 0
        self._seconds = 0.0

    def submit(self, job: Job) -> None:
        assert isinstance(job, EncodingJob)
        self._running[job.id] = _Running(job, [None] * len(job.sequences), len(job.sequences))
        self._queue.extend((job.id, row) for row in range(len(job.sequences)))

    def cancel(self, id: str) -> None:
        self._running.pop(id, None)

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def step(self) -> list[Emission]:
        """One forward pass over the oldest row and whatever fits beside it."""
        members = self._next_batch()
        if not members:
            return []
        start = time.perf_counter()
        batch = [self._running[request].job.sequences[row] for request, row in members]
        rows = self._forward(batch)
        self._steps += 1
        self._tokens += sum(len(sequence.tokens) for sequence in batch)
        self._seconds += time.perf_counter() - start
        emissions: list[Emission] = []
        for (request, row), values in zip(members, rows, strict=True):
            running = self._running[request]
            running.rows[row] = values
            running.left -= 1
            if running.left == 0:
                del self._running[request]
                whole = np.stack([values for values in running.rows if values is not None])
                emissions.append((request, running.job.answer(whole)))
        return emissions

    def _length(self, member: tuple[str, int]) -> int:
        return len(self._running[member[0]].job.sequences[member[1]].tokens)

    def _next_batch(self) -> list[tuple[str, int]]:
        """The oldest waiting row leads; rows of like length join it while the padded batch stays in bounds."""
        waiting = [member for member in self._queue if member[0] in self._running]
        if not waiting:
            self._queue.clear()
            return []
        lead = self._length(waiting[0])
        near = sorted(waiting[1:], key=lambda member: abs(self._length(member) - lead))
        members, shortest, longest = [waiting[0]], lead, lead
        for member in near:
            length = self._length(member)
            low, high = min(shortest, length), max(longest, length)
            if high > low * LENGTH_SPREAD + 8 or high * (len(members) + 1) > self._batch_tokens:
                break
            members.append(member)
            shortest, longest = low, high
        taken = set(members)
        self._queue = deque(member for member in waiting if member not in taken)
        return members

    def close(self) -> None:
        self._running.clear()
        self._queue.clear()

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self._running),
            waiting=len(self._queue),
            steps=self._steps,
            prompt_tokens=self._tokens,
            prompt_tps=self._tokens / self._seconds if self._seconds else 0.0,
            active_bytes=mx.get_active_memory(),
            peak_bytes=mx.get_peak_memory(),
        )


class EncodingTokenizer:
    """The tokenizer of an encoder folder, with its length limit. Safe to use from several threads."""

    def __init__(self, folder: Path, limit: int | None) -> None:
        path = folder / "tokenizer.json"
        if not path.exists():
            raise ServerError(
                "load_failed", f"{folder.name} has no tokenizer.json; convert its tokenizer to that format."
            )
        self._tokenizer = Tokenizer.from_file(str(path))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._plain = Tokenizer.from_str(self._tokenizer.to_str())
        self._plain.encode_special_tokens = True  # markers in a text are text
        self.config = read_json(folder / "config.json")
        self.vocabulary = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self.limit = limit or self._own_limit(folder)
        settings = read_json(folder / "tokenizer_config.json")
        pad = settings.get("pad_token")
        pad = pad.get("content") if isinstance(pad, dict) else pad
        self.pad = (self._tokenizer.token_to_id(pad) if isinstance(pad, str) else None) or 0

    def _own_limit(self, folder: Path) -> int:
        """The shortest of the limits that the folder's files name (`max_seq_length` is sentence-transformers')."""
        text = self.config.get("text_config") or self.config
        positions = text.get("max_position_embeddings")
        if positions and text.get("model_type") in ("roberta", "xlm-roberta"):
            positions -= text.get("pad_token_id", 1) + 1  # positions count from there
        limits = [
            read_json(folder / "sentence_bert_config.json").get("max_seq_length"),
            positions,
        ]
        return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=512)

    def id(self, token: str) -> int | None:
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def encode(self, text: str, pair: str | None = None) -> TokenRow:
        """One text, or two to compare, with the special tokens that the model expects around them."""
        encoding = self._plain.encode(text, pair)
        segments = tuple(encoding.type_ids) if pair is not None else None
        return TokenRow(tuple(encoding.ids), segments)

    def template(self, text: str) -> tuple[int, ...]:
        """A piece of our own prompt, in which markers are markers."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def plain(self, text: str) -> tuple[int, ...]:
        """A client's text, in which markers are text."""
        return tuple(self._plain.encode(text, add_special_tokens=False).ids)

    def checked(self, tokens: tuple[int, ...], param: str) -> TokenRow:
        """Token ids from a client. Raises `ServerError` where one is no id of this model."""
        for token in tokens:
            if not 0 <= token < self.vocabulary:
                raise ServerError(
                    "invalid_request",
                    f"{param} has the token id {token}; this model's ids run from 0 to {self.vocabulary - 1}.",
                    param,
                )
        return TokenRow(tokens)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a model folder; empty where there is no such file."""
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ServerError(
            "load_failed", f"{path.name} of {path.parent.name} can't be read: {error}"
        ) from error
    return found if isinstance(found, dict) else {}


def for_this_device(model: nn.Module, options: ModelOptions) -> None:
    """Bring weights into the type that this machine runs fast, as `device.py` decides, and into memory."""
    plan = decide(find_facts(), options)
    configure(plan)
    if plan.dequantize:
        dequantize_model(model)
    if plan.run_type is not None:
        model.set_dtype(RUN_TYPES[plan.run_type])
    mx.eval(model.parameters())


def floats(array: mx.array) -> Floats:
    return np.array(array.astype(mx.float32), copy=False)
