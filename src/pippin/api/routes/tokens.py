"""The models' tokenizers: `/tokenize`, `/detokenize`, `/tokenizer_info`, `/apply-template`, in vLLM's and llama.cpp's
form, and `/v1/messages/count_tokens`."""

import asyncio
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.answers.handler import Result
from pippin.api.dialects.chat import dialect as openai_chat
from pippin.api.dialects.messages.dialect import MessagesBody, MessagesDialect, TokenCount
from pippin.api.dialects.shared import openai
from pippin.api.dialects.shared.engine_fields import Name
from pippin.api.dialects.shared.fields import Contract, decode_json, invalid
from pippin.api.routing import Api, both, json_reply
from pippin.core.events import Detokenized, Rendered, Tokenized
from pippin.core.published import chat_templates, object_in, table
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Detokenize, RenderTemplate, Task, Tokenize

TOLD: Final = "tokenizer_class", "model_max_length", "bos_token", "eos_token", "pad_token", "unk_token"
ID_BYTES: Final = 8  # approximate size of a token in an answer
PIECE_BYTES: Final = 100

TokenIds = Annotated[tuple[Annotated[int, Meta(ge=0, lt=2**48)], ...], Meta(max_length=1_000_000)]


class TokenizeRequest(Struct, kw_only=True):
    """The text to tokenize (llama.cpp's `content`, vLLM's `prompt`), or a conversation."""

    model: Name = "default"
    messages: list[dict[str, Any]] | None = None
    prompt: str | None = None
    content: str | None = None
    add_special_tokens: bool | None = None  # vLLM's; true by default
    add_special: bool | None = None  # llama.cpp's; false by default
    return_token_strs: bool | None = None
    with_pieces: bool | None = None


class DetokenizeRequest(Struct, kw_only=True):
    tokens: TokenIds
    model: Name = "default"


TOKENIZE, DETOKENIZE = Contract(TokenizeRequest), Contract(DetokenizeRequest)
TEMPLATE = Contract(
    openai_chat.ChatRequest,
    openai.ACCEPTED | dict.fromkeys(TokenizeRequest.__struct_fields__, "Of /tokenize."),
    {name: why for name, why in openai_chat.dialect.contract.refused.items() if name != "add_special_tokens"},
)


COUNTING: Final = MessagesDialect(counting=True)


def routes(api: Api) -> list[BaseRoute]:
    tokens = TokenRoutes(api)
    return [
        *both("/tokenize", tokens.tokenize, "POST", body=TokenizeRequest),
        *both("/detokenize", tokens.detokenize, "POST", body=DetokenizeRequest),
        *both("/tokenizer_info", tokens.info),
        *both("/apply-template", tokens.apply_template, "POST", body=openai_chat.ChatRequest),
        *both("/messages/count_tokens", tokens.count, "POST", body=MessagesBody, answer=TokenCount),
    ]


class TokenRoutes(Struct, frozen=True):
    api: Api

    async def tokenize(self, request: Request) -> Response:
        handler = self.api.handler
        fields, conversation = await handler.fields_of(request, "tokenize", asked_of)
        with_pieces = bool(fields.with_pieces or fields.return_token_strs)
        text = fields.content if fields.prompt is None else fields.prompt
        if conversation is not None:
            rendered = await self._render(request, conversation)
            return await self._drawn(fields, rendered.tokens, ())
        if text is None:
            raise invalid("prompt", "or `messages` or `content` is required.")
        special = fields.add_special_tokens
        if special is None:
            special = bool(fields.add_special) if fields.prompt is None else True
        result = await self._perform(request, Tokenize(text, special, with_pieces), Tokenized, fields.model)
        return await self._drawn(fields, result.tokens, result.pieces)

    async def detokenize(self, request: Request) -> Response:
        fields = await self.api.handler.fields_of(request, "detokenize", DETOKENIZE.decode)
        result = await self._perform(request, Detokenize(fields.tokens), Detokenized, fields.model)
        reply = {"prompt": result.text, "content": result.text}
        return await self.api.handler.large.do(2 * len(result.text), json_reply, reply)

    async def apply_template(self, request: Request) -> Response:
        wanted = await self.api.handler.fields_of(request, "apply-template", conversation_of)
        rendered = await self._render(request, wanted)
        reply = {"prompt": rendered.text, "count": len(rendered.tokens)}
        return await self.api.handler.large.do(len(rendered.text), json_reply, reply)

    async def info(self, request: Request) -> Response:
        """The tokenizer's special tokens and its chat template, as vLLM has them; `?model=` names the model."""
        info = await self.api.model(request, request.query_params.get("model") or "default")
        return json_reply(
            {} if info.path is None else await asyncio.to_thread(tokenizer_info, Path(info.path))
        )

    async def count(self, request: Request) -> Response:
        return json_reply(TokenCount(input_tokens=await self.api.handler.count(request, COUNTING)))

    async def _render(self, request: Request, wanted: GenerationRequest) -> Rendered:
        return await self._perform(request, RenderTemplate(wanted), Rendered, wanted.model)

    async def _drawn(
        self, fields: TokenizeRequest, ids: tuple[int, ...], pieces: tuple[bytes, ...]
    ) -> Response:
        window = (await self.api.service.names.find(fields.model)).context_window
        size = len(ids) * (PIECE_BYTES if pieces else ID_BYTES)
        return await self.api.handler.large.do(
            size, lambda: json_reply(tokens_body(fields, ids, pieces, window))
        )

    async def _perform(self, request: Request, task: Task, kind: type[Result], model: str) -> Result:
        result, _ = await self.api.handler.task(request, task, kind, model=model, operation="tokens")
        return result


def asked_of(body: bytes) -> tuple[tuple[TokenizeRequest, GenerationRequest | None], tuple[str, ...]]:
    """The fields of a body of `/tokenize`, with its conversation if it has one instead of a text, and the names of
    unknown fields."""
    fields = decode_json(body, TokenizeRequest)
    if fields.messages is None:
        return (fields, None), TOKENIZE.decode(body)[1]
    if fields.prompt is not None or fields.content is not None:
        raise invalid("messages", "stand in place of `prompt` and `content`; leave one of them out.")
    wanted, unknown = conversation_of(body)
    return (fields, wanted), unknown


def conversation_of(body: bytes) -> tuple[GenerationRequest, tuple[str, ...]]:
    fields, unknown = TEMPLATE.decode(body)
    return openai_chat.request_of(fields), unknown


def tokenizer_info(folder: Path) -> dict[str, Any]:
    """What tokenizer_config.json says, without its writer's paths, and the usual chat template. Reads the disk."""
    settings = object_in(folder / "tokenizer_config.json")
    texts = {name: table(settings.get(name)).get("content", settings.get(name)) for name in TOLD}
    template = chat_templates(folder, settings.get("chat_template")).get("default")
    return {name: text for name, text in (texts | {"chat_template": template}).items() if text is not None}


def tokens_body(
    fields: TokenizeRequest, ids: tuple[int, ...], pieces: tuple[bytes, ...], window: int | None
) -> dict[str, Any]:
    spelled = [_piece(piece) for piece in pieces]
    tokens: list[Any] = list(ids)
    if fields.with_pieces and spelled:
        tokens = [{"id": number, "piece": piece} for number, piece in zip(ids, spelled, strict=True)]
    return {
        "count": len(ids),
        "max_model_len": window,
        "tokens": tokens,
        "token_strs": spelled if fields.return_token_strs else None,
    }


def _piece(raw: bytes) -> str | list[int]:
    """The text of a token; a token that is not valid UTF-8 is a list of byte values, as in llama.cpp."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)
