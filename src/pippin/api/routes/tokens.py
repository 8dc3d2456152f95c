"""`/tokenize`, `/detokenize`, `/apply-template`: the models' own tokenizers, in vLLM's and llama.cpp's words."""

from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.body import read_json_body
from pippin.api.context import Api, both, json_reply
from pippin.api.dialects import openai_chat, openai_fields
from pippin.api.dialects.engine_fields import Name
from pippin.api.dialects.fields import Contract, decode_json, invalid
from pippin.core.events import Detokenized, Event, Rendered, Tokenized
from pippin.core.tasks import Detokenize, RenderTemplate, Task, Tokenize

TokenIds = Annotated[tuple[Annotated[int, Meta(ge=0, lt=2**48)], ...], Meta(max_length=1_000_000)]


class TokenizeRequest(Struct, kw_only=True):
    """A text (`prompt`, or llama.cpp's `content`), or a conversation as the chat template renders it."""

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


TEMPLATE = Contract(
    openai_chat.ChatRequest,
    openai_fields.ACCEPTED | dict.fromkeys(TokenizeRequest.__struct_fields__, "Of /tokenize."),
    {name: why for name, why in openai_chat.REFUSED.items() if name != "add_special_tokens"},
)


def routes(api: Api) -> list[BaseRoute]:
    tokens = TokenRoutes(api)
    return [
        *both("/tokenize", tokens.tokenize, "POST", body=TokenizeRequest),
        *both("/detokenize", tokens.detokenize, "POST", body=DetokenizeRequest),
        *both("/apply-template", tokens.apply_template, "POST", body=openai_chat.ChatRequest),
    ]


@dataclass(frozen=True)
class TokenRoutes:
    api: Api

    async def tokenize(self, request: Request) -> Response:
        body = await self._body(request)
        fields = decode_json(body, TokenizeRequest)
        with_pieces = bool(fields.with_pieces or fields.return_token_strs)
        text = fields.content if fields.prompt is None else fields.prompt
        if fields.messages is not None:
            rendered = await self._render(request, body)
            return json_reply(self._tokens_body(fields, rendered.tokens, ()))
        if text is None:
            raise invalid("prompt", "or `messages` or `content` is required.")
        special = fields.add_special_tokens
        if special is None:
            special = bool(fields.add_special) if fields.prompt is None else True
        result = await self._perform(request, Tokenize(text, special, with_pieces), fields.model)
        assert isinstance(result, Tokenized)
        return json_reply(self._tokens_body(fields, result.tokens, result.pieces))

    async def detokenize(self, request: Request) -> Response:
        fields = decode_json(await self._body(request), DetokenizeRequest)
        result = await self._perform(request, Detokenize(fields.tokens), fields.model)
        assert isinstance(result, Detokenized)
        return json_reply({"prompt": result.text, "content": result.text})

    async def apply_template(self, request: Request) -> Response:
        rendered = await self._render(request, await self._body(request))
        return json_reply({"prompt": rendered.text, "count": len(rendered.tokens)})

    async def _render(self, request: Request, body: bytes) -> Rendered:
        fields, _ = TEMPLATE.decode(body)
        wanted = openai_chat.request_of(fields)
        result = await self._perform(request, RenderTemplate(wanted), fields.model)
        assert isinstance(result, Rendered)
        return result

    def _tokens_body(
        self, fields: TokenizeRequest, ids: tuple[int, ...], pieces: tuple[bytes, ...]
    ) -> dict[str, Any]:
        spelled = [_piece(piece) for piece in pieces]
        tokens: list[Any] = list(ids)
        if fields.with_pieces and spelled:
            tokens = [{"id": number, "piece": piece} for number, piece in zip(ids, spelled, strict=True)]
        return {
            "count": len(ids),
            "max_model_len": self.api.service.model(fields.model).context_window,
            "tokens": tokens,
            "token_strs": spelled if fields.return_token_strs else None,
        }

    async def _body(self, request: Request) -> bytes:
        options = self.api.options
        return await read_json_body(request, options.max_body_mb, options.body_timeout)

    async def _perform(self, request: Request, task: Task, model: str) -> Event:
        events = await self.api.handler.perform(request, task, model=model, kind="tokens")
        return events[-1]


def _piece(raw: bytes) -> str | list[int]:
    """Text where it is text; bytes of a part of a character as numbers, as llama.cpp has it."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)
