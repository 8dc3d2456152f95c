"""The engine of embedding models and rerankers: padded batches of token sequences, across requests."""

import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt
from mlx.utils import tree_flatten
from msgspec import Struct
from tokenizers import Tokenizer, normalizers

from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Event
from pippin.core.models import EngineStats, WorkerSpec
from pippin.core.published import broken, fields_in, find_json, name_of, object_in, sentence_file, table
from pippin.engines.base import CachelessEngine, Emission, Job
from pippin.engines.device import evaluate_in_pieces, loading
from pippin.engines.language.text.stored_words import without_dropout
from pippin.engines.language.text.tokenizer import TooLong, beginning
from pippin.engines.language.upstream.library import dequantize_model
from pippin.engines.language.vision.media import PromptMedia
from pippin.engines.refusals import refused

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]

BATCH_TOKENS = 4096
"""The most tokens, padding included, in one forward pass: enough to fill the device, short enough to cancel soon."""

LENGTH_SPREAD = 1.25
"""The longest sequence of a batch as a multiple of the shortest, at most; this bounds the padding."""


MOST_TOKENS = 4_000_000
"""The most tokens in one request, which take about 150 MB.

A small body can expand to billions, if each of its many texts gets a long instruction or query.
"""


class EncoderInput(Struct, frozen=True):
    """One sequence of a batch: its token ids, the segment ids of a pair of texts (BERT's `token_type_ids`), and the
    media that some of its tokens stand for."""

    tokens: tuple[int, ...]
    segments: tuple[int, ...] | None = None
    media: PromptMedia | None = None


Forward = Callable[[Sequence[EncoderInput]], Floats]
"""A forward pass over a batch of sequences; its output is [batch, n]."""


class EncodingJob(Struct, frozen=True):
    """A prepared request: its sequences, and the function that makes its answer from their outputs [sequences, n]."""

    id: str
    accepted: Accepted
    sequences: tuple[EncoderInput, ...]
    answer: Callable[[Floats], Event]


def gathered(sequences: Iterable[EncoderInput], param: str) -> tuple[EncoderInput, ...]:
    """All sequences of a request. Raises `ServerError` naming `param` where they have too many tokens together."""
    found: list[EncoderInput] = []
    tokens = 0
    for sequence in sequences:
        tokens += len(sequence.tokens)
        if tokens > MOST_TOKENS:
            many = f"has more than {MOST_TOKENS} tokens in all, with what stands before each; send fewer at once."
            raise refused(param, many)
        found.append(sequence)
    return tuple(found)


def padded(batch: Sequence[EncoderInput], pad: int) -> tuple[mx.array, mx.array, mx.array]:
    """Token ids, attention mask and segment ids of a batch, each [batch, longest], padded on the right."""
    longest = max(len(each.tokens) for each in batch)
    tokens = np.full((len(batch), longest), pad, dtype=np.int32)
    mask = np.zeros((len(batch), longest), dtype=np.int32)
    segments = np.zeros((len(batch), longest), dtype=np.int32)
    for index, each in enumerate(batch):
        tokens[index, : len(each.tokens)] = each.tokens
        mask[index, : len(each.tokens)] = 1
        if each.segments is not None:
            segments[index, : len(each.tokens)] = each.segments
    return mx.array(tokens), mx.array(mask), mx.array(segments)


