"""Every sampling parameter, once: its name, type, range and neutral value, and the limits of stop strings and biases.

The request bodies of the dialects, the operator's options, the worker's check of a request, the sampler and the table
in `docs/sampling.md` all take their numbers from here. Values that other servers give a special meaning (-1 for "all",
0 for "off") belong to the wire: `api/dialects/shared/engine_fields.py` translates them.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct


class Parameter(Struct, frozen=True, kw_only=True):
    """A number with which a request controls how tokens are chosen."""

    name: str
    """Field of `Sampling`, in `core/requests.py`."""
    type: Literal["float", "int"] = "float"
    low: float
    high: float
    above_low: bool = False
    """Whether `low` itself is out of range."""
    neutral: float | None
    """The value at which the parameter does nothing; None where only leaving it unset does that."""
    default: float | None = None
    """The value of an unset parameter where it differs from the neutral one, such as the strength of an active
    filter."""
    wire: tuple[float, float] | None = None
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

    @property
    def bounds(self) -> Meta:
        """The range in the form that msgspec checks and OpenAPI shows."""
        low, high = self._number(self.low), self._number(self.high)
        return Meta(gt=low, le=high) if self.above_low else Meta(ge=low, le=high)

    @property
    def wire_meta(self) -> Meta:
        """The range that clients may send, and the help for them."""
        told = f"{self.help} {self.wire_help}".strip()
        low, high = map(self._number, self.wire or (self.low, self.high))
        if self.above_low and self.wire is None:
            return Meta(gt=low, le=high, description=told)
        return Meta(ge=low, le=high, description=told)

    @property
    def range(self) -> str:
        """The range in words, as in "above 0 to 1"."""
        return f"{'above' if self.above_low else 'from'} {_shown(self.low)} to {_shown(self.high)}"

    @property
    def wire_range(self) -> str:
        """The range that clients may send, in words."""
        return self.range if self.wire is None else f"from {_shown(self.wire[0])} to {_shown(self.wire[1])}"

    def holds(self, value: Any) -> bool:
        """Whether `value` is a number within the range."""
        if isinstance(value, bool) or not isinstance(value, int if self.type == "int" else (int, float)):
            return False
        return (self.low < value if self.above_low else self.low <= value) and value <= self.high

    def acts(self, value: float | None) -> bool:
        """Whether a request with this value chooses tokens differently from one without it."""
        return value is not None and value != self.neutral

    def _number(self, value: float) -> float:
        """A bound in the parameter's own type: msgspec wants integer bounds for integers."""
        return int(value) if self.type == "int" else value


def _shown(value: float) -> str:
    return {2.0**63: "2^63 - 1", -(2.0**63): "-2^63"}.get(float(value), f"{value:,.15g}")


LONGEST_CONTEXT: Final = 10_000_000  # tokens


def _context(name: str, field: str, of: str) -> Parameter:
    return Parameter(
        name=name,
        type="int",
        low=0,
        high=LONGEST_CONTEXT,
        neutral=None,
        default=LONGEST_CONTEXT,
        wire=(-1, LONGEST_CONTEXT),
        field=field,
        help=f"Most recent tokens that {of} looks at.",
        wire_help="-1 is all of them.",
    )


