"""Bodies and replies of `/v1/embeddings`, as OpenAI has them."""

import base64
import struct
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from pippin.api.dialects.shared.engine_fields import Name
from pippin.api.dialects.shared.fields import BOOKKEEPING, Contract, invalid
from pippin.core.events import Embedded
from pippin.core.tasks import Embed

MOST_INPUTS: Final = 2048
"""OpenAI's."""

TokenId = Annotated[int, Meta(ge=0, lt=2**48)]


class EmbeddingRequest(Struct, kw_only=True, omit_defaults=True):
    input: Annotated[
        str | tuple[str | TokenId | tuple[TokenId, ...], ...],
        Meta(
            description="Text, texts, token ids, or lists of token ids.",
            extra_json_schema={"minLength": 1, "minItems": 1},
        ),
    ]
    model: Annotated[Name, Meta(description="Name of the model.")] = "default"
    encoding_format: Annotated[
        Literal["float", "base64"] | None,
        Meta(description="Numbers, or base64 of little-endian float32."),
    ] = None
    dimensions: Annotated[
        Annotated[int, Meta(ge=1, le=2**20)] | None,
        Meta(description="Keep the first so many values of each vector, normalised again."),
    ] = None
    truncate: Annotated[
        bool | None,
        Meta(description="Cut inputs that are too long, or refuse them; not set is the option's choice."),
    ] = None
    instruction: Annotated[
        str | None,
        Meta(description="Text in front of each input, or the name of one of the model's own prompts."),
    ] = None


CONTRACT: Final = Contract(
    EmbeddingRequest,
    {"user": BOOKKEEPING, "safety_identifier": BOOKKEEPING},
    {
        "image_url": "this address embeds text; leave it out.",
        "truncate_prompt_tokens": "use `truncate`, which cuts at the model's own limit.",
        "add_special_tokens": "give token ids as the input to say exactly which tokens it has.",
    },
)

CONTRACTS: Final = {"POST /v1/embeddings": CONTRACT}


class EmbeddingItem(Struct, kw_only=True):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Struct, kw_only=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingReply(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage


def task_of(fields: EmbeddingRequest) -> Embed:
    overflow: Literal["error", "truncate"] | None = None
    if fields.truncate is not None:
        overflow = "truncate" if fields.truncate else "error"
    return Embed(
        inputs=inputs_of(fields.input),
        dimensions=fields.dimensions,
        overflow=overflow,
        instruction=fields.instruction or None,
    )


def inputs_of(given: Any) -> tuple[str | tuple[int, ...], ...]:
    """The inputs of a request, one for each vector. A list of numbers is a single input."""
    if isinstance(given, str):
        given = (given,)
    if not given:
        raise invalid("input", "must not be empty.")
    numbers = [item for item in given if isinstance(item, int)]
    if numbers:
        if len(numbers) != len(given):
            raise invalid("input", "must be all texts, all token ids, or all lists of token ids.")
        return (tuple(numbers),)
    if len(given) > MOST_INPUTS:
        raise invalid("input", f"must not hold more than {MOST_INPUTS} inputs.")
    for place, item in enumerate(given):
        if not item:
            raise invalid("input" if len(given) == 1 else f"input[{place}]", "must not be empty.")
    return tuple(given)


def draw(fields: EmbeddingRequest, model: str, found: Embedded) -> bytes:
    width = found.dimensions * 4
    rows = [found.vectors[start : start + width] for start in range(0, len(found.vectors), width)]
    usage = EmbeddingUsage(prompt_tokens=found.prompt_tokens, total_tokens=found.prompt_tokens)
    # A vector at a time: to write millions of numbers in one go would keep the interpreter from all others.
    items = [
        msgspec.Raw(
            msgspec.json.encode(
                EmbeddingItem(
                    index=index,
                    embedding=base64.b64encode(row).decode()
                    if fields.encoding_format == "base64"
                    else list(struct.unpack(f"<{found.dimensions}f", row)),
                )
            )
        )
        for index, row in enumerate(rows)
    ]
    return msgspec.json.encode({"object": "list", "data": items, "model": model, "usage": usage})