class EncodingEngine(CachelessEngine):
    """An engine around a function that maps a batch of sequences to an array of float32 [batch, n]."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        # By request: the job, and the outputs so far by the index of their sequence.
        self._running: dict[str, tuple[EncodingJob, dict[int, Floats]]] = {}
        self._queue: deque[tuple[str, int]] = deque()  # request id and index of its sequence, oldest first
        self._steps = 0
        self._tokens = 0
        self._seconds = 0.0

    def submit(self, job: Job) -> None:
        assert isinstance(job, EncodingJob)
        self._running[job.id] = job, {}
        self._queue.extend((job.id, index) for index in range(len(job.sequences)))

    def cancel(self, id: str) -> None:
        self._running.pop(id, None)

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def step(self) -> list[Emission]:
        """Run one forward pass over the oldest waiting sequence and those that fit beside it."""
        members = self._next_batch()
        if not members:
            return []
        start = time.perf_counter()
        batch = [self._running[request][0].sequences[index] for request, index in members]
        outputs = self._forward(batch)
        self._steps += 1
        self._tokens += sum(len(sequence.tokens) for sequence in batch)
        self._seconds += time.perf_counter() - start
        emissions: list[Emission] = []
        for (request, index), output in zip(members, outputs, strict=True):
            job, known = self._running[request]
            known[index] = output
            if len(known) == len(job.sequences):
                del self._running[request]
                emissions.append((request, job.answer(np.stack([known[each] for each in range(len(known))]))))
        return emissions

    def _length(self, member: tuple[str, int]) -> int:
        return len(self._running[member[0]][0].sequences[member[1]].tokens)

    def _next_batch(self) -> list[tuple[str, int]]:
        """The oldest waiting sequence, and others of about its length while the padded batch stays within bounds."""
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
            if high > low * LENGTH_SPREAD + 8 or high * (len(members) + 1) > BATCH_TOKENS:
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


CLEANED = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
"""What BERT's classes in transformers set of tokenizer.json, by the fields of tokenizer_config.json."""

WITHOUT_WAYS = (None, "PreTrainedTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend")
"""The classes of transformers that leave tokenizer.json as it is."""


def read_backend(folder: Path) -> Tokenizer:
    """The tokenizer of a model that writes nothing: as tokenizer.json has it, with what transformers' classes set of it
    as tokenizer_config.json says, and sentence-transformers' small letters. Raises `ServerError("load_failed")`."""
    try:
        found = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # tokenizers raises no other
        message = f"tokenizer.json of the model {name_of(folder)} can't be read ({error})."
        raise ServerError("load_failed", message) from error
    without_dropout(found)
    kinds: dict[str, Any] = dict.fromkeys((*CLEANED, "add_prefix_space"), bool)
    kinds |= {"tokenizer_class": str, "added_tokens_decoder": dict[str, dict[str, str | bool]]}
    told = fields_in(folder, "tokenizer_config.json", **kinds)
    _refuse_other_words(folder, found, told["added_tokens_decoder"])
    ways = [(found.pre_tokenizer, "add_prefix_space", told["add_prefix_space"])]
    if told["tokenizer_class"] not in WITHOUT_WAYS:
        ways += [(found.normalizer, name, told[field]) for field, name in CLEANED.items()]
    for owner, name, value in ways:
        if value is not None and hasattr(owner, name):
            setattr(owner, name, value)
    if fields_in(folder, sentence_file(folder), do_lower_case=bool)["do_lower_case"]:
        steps = [normalizers.Lowercase(), *([found.normalizer] if found.normalizer is not None else [])]
        found.normalizer = normalizers.Sequence(steps)
    return found


def _refuse_other_words(folder: Path, found: Tokenizer, told: dict[str, dict[str, Any]] | None) -> None:
    """Raises `ServerError("load_failed")` for words, other than special tokens, that files beside tokenizer.json add,
    as transformers reads them. `told` are those of tokenizer_config.json."""
    known = {token.content for token in found.get_added_tokens_decoder().values()}
    words = [word.get("content") for word in (told or {}).values() if not word.get("special")]
    if told is None:
        words = [*object_in(folder / "added_tokens.json")]
    if lacking := [word for word in words if word not in known]:
        file = "added_tokens.json" if told is None else "tokenizer_config.json"
        what = f"{lacking[0]!r}, which {file} adds: save the tokenizer again with transformers"
        raise broken(folder / "tokenizer.json", f"lacks the word {what}")


