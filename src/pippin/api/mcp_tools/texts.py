"""The tools `embed` and `rerank`: texts as vectors, and texts ranked by how well they answer a question."""

import struct
from typing import Annotated, Final

from msgspec import Meta, Struct

from pippin.api.dialects.shared.engine_fields import Name
from pippin.api.mcp_tools.tool import Call, Done, Tool
from pippin.core.conversation import Text
from pippin.core.events import Embedded, Ranked
from pippin.core.tasks import Embed, Rerank, RerankDocument

MOST_TEXTS: Final = 64
"""Texts in one call. A client's model reads the vectors as text; thousands are for `/v1/embeddings`."""
MOST_DOCUMENTS: Final = 1000

SomeText = Annotated[str, Meta(min_length=1)]


class EmbedArguments(Struct, kw_only=True, omit_defaults=True):
    texts: Annotated[tuple[SomeText, ...], Meta(min_length=1, max_length=MOST_TEXTS)]
    model: Annotated[Name, Meta(description="The id of an embedding model.")] = "default"
    dimensions: Annotated[
        Annotated[int, Meta(ge=1, le=2**20)] | None,
        Meta(description="Keep the first so many values of each vector."),
    ] = None
    instruction: Annotated[
        str | None, Meta(description="Text in front of each, or the name of one of the model's own prompts.")
    ] = None


class Vectors(Struct, kw_only=True):
    vectors: Annotated[list[list[float]], Meta(description="One for each text, in their order; of length 1.")]
    dimensions: int
    model: str
    prompt_tokens: int


class RerankArguments(Struct, kw_only=True, omit_defaults=True):
    query: Annotated[str, Meta(min_length=1, description="The question.")]
    documents: Annotated[tuple[SomeText, ...], Meta(min_length=1, max_length=MOST_DOCUMENTS)]
    model: Annotated[Name, Meta(description="The id of a reranking model.")] = "default"
    top_n: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Only so many of the best documents.")
    ] = None


class RankedText(Struct, kw_only=True):
    index: Annotated[int, Meta(description="The document's place in `documents`, from 0.")]
    score: float


class Ranking(Struct, kw_only=True):
    results: Annotated[list[RankedText], Meta(description="The best first.")]
    model: str


async def embed(call: Call, arguments: EmbedArguments) -> Done:
    task = Embed(
        inputs=arguments.texts,
        dimensions=arguments.dimensions,
        instruction=arguments.instruction or None,
    )
    found = await call.perform(task, arguments.model, "mcp_embed", "The model computes.")
    assert isinstance(found.ending, Embedded)
    width = found.ending.dimensions
    rows = struct.iter_unpack(f"<{width}f", found.ending.vectors)
    return Done(
        result=Vectors(
            vectors=[list(row) for row in rows],
            dimensions=width,
            model=found.model,
            prompt_tokens=found.ending.prompt_tokens,
        )
    )


async def rerank(call: Call, arguments: RerankArguments) -> Done:
    task = Rerank(
        query=arguments.query,
        documents=tuple(RerankDocument((Text(text),)) for text in arguments.documents),
    )
    found = await call.perform(task, arguments.model, "mcp_rerank", "The model compares.")
    assert isinstance(found.ending, Ranked)
    scores = found.ending.scores
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: arguments.top_n]
    results = [RankedText(index=index, score=scores[index]) for index in order]
    return Done(result=Ranking(results=results, model=found.model))


EMBED: Final = Tool(
    "embed",
    "Embed texts",
    "The vectors of texts, by which they can be compared.",
    EmbedArguments,
    Vectors,
    embed,
    kind="embeddings",
)
RERANK: Final = Tool(
    "rerank",
    "Rank documents",
    "Documents in the order of how well they answer a question.",
    RerankArguments,
    Ranking,
    rerank,
    kind="reranking",
)
