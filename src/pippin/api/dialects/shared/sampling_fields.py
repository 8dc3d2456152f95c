"""The fields by which clients choose how tokens are sampled, and what they mean to the engine."""

from typing import Annotated

from msgspec import Meta, Struct

from pippin.api.dialects.shared.fields import invalid
from pippin.core.requests import Sampling

Probability = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
ContextSize = Annotated[int, Meta(ge=-1, le=10_000_000)]

MAX_BIASES = 1024
MAX_BREAKERS = 64


class SamplingFields(Struct, kw_only=True, omit_defaults=True):
    """Inherited by the request structs of the dialects; read with `sampling_of`."""

    temperature: Annotated[
        Annotated[float, Meta(ge=0, le=2)] | None,
        Meta(description="Randomness of the choice of tokens; 0 is greedy."),
    ] = None
    top_p: Annotated[
        Probability | None, Meta(description="Choose among the likeliest tokens of this total probability.")
    ] = None
    top_k: Annotated[
        Annotated[int, Meta(ge=-1, le=1000000)] | None,
        Meta(description="Choose among this many tokens; 0 and -1 are off."),
    ] = None
    min_p: Annotated[
        Probability | None, Meta(description="Leave out tokens less likely than this share of the likeliest.")
    ] = None
    typical_p: Annotated[Probability | None, Meta(description="Locally typical sampling; 1 is off.")] = None
    top_n_sigma: Annotated[
        Annotated[float, Meta(ge=-1, le=1000)] | None,
        Meta(description="Keep logits within this many deviations of the highest; 0 is off."),
    ] = None
    xtc_probability: Annotated[Probability | None, Meta(description="How often XTC cuts the top.")] = None
    xtc_threshold: Annotated[Probability | None, Meta(description="Least probability that XTC cuts.")] = None
    repetition_penalty: Annotated[
        Annotated[float, Meta(ge=0, le=100)] | None,
        Meta(description="Divides logits of tokens seen; 1 and 0 are off."),
    ] = None
    repetition_context_size: Annotated[
        ContextSize | None, Meta(description="Tokens that it looks back; -1 is all of them.")
    ] = None
    repeat_penalty: Annotated[
        Annotated[float, Meta(ge=0, le=100)] | None,
        Meta(description="llama.cpp's name of `repetition_penalty`."),
    ] = None
    repeat_last_n: Annotated[
        ContextSize | None, Meta(description="llama.cpp's name of `repetition_context_size`.")
    ] = None
    presence_penalty: Annotated[
        Penalty | None, Meta(description="Subtracted from logits of tokens seen.")
    ] = None
    presence_context_size: Annotated[ContextSize | None, Meta(description="Tokens that it looks back.")] = (
        None
    )
    frequency_penalty: Annotated[
        Penalty | None, Meta(description="Subtracted from logits for each time a token was seen.")
    ] = None
    frequency_context_size: Annotated[ContextSize | None, Meta(description="Tokens that it looks back.")] = (
        None
    )
    dry_multiplier: Annotated[
        Annotated[float, Meta(ge=0, le=100)] | None,
        Meta(description="Strength of the DRY repetition penalty; 0 is off."),
    ] = None
    dry_base: Annotated[
        Annotated[float, Meta(ge=0, le=100)] | None, Meta(description="Base of its growth.")
    ] = None
    dry_allowed_length: Annotated[
        Annotated[int, Meta(ge=0, le=100000)] | None, Meta(description="Length of a repetition that is free.")
    ] = None
    dry_penalty_last_n: Annotated[ContextSize | None, Meta(description="Tokens that it looks back.")] = None
    dry_sequence_breakers: Annotated[
        Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=MAX_BREAKERS)] | None,
        Meta(description="Texts that end a repetition."),
    ] = None
    logit_bias: Annotated[
        Annotated[dict[str, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=MAX_BIASES)] | None,
        Meta(description="Token id to what is added to its logit."),
    ] = None
    seed: Annotated[
        Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None, Meta(description="Makes sampling repeatable.")
    ] = None


def sampling_of(fields: SamplingFields) -> Sampling:
    top_k = fields.top_k if fields.top_k is None or fields.top_k >= 0 else 0
    top_p = fields.top_p
    if top_p == 0:  # nothing but the likeliest token
        top_p, top_k = None, 1
    penalty = fields.repetition_penalty if fields.repetition_penalty is not None else fields.repeat_penalty
    looking_back = fields.repetition_context_size
    if looking_back is None:
        looking_back = fields.repeat_last_n
    return Sampling(
        temperature=fields.temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=fields.min_p,
        typical_p=None if fields.typical_p is None else fields.typical_p or 1.0,
        top_n_sigma=None if fields.top_n_sigma is None else max(fields.top_n_sigma, 0.0),
        xtc_probability=fields.xtc_probability,
        xtc_threshold=fields.xtc_threshold,
        repetition_penalty=1.0 if penalty == 0 else penalty,
        repetition_context=_context(looking_back),
        presence_penalty=fields.presence_penalty,
        presence_context=_context(fields.presence_context_size),
        frequency_penalty=fields.frequency_penalty,
        frequency_context=_context(fields.frequency_context_size),
        dry_multiplier=fields.dry_multiplier,
        dry_base=fields.dry_base,
        dry_allowed_length=fields.dry_allowed_length,
        dry_context=_context(fields.dry_penalty_last_n),
        dry_sequence_breakers=fields.dry_sequence_breakers,
        logit_bias=_biases(fields.logit_bias),
        seed=fields.seed,
    )


def _context(size: int | None) -> int | None:
    """-1 is "all of them", which is `None` in `Sampling`."""
    return None if size is None or size < 0 else size


def _biases(given: dict[str, float] | None) -> dict[int, float] | None:
    if not given:
        return None
    biases = {}
    for key, bias in given.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise invalid("logit_bias", "must map token ids (whole numbers from 0) to numbers.")
        biases[int(key)] = bias
    return biases
