"""The dialects of Ollama: conversations (`/api/chat`) and single prompts (`/api/generate`)."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from pippin.api.dialects.base import DecodeContext, Decoded, Dialect, RunInfo
from pippin.api.dialects.ollama.body import ACCEPTED, OllamaFields, model_of, with_fields
from pippin.api.dialects.ollama.encode import (
    ID_PREFIX,
    LINES,
    AnswerLine,
    OllamaEncoder,
    OllamaError,
    OllamaShape,
)
from pippin.api.dialects.ollama.messages import (
    GivenTool,
    Images,
    OllamaMessage,
    images_of,
    messages_of,
    tools_of,
)
from pippin.api.dialects.shared.fields import Contract, called, invalid
from pippin.core.conversation import Message, Text
from pippin.core.errors import ErrorReport
from pippin.core.requests import GenerationRequest

TEMPLATE: Final = "a template can only be set by the operator (`--chat-template-file`)."


class ChatBody(OllamaFields, kw_only=True, omit_defaults=True):
    messages: Annotated[
        tuple[OllamaMessage, ...], Meta(description="The conversation so far; none loads the model.")
    ] = ()
    tools: Annotated[tuple[GivenTool, ...] | None, Meta(description="Functions that may be called.")] = None


class GenerateBody(OllamaFields, kw_only=True, omit_defaults=True):
    prompt: Annotated[str, Meta(description="What the user says; none loads the model.")] = ""
    suffix: Annotated[
        str | None, Meta(description="Text after the gap, for models with fill-in-the-middle tokens.")
    ] = None
    system: Annotated[str | None, Meta(description="A system message before the prompt.")] = None
    images: Annotated[Images | None, Meta(description="Images as base64, for models that see.")] = None
    raw: Annotated[bool | None, Meta(description="Give the prompt to the model as it is.")] = None


class _OllamaDialect(Dialect[OllamaShape]):
    """The part that both dialects share."""

    id_prefix = ID_PREFIX
    answer = AnswerLine
    failure = OllamaError
    media = LINES

    def encoder(self, decoded: Decoded[OllamaShape], run: RunInfo) -> OllamaEncoder:
        return OllamaEncoder(decoded.shape, run)

    def error(self, report: ErrorReport, request_id: str) -> bytes:
        return msgspec.json.encode(OllamaError(error=report.message))


class OllamaChatDialect(_OllamaDialect):
    name = "ollama_chat"
    path = "/api/chat"
    contract = Contract(ChatBody, ACCEPTED, {"template": TEMPLATE})

    def decode(self, body: bytes, context: DecodeContext) -> Decoded[OllamaShape]:
        fields, ignored = self.contract.decode(body)
        if not fields.messages:
            raise invalid("messages", "must hold at least one message.")
        request = GenerationRequest(
            model=model_of(fields.model), messages=messages_of(fields.messages), tools=tools_of(fields.tools)
        )
        return _decoded(with_fields(request, fields), fields, ignored, chat=True)


class OllamaGenerateDialect(_OllamaDialect):
    name = "ollama_generate"
    path = "/api/generate"
    contract = Contract(
        GenerateBody,
        ACCEPTED,
        {
            "template": TEMPLATE,
            "context": "it is the old form of a conversation; use /api/chat.",
            **dict.fromkeys(("width", "height", "steps"), "pictures are made by /v1/images/generations."),
        },
    )

    def decode(self, body: bytes, context: DecodeContext) -> Decoded[OllamaShape]:
        fields, ignored = self.contract.decode(body)
        if not fields.prompt and not fields.images:
            raise invalid("prompt", "must not be empty.")
        return _decoded(_prompted(fields), fields, ignored, chat=False)


def _prompted(fields: GenerateBody) -> GenerationRequest:
    model = model_of(fields.model)
    if fields.raw or fields.suffix:
        if fields.system or fields.images:
            name = "system" if fields.system else "images"
            raise invalid(name, "needs the chat template; leave out `raw` and `suffix`.")
        request = with_fields(
            GenerationRequest(model=model, prompt=fields.prompt, suffix=fields.suffix or None), fields
        )
        return replace(request, overflow=None)  # a raw prompt has no turns to drop
    said = (Text(fields.prompt),) if fields.prompt else ()
    user = Message("user", said + images_of(fields.images, "images"))
    system = (Message("system", (Text(fields.system),)),) if fields.system else ()
    request = with_fields(GenerationRequest(model=model, messages=(*system, user)), fields)
    return replace(request, names=(*request.names, *called(messages="prompt")))


def _decoded(
    request: GenerationRequest, fields: OllamaFields, ignored: tuple[str, ...], *, chat: bool
) -> Decoded[OllamaShape]:
    return Decoded(
        requests=(request,),
        shape=OllamaShape(
            model=fields.model,
            chat=chat,
            thinking=fields.think is not False,
            logprobs=bool(fields.logprobs),
        ),
        stream=fields.stream is not False,
        ignored=ignored,
    )


dialects = (OllamaChatDialect(), OllamaGenerateDialect())
