"""The fields by which clients choose how tokens are sampled, and what they mean to the engine.

Ranges and descriptions stand in `core/parameters.py`. Names and values of other servers are translated here.
"""

from typing import Annotated, Any

from msgspec import Meta, Struct

from pippin.api.dialects.shared.fields import invalid
from pippin.core import parameters as p
from pippin.core.requests import Sampling

Bias = Annotated[float, Meta(ge=-p.LARGEST_BIAS, le=p.LARGEST_BIAS)]
Breaker = Annotated[str, Meta(max_length=p.LONGEST_BREAKER)]


class SamplingFields(Struct, kw_only=True, omit_defaults=True):
    """Inherited by the request structs of the dialects; read with `sampling_of`."""

    temperature: Annotated[Annotated[float, p.TEMPERATURE.wire_bounds] | None, p.TEMPERATURE.described] = None
    top_p: Annotated[Annotated[float, p.TOP_P.wire_bounds] | None, p.TOP_P.described] = None
    top_k: Annotated[Annotated[int, p.TOP_K.wire_bounds] | None, p.TOP_K.described] = None
    min_p: Annotated[Annotated[float, p.MIN_P.wire_bounds] | None, p.MIN_P.described] = None
    typical_p: Annotated[Annotated[float, p.TYPICAL_P.wire_bounds] | None, p.TYPICAL_P.described] = None
    top_n_sigma: Annotated[Annotated[float, p.TOP_N_SIGMA.wire_bounds] | None, p.TOP_N_SIGMA.described] = None
    xtc_probability: Annotated[
        Annotated[float, p.XTC_PROBABILITY.wire_bounds] | None, p.XTC_PROBABILITY.described
    ] = None
    xtc_threshold: Annotated[
        Annotated[float, p.XTC_THRESHOLD.wire_bounds] | None, p.XTC_THRESHOLD.described
    ] = None
    repetition_penalty: Annotated[
        Annotated[float, p.REPETITION_PENALTY.wire_bounds] | None, p.REPETITION_PENALTY.described
    ] = None
    repetition_context_size: Annotated[
        Annotated[int, p.REPETITION_CONTEXT.wire_bounds] | None, p.REPETITION_CONTEXT.described
    ] = None
    repeat_penalty: Annotated[
        Annotated[float, p.REPETITION_PENALTY.wire_bounds] | None,
        Meta(description="llama.cpp's name of `repetition_penalty`."),
    ] = None
    repeat_last_n: Annotated[
        Annotated[int, p.REPETITION_CONTEXT.wire_bounds] | None,
        Meta(description="llama.cpp's name of `repetition_context_size`."),
    ] = None
    presence_penalty: Annotated[
        Annotated[float, p.PRESENCE_PENALTY.wire_bounds] | None, p.PRESENCE_PENALTY.described
    ] = None
    presence_context_size: Annotated[
        Annotated[int, p.PRESENCE_CONTEXT.wire_bounds] | None, p.PRESENCE_CONTEXT.described
    ] = None
    frequency_penalty: Annotated[
        Annotated[float, p.FREQUENCY_PENALTY.wire_bounds] | None, p.FREQUENCY_PENALTY.described
    ] = None
    frequency_context_size: Annotated[
        Annotated[int, p.FREQUENCY_CONTEXT.wire_bounds] | None, p.FREQUENCY_CONTEXT.described
    ] = None
    dry_multiplier: Annotated[
        Annotated[float, p.DRY_MULTIPLIER.wire_bounds] | None, p.DRY_MULTIPLIER.described
    ] = None
    dry_base: Annotated[Annotated[float, p.DRY_BASE.wire_bounds] | None, p.DRY_BASE.described] = None
    dry_allowed_length: Annotated[
        Annotated[int, p.DRY_ALLOWED_LENGTH.wire_bounds] | None, p.DRY_ALLOWED_LENGTH.described
    ] = None
    dry_penalty_last_n: Annotated[
        Annotated[int, p.DRY_CONTEXT.wire_bounds] | None, p.DRY_CONTEXT.described
    ] = None
    dry_sequence_breakers: Annotated[
        Annotated[tuple[Breaker, ...], Meta(max_length=p.MOST_BREAKERS)] | None,
        Meta(description="Texts that end a repetition."),
    ] = None
    logit_bias: Annotated[
        Annotated[dict[str, Bias], Meta(max_length=p.MOST_BIASES)] | None,
        Meta(description="Token id to what is added to its logit."),
    ] = None
    seed: Annotated[Annotated[int, p.SEED.wire_bounds] | None, p.SEED.described] = None


def sampling_of(fields: SamplingFields) -> Sampling:
    """What the fields ask for, in the engine's terms. Raises `ServerError` for a bias of something that is no token."""
    asked: dict[str, Any] = {each.name: getattr(fields, each.public_name) for each in p.PARAMETERS}
    if asked["repetition_penalty"] is None:
        asked["repetition_penalty"] = fields.repeat_penalty
    if asked["repetition_context"] is None:
        asked["repetition_context"] = fields.repeat_last_n
    # A nucleus of no probability at all is the likeliest token alone.
    if asked["top_p"] == 0:
        asked |= {"top_p": None, "top_k": 1}
    # Any other 0 or -1 that is out of range is a word for "does nothing".
    for each in p.PARAMETERS:
        value = asked[each.name]
        if value is not None and value <= 0 and not each.holds(value):
            asked[each.name] = each.neutral
    return Sampling(
        **asked,
        dry_sequence_breakers=fields.dry_sequence_breakers,
        logit_bias=_biases(fields.logit_bias),
    )


def _biases(given: dict[str, float] | None) -> dict[int, float] | None:
    if not given:
        return None
    biases = {}
    for key, bias in given.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise invalid("logit_bias", "must map token ids (whole numbers from 0) to numbers.")
        biases[int(key)] = bias
    return biases
