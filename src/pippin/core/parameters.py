"""Every sampling parameter, once: its name, type, range and neutral value, and the limits of stop strings and biases.

The request bodies of the dialects, the operator's options, the worker's check of a request, the sampler and the table
in `docs/sampling.md` all take their numbers from here. Values that other servers give a special meaning (-1 for "all",
0 for "off") belong to the wire: `api/dialects/shared/engine_fields.py` translates them.
"""

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from pippin.core.decoding import from_json


class Parameter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number with which a request controls how tokens are chosen: a row of `parameters.json`."""

    name: str
    """Field of `Sampling`, in `core/requests.py`."""
    type: Literal["float", "int"] = "float"
    low: int | float
    high: int | float
    above_low: bool = False
    """Whether `low` itself is out of range."""
    neutral: int | float | None
    """The value at which the parameter does nothing; None where only leaving it unset does that."""
    default: int | float | None = None
    """The value of an unset parameter where it differs from the neutral one, such as the strength of an active
    filter."""
    wire: tuple[int | float, int | float] | None = None
    """The range in request bodies where it differs: the APIs allow less, or let -1 or 0 stand for "off"."""
    field: str = ""
    """Name in bodies and options where it differs from `name`."""
    help: str
    wire_help: str = ""
    """Added to `help` for clients: the meaning of values that only `wire` includes."""

    @property
    def public_name(self) -> str:
        """What clients and operators call the parameter."""
        return self.field or self.name

    @property
    def unset(self) -> float:
        """The value that the sampler uses for an unset parameter."""
        value = self.neutral if self.default is None else self.default
        assert value is not None, f"{self.name} has no value where it is unset"
        return value

    def of(self, requests: Sequence[Any]) -> list[float]:
        """The value for each of these `Sampling`s; the value when unset, if one does not name it."""
        given = [getattr(sampling, self.name) for sampling in requests]
        return [self.unset if value is None else value for value in given]

    @property
    def bounds(self) -> dict[str, Any]:
        """The range as `Meta` takes it, which msgspec checks and OpenAPI shows."""
        return self._bounds(self.low, self.high, above=self.above_low)

    @property
    def wire_meta(self) -> Meta:
        """The range that clients may send, and the help for them."""
        told = f"{self.help} {self.wire_help}".strip()
        low, high = self.wire or (self.low, self.high)
        bounds = self._bounds(low, high, above=self.above_low and self.wire is None)
        return Meta(**bounds, description=told)

    @property
    def range(self) -> str:
        """The range in words, as in "above 0 to 1"."""
        return f"{'above' if self.above_low else 'from'} {_shown(self.low)} to {_shown(self.high)}"

    def holds(self, value: Any) -> bool:
        """Whether `value` is a number within the range."""
        if isinstance(value, bool) or not isinstance(value, int if self.type == "int" else (int, float)):
            return False
        return (self.low < value if self.above_low else self.low <= value) and value <= self.high

    @property
    def in_checkpoints(self) -> Any:
        """The type of the value in a checkpoint, which may also be what stands for "off" in clients' bodies."""
        low = min(self.low, self.wire[0]) if self.wire else self.low
        bounds = Meta(**self._bounds(low, self.high, above=False))
        return Annotated[int if self.type == "int" else float, bounds]

    def acts(self, value: float | None) -> bool:
        """Whether a request with this value chooses tokens differently from one without it."""
        return value is not None and value != self.neutral

    def _bounds(self, low: float, high: float, *, above: bool) -> dict[str, Any]:
        if self.type == "int":  # msgspec wants integer bounds for integers
            low, high = int(low), int(high)
        return {"gt" if above else "ge": low, "le": high}


def _shown(value: float) -> str:
    return {2.0**63: "2^63 - 1", -(2.0**63): "-2^63"}.get(float(value), f"{value:,.15g}")


PARAMETERS: Final = from_json(Path(__file__).with_name("parameters.json").read_bytes(), tuple[Parameter, ...])
"""All numeric parameters, in the order of `Sampling`."""