class EncodingTokenizer:
    """The tokenizer of a model folder with the model's length limit in tokens. Several threads may use it at once."""

    def __init__(self, folder: Path, limit: int | None) -> None:
        if not (folder / "tokenizer.json").exists():
            raise ServerError(
                "load_failed",
                f"{name_of(folder)} has no tokenizer.json; convert its tokenizer to that format.",
            )
        self._tokenizer = read_backend(folder)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._plain = Tokenizer.from_str(self._tokenizer.to_str())
        # Special tokens that a client's text spells are encoded as text.
        self._plain.encode_special_tokens = True
        self.config = find_json(folder / "config.json") or {}
        rows = (self.config.get("text_config") or self.config).get("vocab_size")
        # A tokenizer may leave ids out, so that its number of tokens bounds none.
        ids = self._tokenizer.get_vocab(with_added_tokens=True).values() if type(rows) is not int else ()
        self.vocabulary = rows if type(rows) is int else max(ids, default=-1) + 1
        asked = {"max_seq_length": int, "processing_kwargs": dict[str, dict[str, Any] | None]}
        sentences = fields_in(folder, sentence_file(folder), **asked)
        words = dict.fromkeys(("bos_token", "eos_token", "pad_token"), str | dict[str, Any])
        adds = dict.fromkeys(("add_bos_token", "add_eos_token"), bool)
        more = {"model_max_length": int | float, "truncation_side": Literal["left", "right"]}
        settings = fields_in(folder, "tokenizer_config.json", **more, **words, **adds)
        self._side = settings["truncation_side"] or "right"
        own_limit = self._own_limit(folder, sentences, settings)
        self.limit = limit or own_limit
        self.pad = self._special(settings, "pad_token") or 0
        # Whatever tokenizer.json puts around a text.
        self._start, self._end = (
            self._special(settings, f"{name}_token") if settings.get(f"add_{name}_token") is True else None
            for name in ("bos", "eos")
        )

    def _special(self, settings: dict[str, Any], name: str) -> int | None:
        """The id of a token that tokenizer_config.json names, as a text or as an object."""
        text = table(settings.get(name)).get("content", settings.get(name))
        return self.id(text) if isinstance(text, str) else None

    def _own_limit(self, folder: Path, sentences: dict[str, Any], settings: dict[str, Any]) -> int:
        """The smallest limit that the folder's files name, or 512. The tokenizer's does not count where
        sentence-transformers' files have one. Raises `ServerError("load_failed")`."""
        text = self.config.get("text_config") or self.config
        positions = text.get("max_position_embeddings", text.get("n_positions"))
        if positions and text.get("model_type") in ("camembert", "mpnet", "roberta", "xlm-roberta"):
            # RoBERTa counts positions from the one after the padding token's id.
            if type(pad := text.get("pad_token_id", 1)) is not int:
                raise broken(folder / "config.json", f"has pad_token_id {pad!r}, from which positions count")
            positions -= pad + 1
        asked = table(table(sentences.get("processing_kwargs")).get("text")).get("max_length")
        own = sentences.get("max_seq_length") or asked or settings.get("model_max_length")
        limits = [own, positions]
        return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=512)

    def id(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)

    def encode(self, text: str, pair: str | None = None, *, truncating: bool = False) -> EncoderInput:
        """Encode one text, or a pair to compare, with the special tokens that the model expects around them.

        With `truncating`, they are cut to the limit; otherwise text far beyond it raises `TooLong`.
        """
        if not truncating or self._side == "right":
            text = self._bounded(text, truncating=truncating)
            pair = None if pair is None else self._bounded(pair, truncating=truncating)
        encoding = self._plain.encode(text, pair)
        if truncating and len(encoding.ids) > self._room:
            encoding = self._cutting.encode(text, pair)
        if pair is not None:
            return EncoderInput(self._embedded(encoding.ids), tuple(encoding.type_ids))
        starts = [self._start] if self._start is not None and encoding.ids[:1] != [self._start] else []
        ends = [self._end] if self._end is not None and encoding.ids[-1:] != [self._end] else []
        return EncoderInput(self._embedded([*starts, *encoding.ids, *ends]))

    @property
    def _room(self) -> int:
        return self.limit - sum(each is not None for each in (self._start, self._end))

    @cached_property
    def _cutting(self) -> Tokenizer:
        """Cuts texts to the limit and a pair's longer one first, as transformers does, and keeps what stands around."""
        found = Tokenizer.from_str(self._tokenizer.to_str())
        found.encode_special_tokens = True
        found.enable_truncation(self._room, direction=self._side)
        return found

    def template(self, text: str) -> tuple[int, ...]:
        """Encode a piece of Pippin's own prompt, in which special tokens count as such."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def plain(self, text: str, *, truncating: bool = False) -> tuple[int, ...]:
        """Encode a client's text, in which special tokens are read as text; `truncating` as in `encode`."""
        text = self._bounded(text, truncating=truncating)
        return self._embedded(self._plain.encode(text, add_special_tokens=False).ids)

    def framed(
        self, around: Sequence[str], texts: Sequence[str], *, truncating: bool = False
    ) -> tuple[tuple[int, ...], int]:
        """The tokens of a client's `texts` with pieces of a prompt before, between and behind them, in which alone
        special tokens count as such, and how many they were. With `truncating`, as many as fit in front of the last
        piece are kept."""
        runs = [""]
        for index, piece in enumerate(around):
            lead, *rest = self._specials.split(piece) if self._specials else [piece]
            runs[-1] += lead
            runs += rest
            if index < len(texts):
                runs[-1] += self._bounded(texts[index], truncating=truncating)
        tokens: list[int] = []
        for index, run in enumerate(runs):
            # Special tokens stand at odd places, as the pattern's group has them there.
            tokens += (
                self.template(run) if index % 2 else self._plain.encode(run, add_special_tokens=False).ids
            )
        found = self._embedded(tokens)
        if truncating and len(found) > self.limit:
            end = len(self.template(around[-1]))
            found = (*found[: max(self.limit - end, 0)], *found[len(found) - end :])
        return found, len(tokens)

    @cached_property
    def _specials(self) -> re.Pattern[str] | None:
        known = self._tokenizer.get_added_tokens_decoder().values()
        words = sorted((re.escape(each.content) for each in known if each.special), key=len, reverse=True)
        return re.compile(f"({'|'.join(words)})") if words else None

    def _embedded(self, tokens: list[int]) -> tuple[int, ...]:
        """The tokens of a client's text. Raises `ServerError` for one that the model has no embedding for."""
        if tokens and (largest := max(tokens)) >= self.vocabulary:
            raise ServerError(
                "invalid_request",
                f"The text spells {self._tokenizer.id_to_token(largest)!r}, token {largest} of the tokenizer; this "
                f"model's ids run from 0 to {self.vocabulary - 1}. Leave it out.",
            )
        return tuple(tokens)

    def _bounded(self, text: str, *, truncating: bool) -> str:
        kept = beginning(self._plain, text, self.limit)
        if not truncating and len(kept) < len(text):
            raise TooLong(self.limit + 1)
        return kept

    def checked(self, tokens: tuple[int, ...], param: str) -> EncoderInput:
        """Take token ids from a client. Raises `ServerError` naming `param` for an id that the model does not have."""
        for token in tokens:
            if not 0 <= token < self.vocabulary:
                known = f"this model's ids run from 0 to {self.vocabulary - 1}."
                raise refused(param, f"has the token id {token}; {known}")
        return EncoderInput(tokens)


