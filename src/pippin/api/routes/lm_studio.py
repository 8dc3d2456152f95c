"""`/api/v0/*`: the part of LM Studio's REST API that plug-ins use.

Paths, fields and answers are those of https://lmstudio.ai/docs/developer/rest. Chats, completions and embeddings are
OpenAI's APIs under LM Studio's paths; answers to the first two also tell how fast they were, and by which model.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct, field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin import __version__
from pippin.api.answers.handler import endpoint_of
from pippin.api.dialects.base import AnyDialect, DecodeContext, Decoded, Dialect, Encoder, RunInfo
from pippin.api.dialects.shared.frames import DONE
from pippin.api.dialects.shared.openai import OpenAIErrors
from pippin.api.kinds.embeddings import EmbeddingReply, EmbeddingRequest, embedding
from pippin.api.routing import Api, both, json_reply
from pippin.core.completion import Completion
from pippin.core.events import Event, Finished, FinishReason
from pippin.core.models import ModelInfo, ModelState

Kind = Literal["llm", "vlm", "embeddings"]


class ListedModel(Struct, kw_only=True):
    """A model as `/api/v0/models` lists it."""

    id: str
    type: Kind
    publisher: str
    arch: str
    compatibility_type: Literal["mlx"] = "mlx"
    quantization: str
    state: Literal["loaded", "not-loaded"]
    max_context_length: int | None
    loaded_context_length: int | None = None
    capabilities: list[str]
    object: Literal["model"] = "model"


def routes(api: Api) -> list[BaseRoute]:
    models = LMStudioModels(api)
    return [
        *both("/api/v0/models", models.listed),
        *both("/api/v0/models/{id:path}", models.one, answer=ListedModel),
        *_as(api, "/chat/completions"),
        *_as(api, "/completions"),
        *both("/api/v0/embeddings", embedding(api), "POST", body=EmbeddingRequest, answer=EmbeddingReply),
    ]


class Stats(Struct, kw_only=True):
    tokens_per_second: float
    time_to_first_token: float  # seconds
    generation_time: float  # seconds
    stop_reason: str


class ModelFacts(Struct, kw_only=True):
    arch: str
    quant: str
    format: Literal["mlx"] = "mlx"
    context_length: int | None


class Runtime(Struct, kw_only=True):
    name: Literal["pippin"] = "pippin"
    version: str = __version__
    supported_formats: tuple[str, ...] = ("mlx",)


class Added(Struct, kw_only=True):
    """What LM Studio's answers have beside OpenAI's."""

    stats: Stats
    model_info: ModelFacts
    runtime: Runtime = field(default_factory=Runtime)


STOP_REASON: Final[dict[FinishReason, str]] = {
    "stop": "eosFound",
    "length": "maxPredictedTokensReached",
    "tool_calls": "toolCalls",
}


def stats_of(finished: Sequence[Finished]) -> Stats:
    """The figures of one request, whose choices ran beside one another."""
    times = max((each.timings for each in finished), key=lambda times: times.decode)
    seconds = times.decode / 1000
    tokens = sum(each.usage.completion_tokens for each in finished)
    last = finished[-1]
    return Stats(
        tokens_per_second=tokens / seconds if seconds > 0 else 0.0,
        time_to_first_token=(times.queue + times.prefill) / 1000,
        generation_time=seconds,
        stop_reason="stopStringFound" if last.stop_sequence is not None else STOP_REASON[last.reason],
    )


class StatsEncoder:
    """Adds LM Studio's fields to a whole answer, and to the chunks that end a choice or a stream."""

    def __init__(self, inner: Encoder, info: Callable[[], ModelInfo | None]) -> None:
        self._inner, self._info = inner, info
        self._finished: list[Finished] = []
        self.start, self.keep_alive, self.failed = inner.start, inner.keep_alive, inner.failed

    def event(self, event: Event, request: int = 0) -> bytes:
        frames = self._inner.event(event, request)
        if not isinstance(event, Finished):
            return frames
        self._finished.append(event)
        return self._extended(frames, b"\n\n")

    def end(self) -> bytes:
        frames = self._inner.end()
        return self._extended(frames.removesuffix(DONE), b"\n\n") + DONE if frames != DONE else frames

    def whole(self, completions: Sequence[Completion]) -> bytes:
        self._finished = [each.finished for one in completions for each in one.choices]
        return self._extended(self._inner.whole(completions), b"")

    def _extended(self, body: bytes, end: bytes) -> bytes:
        info = self._info()
        if not self._finished or info is None or not body.endswith(b"}" + end):
            return body
        facts = ModelFacts(
            arch=info.architecture or info.kind,
            quant=info.quantization or info.dtype or "unknown",
            context_length=info.context_window,
        )
        added = msgspec.json.encode(Added(stats=stats_of(self._finished), model_info=facts))
        return body.removesuffix(b"}" + end) + b"," + added[1:] + end


class StatsDialect(OpenAIErrors, Dialect[Any]):
    """A dialect of OpenAI's, whose answers have LM Studio's fields."""

    def __init__(self, dialect: AnyDialect, info: Callable[[str], ModelInfo | None]) -> None:
        self.name, self.path, self.id_prefix = dialect.name, dialect.path, dialect.id_prefix
        self.contract = dialect.contract
        assert dialect.answer is not None
        name = f"LMStudio{dialect.answer.__name__}"
        self.answer = msgspec.defstruct(
            name, list(Added.__annotations__.items()), bases=(dialect.answer,), kw_only=True
        )
        self._inner, self._info = dialect, info

    def decode(self, body: bytes, context: DecodeContext) -> Decoded[Any]:
        return self._inner.decode(body, context)

    def encoder(self, shape: Any, run: RunInfo) -> Encoder:
        return StatsEncoder(self._inner.encoder(shape, run), lambda: self._info(run.model))


def _as(api: Api, path: str) -> Sequence[BaseRoute]:
    """Answers as OpenAI's address of the same name, with figures of its speed."""
    dialect, address = StatsDialect(api.dialects[path], api.service.pool.info), f"/api/v0{path}"
    endpoint = endpoint_of(api.handler, dialect)
    return both(address, endpoint, "POST", body=dialect.contract.body, answer=dialect.answer)


def listed(info: ModelInfo, state: ModelState | None) -> ListedModel:
    is_loaded = state is not None and state.state == "loaded"
    writes: Kind = "vlm" if info.capabilities.images else "llm"
    return ListedModel(
        id=info.id,
        type="embeddings" if info.kind == "embeddings" else writes,
        publisher=info.id.partition("/")[0] if "/" in info.id else "local",
        arch=info.architecture or info.kind,
        quantization=info.quantization or info.dtype or "unknown",
        state="loaded" if is_loaded else "not-loaded",
        max_context_length=info.context_window,
        loaded_context_length=info.context_window if is_loaded else None,
        capabilities=["tool_use"] if info.capabilities.tools else [],
    )


class LMStudioModels(Struct, frozen=True):
    api: Api

    async def listed(self, request: Request) -> Response:
        """The models that are here"""
        found, states = await self.api.models(request), self._states()
        kinds = ("language", "embeddings", "scripted")
        data = [listed(info, states.get(info.id)) for info in found if info.kind in kinds]
        return json_reply({"object": "list", "data": data})

    async def one(self, request: Request) -> Response:
        """What is known of one model"""
        info = await self.api.model(request, request.path_params["id"])
        return json_reply(listed(info, self._states().get(info.id)))

    def _states(self) -> dict[str, ModelState]:
        return {state.id: state for state in self.api.service.pool.states()}