(
    TEMPERATURE,
    TOP_P,
    TOP_K,
    MIN_P,
    TYPICAL_P,
    TOP_N_SIGMA,
    P_LESS,
    XTC_PROBABILITY,
    XTC_THRESHOLD,
    REPETITION_PENALTY,
    REPETITION_CONTEXT,
    PRESENCE_PENALTY,
    PRESENCE_CONTEXT,
    FREQUENCY_PENALTY,
    FREQUENCY_CONTEXT,
    SEED,
) = PARAMETERS

MOST_STOPS: Final = 32  # stop strings of a request
LONGEST_STOP: Final = 1024  # characters of one
MOST_BIASES: Final = 4096  # tokens that `logit_bias` names
LARGEST_BIAS: Final = 100.0  # either way

OF_CHECKPOINTS: Final = (
    *(TEMPERATURE, TOP_P, TOP_K, MIN_P, TYPICAL_P),
    *(REPETITION_PENALTY, PRESENCE_PENALTY, FREQUENCY_PENALTY),
)
"""The parameters that are read from a checkpoint's generation_config.json, and hold where a request does not say."""


class OfEveryAnswer(Struct, frozen=True):
    """What a generation_config.json asks of every answer, beside the sampling."""

    suppress_tokens: tuple[int, ...] | None = None
    begin_suppress_tokens: tuple[int, ...] | None = None
    bad_words_ids: tuple[tuple[int, ...], ...] | None = None
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] | None = None
    stop_strings: str | tuple[str, ...] | None = None
    min_new_tokens: Annotated[int, Meta(ge=0)] | None = None
    no_repeat_ngram_size: Annotated[int, Meta(ge=0)] | None = None

    def biases(self, rows: int, ends: Container[int]) -> dict[int, float]:
        """The bias of each single token, as little as a request's can be for one that is never drawn. The model has so
        many `rows`: it draws no token beyond them. As in transformers, no word forbids one of the `ends`."""
        words = {ids[0] for ids in self.bad_words_ids or () if len(ids) == 1 and ids[0] not in ends}
        found = {ids[0]: bias for ids, bias in self._biased if len(ids) == 1}
        found |= dict.fromkeys((*(self.suppress_tokens or ()), *words), -LARGEST_BIAS)
        return {token: bias for token, bias in found.items() if 0 <= token < rows}

    @property
    def several(self) -> dict[tuple[int, ...], float]:
        """What is added to the logit of the last token of each longer sequence, where the others stand before it."""
        found = dict(self._biased) | dict.fromkeys(self.bad_words_ids or (), -math.inf)
        return {ids: bias for ids, bias in found.items() if len(ids) > 1 and min(ids) >= 0}

    @property
    def _biased(self) -> Iterator[tuple[tuple[int, ...], float]]:
        for ids, bias in self.sequence_bias or ():
            if not math.isnan(bias):
                yield ids, min(max(bias, -LARGEST_BIAS), LARGEST_BIAS)

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end an answer."""
        ends = self.stop_strings or ()
        return tuple(filter(None, (ends,) if isinstance(ends, str) else ends))


OF_LENGTHS: Final = {
    *("max_length", "max_new_tokens", "max_time", "min_length"),
    *("forced_eos_token_id", "exponential_decay_length_penalty"),
}
LEFT_OUT: Final = {
    "an answer is drawn token by token, and searched in no other way": (
        *("num_beams", "num_beam_groups", "diversity_penalty", "penalty_alpha", "dola_layers"),
        *("force_words_ids", "constraints", "guidance_scale", "token_healing"),
    ),
    "no model with an encoder is served as a language model": ("forced_bos_token_id",),
    "requests have `repetition_penalty`, `min_p` and `top_n_sigma` for it": (
        *("encoder_repetition_penalty", "encoder_no_repeat_ngram_size"),
        *("epsilon_cutoff", "eta_cutoff", "top_h"),
    ),
    "a request tells how long its answer is": tuple(sorted(OF_LENGTHS)),
    "answers are not marked": ("watermarking_config",),
}
"""Fields of generation_config.json that change an answer of transformers, and none here, by the reason: the log of a
load, `pippin show` and `pippin verify` name them."""


def left_out(generation: Mapping[str, Any]) -> list[str]:
    """The fields of `LEFT_OUT` that a generation_config.json sets to something."""
    fields = (name for names in LEFT_OUT.values() for name in names)
    return [name for name in fields if generation.get(name) not in (None, False, 0, 1, "", [], {})]
