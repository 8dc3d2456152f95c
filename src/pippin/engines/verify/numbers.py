"""What the model computes: alone, in a batch, from the prefix cache, with predictions, and beside the plain library."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from pippin.config.options.model import ModelOptions
from pippin.core.events import Token
from pippin.core.requests import GenerationRequest
from pippin.core.verification import Finding
from pippin.engines.device import decide, find_facts
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.verify.asking import Served
from pippin.engines.verify.findings import finding
from pippin.engines.verify.reading import layers, rivals
from pippin.engines.verify.reading.perplexity import POOR, Surprise, in_float32, predict, sample, sample_rows

Answer = tuple[Token, ...]

PROMPTS: Final = 4
PROMPT_TOKENS: Final = 160
ANSWER_TOKENS: Final = 24
TIE: Final = 0.1
"""Log probabilities that are as near as this may change places by rounding."""
MUCH: Final = 0.3
"""A difference of log probabilities that no rounding to 16 bits makes."""
OF_LIBRARY: Final = 0.1
"""The mean difference from the library, in float32, that is more than 16 bits or few bits of a cache make."""
WORSE: Final = 1.25  # ratio of perplexities
FAR: Final = 0.1  # divergence, in nats, of a quantisation that costs much: about that of three bits


def check(
    served: Served, folder: Path, against: Path | None, *, adapted: bool = False
) -> tuple[list[Finding], dict[str, Any]]:
    """Compare the served model with itself, with mlx-lm, and with another folder's model. `adapted`: it has an adapter,
    which is not given to mlx-lm.

    Returns what was found, and the figures for readers. Raises `ServerError`.
    """
    prompts = _prompts(served.preparer.tokenizer)
    alone = [_answers(served, [prompt], "alone")[0] for prompt in prompts]
    ways = {
        "in a batch": _answers(served, prompts, "batch"),
        "from the cache": [_answers(served, [prompt], "alone")[0] for prompt in prompts],
        "with predictions": [
            _answers(served, [prompt], "drafted", served.preparer.tokenizer.decode([each.id for each in answer]))[0]
            for prompt, answer in zip(prompts, alone, strict=True)
        ],
    }  # fmt: skip
    found: list[Finding] = []
    figures: dict[str, Any] = {}
    for way, answers in ways.items():
        gap = figures[f"largest difference {way}"] = max(map(difference, alone, answers))
        if gap > MUCH:
            found.append(finding("ways-differ", way=way, gap=gap))
    gap = figures["mean difference from mlx-lm in float32"] = _beside_library(folder, prompts, alone)
    if not gap < OF_LIBRARY:
        found.append(finding("library-differs", "note" if adapted else None, gap=gap))
    found += _perplexity(folder, against, served.preparer.tokenizer, figures)
    return found, figures


def difference(one: Answer, other: Answer) -> float:
    """The largest difference of log probabilities up to the first token that differs. Tokens that differ count as a tie
    where both are as probable."""
    worst = 0.0
    for left, right in zip(one, other, strict=False):
        gap = abs((left.logprob or 0.0) - (right.logprob or 0.0))
        if left.id != right.id:
            return worst if gap < TIE else math.inf
        worst = max(worst, gap)
    return worst if len(one) == len(other) else math.inf


def _prompts(tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    ids = tokenizer.encode(sample(), add_special_tokens=True)
    length = min(PROMPT_TOKENS, len(ids) // PROMPTS)
    return [tuple(ids[start : start + length]) for start in range(0, PROMPTS * length, length)]


def _answers(
    served: Served, prompts: list[tuple[int, ...]], salt: str, prediction: str | None = None
) -> list[Answer]:
    """Greedy answers of a fixed length. Requests with the same salt share prefixes."""
    asked = [
        GenerationRequest(
            model="verify",
            prompt=prompt,
            max_tokens=ANSWER_TOKENS,
            logprobs=0,
            ignore_eos=True,
            cache_salt=salt,
            prediction=prediction,
        )
        for prompt in prompts
    ]
    answers = (completion.choices[0].parts for completion in served.ask(asked))
    return [tuple(token for part in parts for token in part.tokens) for parts in answers]


def _beside_library(folder: Path, prompts: list[tuple[int, ...]], answers: list[Answer]) -> float:
    """The mean difference between the answers' log probabilities and the library's for the same tokens, in float32."""
    length = max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True))
    rows = np.zeros((len(prompts), length), np.int32)
    for row, prompt, answer in zip(rows, prompts, answers, strict=True):
        row[: len(prompt) + len(answer)] = [*prompt, *(token.id for token in answer)]
    predicted = predict(folder, mx.array(rows), in_float32())
    chosen = np.array(mx.take_along_axis(predicted, mx.array(rows)[:, 1:, None], axis=-1).squeeze(-1))
    del predicted
    mx.clear_cache()
    gaps = [
        abs(float(row[len(prompt) + place - 1]) - (token.logprob or 0.0))
        for row, prompt, answer in zip(chosen, prompts, answers, strict=True)
        for place, token in enumerate(answer)
    ]
    return float(np.mean(gaps))


def _perplexity(
    folder: Path, against: Path | None, tokenizer: Tokenizer, figures: dict[str, Any]
) -> Iterator[Finding]:
    rows = sample_rows(tokenizer)
    own = _predictions(folder, rows)
    surprise = Surprise.of(mx.array(own), rows, tokenizer)
    value, bits = surprise.perplexity, surprise.bits
    figures |= {"perplexity": value, "bits a byte": bits}
    if bits > POOR:
        yield finding("perplexity", value=math.inf if value is None else value, bits=bits)

    # No model of random weights reads better than by guessing.
    if surprise.each.mean() < math.log(own.shape[-1]):
        yield from _better(folder, rows[:1], tokenizer, Surprise.of(mx.array(own[:1]), rows[:1], tokenizer))
    if against is None:
        return
    other = _predictions(against, rows)
    if other.shape != own.shape:
        yield finding("vocabularies")
        return
    # Row by row: a vocabulary of 150,000 makes each row of 256 tokens 150 MB.
    gaps = [(np.exp(there) * (there - here)).sum(-1) for there, here in zip(other, own, strict=True)]
    gap, before = float(np.mean(gaps)), Surprise.of(mx.array(other), rows, tokenizer).perplexity
    figures |= {"perplexity of the other": before, "divergence from the other": gap}
    if gap > FAR or (before is not None and value is not None and value > WORSE * before):
        yield finding("other-better", other=math.inf if before is None else before, gap=gap)


def _better(folder: Path, row: mx.array, tokenizer: Tokenizer, own: Surprise) -> Iterator[Finding]:
    """What would make the model read a row better than it does."""

    def read(other: Path) -> Surprise:
        return Surprise.of(mx.array(_predictions(other, row)), row, tokenizer)

    def without(some: range, length: int | None) -> list[Surprise]:
        rows = mx.array(_predictions(folder, row[:, :length], some)[1:])
        return [Surprise.of(each[None], row[:, :length], tokenizer) for each in rows]

    settings = [*rivals.check(folder, read, own)]
    yield from settings or layers.check(without, own)


def _predictions(folder: Path, rows: mx.array, without: range = range(0)) -> NDArray[np.float32]:
    predicted = np.array(predict(folder, rows, decide(find_facts(), ModelOptions()), without))
    mx.clear_cache()
    return predicted