def cast_weights(model: nn.Module, spec: WorkerSpec) -> None:
    """Configure MLX, cast the weights to the dtype that `device.py` decides on, and load them into memory."""
    with loading(spec) as plan, _taken_apart(model) as parts:
        for part in parts:
            if plan.dequantize:
                dequantize_model(part)
            if plan.run_type is not None:
                part.set_dtype(getattr(mx, plan.run_type))
            for _ in evaluate_in_pieces(array for _, array in tree_flatten(part.parameters())):
                pass


@contextmanager
def _taken_apart(model: nn.Module) -> Iterator[list[nn.Module]]:
    """The model without its compiled parts, followed by those parts.

    mlx-audio keeps a compiled wrapper in place of a decoder. The wrapper claims the decoder's class and forwards all
    calls to it, but MLX can't traverse it as a module.
    """
    taken = [
        (owner, name, part)
        for _, owner in model.named_modules()
        if issubclass(type(owner), nn.Module)
        for name, part in owner.items()
        if isinstance(part, nn.Module) and not issubclass(type(part), nn.Module)
    ]
    with ExitStack() as restored:
        for owner, name, part in taken:
            del owner[name]
            restored.callback(owner.__setitem__, name, part)
        yield [model, *(part for _, _, part in taken)]


def unit(vectors: Floats) -> Floats:
    """The vectors [n, dimensions], each of the length 1."""
    lengths: Floats = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))
    return vectors / lengths


def floats(array: mx.array) -> Floats:
    """The array as a numpy array, in float32."""
    return np.array(array.astype(mx.float32), copy=False)
