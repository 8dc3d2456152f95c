"""What a request's numbers may be for one model; everything else is refused by name."""

import msgspec

from pippin.core import parameters
from pippin.core.errors import ServerError
from pippin.core.requests import GenerationRequest, Sampling
from pippin.engines.language.text.tokenizer import Tokenizer

MOST_LOGPROBS = 100


def check(request: GenerationRequest, tokenizer: Tokenizer) -> None:
    """Raises `ServerError` naming the field."""
    _check_sampling(request.sampling, tokenizer.size)
    check_tokens(request.stop_token_ids, tokenizer.size, "stop_token_ids")
    most, longest = parameters.MOST_STOPS, parameters.LONGEST_STOP
    if len(request.stop) > most or any(len(stop) > longest for stop in request.stop):
        raise _refuse("stop", f"may hold {most} texts of {longest} characters at most")
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
    for parameter in parameters.PARAMETERS:
        value: float | None = values[parameter.name]
        if value is not None and not parameter.holds(value):
            raise _refuse(parameter.public_name, f"is {value:g}; it must be {parameter.range}")
    if sampling.top_k is not None and sampling.top_k > vocabulary:
        raise _refuse("top_k", f"is {sampling.top_k}; this model has {vocabulary} tokens")
    bias, most, largest = sampling.logit_bias or {}, parameters.MOST_BIASES, parameters.LARGEST_BIAS
    if len(bias) > most:
        raise _refuse("logit_bias", f"holds {len(bias)} tokens; {most} is the most")
    check_tokens(tuple(bias), vocabulary, "logit_bias")
    for token, value in bias.items():
        if not -largest <= value <= largest:
            raise _refuse(
                "logit_bias",
                f"gives token {token} a bias of {value:g}; it must be from {-largest:g} to {largest:g}",
            )
    if len(sampling.dry_sequence_breakers or ()) > parameters.MOST_BREAKERS:
        raise _refuse("dry_sequence_breakers", f"may hold {parameters.MOST_BREAKERS} texts at most")


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