TEMPERATURE: Final = Parameter(
    name="temperature",
    low=0,
    high=100,
    wire=(0, 2),
    neutral=1,
    help="Randomness of the choice of tokens; 0 is greedy.",
)
TOP_P: Final = Parameter(
    name="top_p",
    low=0,
    high=1,
    above_low=True,
    neutral=1,
    wire=(0, 1),
    help="Choose among the likeliest tokens of this total probability.",
    wire_help="0 is the likeliest alone.",
)
TOP_K: Final = Parameter(
    name="top_k",
    type="int",
    low=0,
    high=1_000_000,
    neutral=0,
    wire=(-1, 1_000_000),
    help="Choose among this many tokens; 0 is off.",
    wire_help="-1 is off, too.",
)
MIN_P: Final = Parameter(
    name="min_p",
    low=0,
    high=1,
    neutral=0,
    help="Leave out tokens less likely than this share of the likeliest.",
)
TYPICAL_P: Final = Parameter(
    name="typical_p",
    low=0,
    high=1,
    above_low=True,
    neutral=1,
    wire=(0, 1),
    help="Locally typical sampling: the share of probability that is kept; 1 is off.",
    wire_help="0 is off, too.",
)
TOP_N_SIGMA: Final = Parameter(
    name="top_n_sigma",
    low=0,
    high=1000,
    neutral=0,
    wire=(-1, 1000),
    help="Keep logits within this many deviations of the highest; 0 is off.",
    wire_help="-1 is off, too.",
)
P_LESS: Final = Parameter(
    name="p_less",
    type="int",
    low=0,
    high=1,
    neutral=0,
    help="Keep tokens at least as likely as two draws are to be the same one; 1 is on.",
    wire_help="true is on, too.",
)
XTC_PROBABILITY: Final = Parameter(
    name="xtc_probability", low=0, high=1, neutral=0, help="How often XTC cuts the top."
)
XTC_THRESHOLD: Final = Parameter(
    name="xtc_threshold",
    low=0,
    high=1,
    neutral=None,
    default=0.1,
    help="Least probability of the tokens that XTC cuts; above 0.5 it cuts none.",
)
REPETITION_PENALTY: Final = Parameter(
    name="repetition_penalty",
    low=0.001,
    high=1000,
    neutral=1,
    wire=(0, 1000),
    help="Divides logits of tokens seen; 1 is off.",
    wire_help="0 is off, too.",
)
REPETITION_CONTEXT: Final = _context(
    "repetition_context", "repetition_context_size", "the repetition penalty"
)
PRESENCE_PENALTY: Final = Parameter(
    name="presence_penalty",
    low=-1000,
    high=1000,
    wire=(-2, 2),
    neutral=0,
    help="Subtracted from logits of tokens seen.",
)
PRESENCE_CONTEXT: Final = _context("presence_context", "presence_context_size", "the presence penalty")
FREQUENCY_PENALTY: Final = Parameter(
    name="frequency_penalty",
    low=-1000,
    high=1000,
    wire=(-2, 2),
    neutral=0,
    help="Subtracted from logits for each time a token was seen.",
)
FREQUENCY_CONTEXT: Final = _context("frequency_context", "frequency_context_size", "the frequency penalty")
SEED: Final = Parameter(
    name="seed",
    type="int",
    low=-(2**63),
    high=2**63 - 1,
    neutral=None,
    help="Makes sampling repeatable; without one each request has a seed of its own.",
)

PARAMETERS: Final = (
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
)
"""All numeric parameters, in the order of `Sampling`."""

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
    """What a generation_config.json asks of every answer, beside the sampling. Of words and sequences those of one
    token hold."""

    suppress_tokens: tuple[int, ...] | None = None
    begin_suppress_tokens: tuple[int, ...] | None = None
    bad_words_ids: tuple[tuple[int, ...], ...] | None = None
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] | None = None
    stop_strings: str | tuple[str, ...] | None = None
    min_new_tokens: Annotated[int, Meta(ge=0)] | None = None

    @property
    def sequences(self) -> Iterator[tuple[str, tuple[int, ...], float]]:
        """The fields that bias sequences of tokens, these, and the biases."""
        for ids in self.bad_words_ids or ():
            yield "bad_words_ids", ids, -LARGEST_BIAS
        for ids, bias in self.sequence_bias or ():
            yield "sequence_bias", ids, min(max(bias, -LARGEST_BIAS), LARGEST_BIAS)

    def biases(self, rows: int) -> dict[int, float]:
        """The bias of each single token, as little as a request's can be for one that is never drawn. The model has so
        many `rows`: it draws no token beyond them."""
        never = dict.fromkeys(self.suppress_tokens or (), -LARGEST_BIAS)
        found = never | {ids[0]: bias for _, ids, bias in self.sequences if len(ids) == 1}
        return {token: bias for token, bias in found.items() if 0 <= token < rows and not math.isnan(bias)}

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
        *("no_repeat_ngram_size", "encoder_repetition_penalty", "encoder_no_repeat_ngram_size"),
        *("epsilon_cutoff", "eta_cutoff", "top_h"),
    ),
    "a request tells how long its answer is": tuple(sorted(OF_LENGTHS)),
    "answers are not marked": ("watermarking_config",),
}
"""Fields of generation_config.json that change an answer of transformers, and none here, by the reason: the log of a
load, `pippin show` and `pippin verify` name them."""


def left_out(generation: Mapping[str, Any], asked: OfEveryAnswer) -> list[str]:
    """The fields of `LEFT_OUT` that a generation_config.json sets to something, and sequences of several tokens."""
    fields = (name for names in LEFT_OUT.values() for name in names)
    found = [name for name in fields if generation.get(name) not in (None, False, 0, 1, "", [], {})]
    several = {name: None for name, ids, _ in asked.sequences if len(ids) > 1}
    return [*found, *(f"{name} of several tokens" for name in several)]
