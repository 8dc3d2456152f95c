"""The perplexity of a model on a small text, computed in less memory than the model takes."""

import math
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_map
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.engines.device import DevicePlan, configure, decide, find_facts
from pippin.engines.language.kv_cache.agreement import FAILURES
from pippin.engines.language.kv_cache.layout import new_prompt_cache
from pippin.engines.language.model.weights import cast_weights
from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.language.upstream.classes import Method, replace_method
from pippin.engines.language.upstream.library import load_model
from pippin.engines.language.upstream.stored import classes_in
from pippin.engines.language.vision import checkpoint
from pippin.engines.verify.findings import data

ROW: Final = 256
"""Tokens that are predicted from those before them in the same row."""
MOST_ROWS: Final = 2
POOR: Final = 1.7
"""Bits a byte of an ordinary text. SmolLM2 of 135 million parameters has 1.0; with its last norm off by one, 1.9."""


@cache
def sample() -> str:
    """The text: prose, code, data and mathematics."""
    return data("sample.txt")


CLEAR: Final = 0.15
"""How much less surprising each token is, in nats, with a setting that is the right one. SmolLM2 reads no better with
its base of 100,000 than with 10,000, by 0.9 better than with 500, and by 0.4 better than with ten million."""
ERRORS: Final = 4
"""So many standard errors is that at least."""


class Surprise(Struct, frozen=True):
    """How surprising each token but the first of rows is to a model, in nats [rows, tokens - 1]."""

    each: NDArray[np.float32]
    letters: int
    """The bytes of these tokens."""

    @classmethod
    def of(cls, predicted: mx.array, rows: mx.array, tokenizer: Tokenizer) -> "Surprise":
        """Take it of log probabilities [rows, tokens - 1, vocabulary]."""
        rows = mx.broadcast_to(rows, (len(predicted), rows.shape[1]))
        chosen = -mx.take_along_axis(predicted, rows[:, 1:, None], axis=-1)[..., 0].astype(mx.float32)
        letters = sum(len(tokenizer.raw(id_)) for row in np.array(rows) for id_ in row[1:])
        return cls(np.array(chosen), max(letters, 1))

    @property
    def perplexity(self) -> float | None:
        """None if it is no finite number."""
        mean = float(self.each.mean())
        return math.exp(mean) if math.isfinite(mean) and mean < 700 else None

    @property
    def bits(self) -> float:
        """Bits a byte; infinite where the perplexity is no number."""
        return math.inf if self.perplexity is None else float(self.each.sum()) / math.log(2) / self.letters

    def clearly_beats(self, other: "Surprise") -> bool:
        """Whether it is so much less, beyond chance, that the other model was not trained as it is computed; and as
        little as a trained model's. One of random weights never is."""
        gaps = other.each - self.each
        error = float(gaps.std()) / math.sqrt(gaps.size)
        return self.bits < POOR and float(gaps.mean()) > max(CLEAR, ERRORS * error)


def predict(folder: Path, rows: mx.array, plan: DevicePlan, without: range = range(0)) -> mx.array:
    """The library's log probabilities of what follows each token but the last of rows [rows, tokens]: an array
    [rows, tokens - 1, vocabulary]; behind them those of the first row `without` each of these layers. Raises
    `ServerError("load_failed")`, and with `without` one of `FAILURES`."""
    configure(plan)
    model = open_lazily(folder)
    cast_weights(model, plan)
    for place, layer in enumerate(model.layers):
        _use_once(layer, aside=place in without)
    logits = model(rows[:, :-1], cache=new_prompt_cache(model)).astype(mx.float32)
    predicted: mx.array = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    mx.eval(predicted)
    return predicted


def open_lazily(folder: Path) -> Any:
    """The library's model, of which no weight is read yet. Raises `ServerError("load_failed")`."""
    by_mlx_lm = partial(load_model, get_model_classes=classes_in(folder))
    load = checkpoint.load_model if checkpoint.is_vision(folder) else by_mlx_lm
    try:
        return load(folder, lazy=True)[0]
    except FAILURES as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise ServerError("load_failed", f"{folder.name} can't be loaded: {reason}") from error


def in_float32() -> DevicePlan:
    """The plan of a model that is computed exactly."""
    return replace(decide(find_facts(), ModelOptions()), run_type="float32", dequantize=True)


def sample_rows(tokenizer: Tokenizer) -> mx.array:
    """Tokens [rows, up to 257], each row beginning with what the tokenizer puts before a text."""
    text = tokenizer.encode(sample())
    with_start = tokenizer.encode("a", add_special_tokens=True)
    start = with_start[:1] if len(with_start) > 1 and with_start[0] != tokenizer.encode("a")[0] else []
    length = ROW - len(start) + 1
    rows = [start + text[at : at + length] for at in range(0, len(text) - length + 1, length)][:MOST_ROWS]
    return mx.array(rows or [start + text])


def _use_once(layer: nn.Module, *, aside: bool) -> None:
    """Make a layer compute as soon as it is called, and free its weights afterwards. `aside`: it adds a row, the first
    one as it was before."""

    def computing(compute: Method) -> Method:
        def call(self: nn.Module, *given: Any, **named: Any) -> Any:
            out = compute(self, *given, **named)
            out = mx.concatenate([out, given[0][:1]]) if aside else out
            # The state that a layer leaves in its cache refers to its weights until it is evaluated, too.
            mx.eval(out, [each.state for each in (*given, *named.values()) if hasattr(each, "state")])
            self.update(tree_map(lambda _: mx.array([]), self.parameters()))
            mx.clear_cache()
            return out

        return call

    # Models keep their layers in lists, slices and properties of their own; the object stays the same in all of them.
    replace_method(layer, "__call__", computing, mark="kept")
