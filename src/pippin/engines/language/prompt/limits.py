"""What a request's numbers may be for one model; everything else is refused by name."""

import math

import msgspec

from pippin.core.errors import ServerError
from pippin.core.requests import GenerationRequest, Sampling
from pippin.engines.language.text.tokenizer import Tokenizer

MOST_LOGPROBS = 100
MOST_STOPS = 64
MOST_STOP_LENGTH = 1000  # characters
MOST_BIASES = 4096
MOST_BREAKERS = 64

_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 100),
    "top_p": (0, 1),
    "top_k": (0, math.inf),
    "min_p": (0, 1),
    "typical_p": (0, 1),
    "top_n_sigma": (0, 1000),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 1),
    "repetition_penalty": (1e-3, 1000),
    "repetition_context": (0, math.inf),
    "presence_penalty": (-1000, 1000),
    "presence_context": (0, math.inf),
    "frequency_penalty": (-1000, 1000),
    "frequency_context": (0, math.inf),
    "dry_multiplier": (0, 1000),
    "dry_base": (1, 100),
    "dry_allowed_length": (1, 1000),
    "dry_context": (0, math.inf),
}
_POSITIVE = frozenset({"top_p", "typical_p"})


def check(request: GenerationRequest, tokenizer: Tokenizer) -> None:
    """Raises `ServerError` naming the field."""
    _check_sampling(request.sampling, tokenizer.size)
    check_tokens(request.stop_token_ids, tokenizer.size, "stop_token_ids")
    if len(request.stop) > MOST_STOPS or any(len(stop) > MOST_STOP_LENGTH for stop in request.stop):
        raise _refuse("stop", f"may hold {MOST_STOPS} texts of {MOST_STOP_LENGTH} characters at most")
    if "" in request.stop:
        raise _refuse("stop", "holds an empty text, which would stop at once; leave it out")
    _at_least("max_tokens", request.max_tokens, 0)
    _at_least("min_tokens", request.min_tokens, 0)
    for field, asked in (("logprobs", request.logprobs), ("prompt_logprobs", request.prompt_logprobs)):
        _at_least(field, asked, 0)
        if asked is not None and asked > min(MOST_LOGPROBS, tokenizer.size):
            raise _refuse(
                field,
                f"is {asked}; this model gives {min(MOST_LOGPROBS, tokenizer.size)} alternatives at most",
            )
    _at_least("thinking_budget", request.thinking.budget, 0)


def _check_sampling(sampling: Sampling, vocabulary: int) -> None:
    values = msgspec.structs.asdict(sampling)
    for field, (low, high) in _RANGES.items():
        value: float | None = values[field]
        if value is None:
            continue
        if not low <= value <= high or (field in _POSITIVE and value == 0):
            bounds = f"{'above' if field in _POSITIVE else 'from'} {low:g}"
            raise _refuse(
                field, f"is {value:g}; it must be {bounds}" + (f" to {high:g}" if high < math.inf else " up")
            )
    if sampling.top_k is not None and sampling.top_k > vocabulary:
        raise _refuse("top_k", f"is {sampling.top_k}; this model has {vocabulary} tokens")
    bias = sampling.logit_bias or {}
    if len(bias) > MOST_BIASES:
        raise _refuse("logit_bias", f"holds {len(bias)} tokens; {MOST_BIASES} is the most")
    check_tokens(tuple(bias), vocabulary, "logit_bias")
    for token, value in bias.items():
        if not -100 <= value <= 100:
            raise _refuse(
                "logit_bias", f"gives token {token} a bias of {value:g}; it must be from -100 to 100"
            )
    if len(sampling.dry_sequence_breakers or ()) > MOST_BREAKERS:
        raise _refuse("dry_sequence_breakers", f"may hold {MOST_BREAKERS} texts at most")


def check_tokens(tokens: tuple[int, ...], vocabulary: int, field: str) -> None:
    for token in tokens:
        if not 0 <= token < vocabulary:
            raise _refuse(field, f"holds the token {token}; this model's go from 0 to {vocabulary - 1}")


def check_prompt(tokens: tuple[int, ...], vocabulary: int) -> None:
    check_tokens(tokens, vocabulary, "prompt")


def _at_least(field: str, asked: int | None, least: int) -> None:
    if asked is not None and asked < least:
        raise _refuse(field, f"is {asked}; it must be at least {least}")


def _refuse(field: str, what: str) -> ServerError:
    return ServerError("invalid_request", f"'{field}' {what}.", field)
