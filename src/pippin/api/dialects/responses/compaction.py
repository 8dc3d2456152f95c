"""`POST /v1/responses/compact`: replaces a conversation with its user messages and a summary."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from pippin.api.dialects.base import DecodeContext, Decoded, Dialect, Encoder, RunInfo
from pippin.api.dialects.responses.answer import CompactedConversation, stored_items, usage_of
from pippin.api.dialects.responses.dialect import NoHistory, ResponsesDialect
from pippin.api.dialects.responses.encode import ID_PREFIX, ResponseShape, response_id
from pippin.api.dialects.responses.items import Item
from pippin.api.dialects.shared.fields import decode_json, invalid, unsupported
from pippin.api.dialects.shared.openai import OpenAIErrors
from pippin.api.dialects.shared.sealed_text import seal
from pippin.core.completion import Completion
from pippin.core.events import Usage
from pippin.service.summaries import summary_request


class ModelName(Struct):
    """Unlike a response, a compaction has no default model."""

    model: str | None = None


@dataclass(frozen=True, slots=True)
class CompactionShape:
    """The user's items in the conversation, which precede its summary."""

    kept: tuple[Item, ...]


class CompactionDialect(OpenAIErrors, Dialect[CompactionShape]):
    """Reads the body like that of a response, and asks for a summary instead of an answer.

    The instruction comes last, so that the conversation's prefix in the cache is reused.
    """

    name = "responses_compact"
    path = "/responses/compact"
    id_prefix = ID_PREFIX
    contract = ResponsesDialect.contract
    answer = CompactedConversation

    def __init__(self) -> None:
        self._responses = ResponsesDialect()

    def decode(self, body: bytes, context: DecodeContext) -> Decoded[CompactionShape]:
        if decode_json(body, ModelName).model is None:
            raise invalid("model", "is required: name the model that writes the summary.")
        decoded = self._responses.decode(body, context)
        if decoded.stream:
            raise unsupported("stream", "a compaction is answered in one piece; leave it out.")
        [asked] = decoded.requests
        return Decoded(
            requests=(summary_request(asked),),
            shape=CompactionShape(_said_by_users(decoded.shape, context)),
            ignored=decoded.ignored,
            warnings=decoded.warnings,
        )

    def encoder(self, decoded: Decoded[CompactionShape], run: RunInfo) -> "CompactionEncoder":
        return CompactionEncoder(decoded.shape, run)


class CompactionEncoder(Encoder):
    """Encodes whole answers only: `decode` refuses streams."""

    def __init__(self, shape: CompactionShape, run: RunInfo) -> None:
        self._shape = shape
        self._run = run

    def whole(self, completions: Sequence[Completion]) -> bytes:
        [choice] = completions[0].choices
        summary = {
            "id": f"cmp_{self._run.id}",
            "type": "compaction",
            "encrypted_content": seal(choice.text("text").strip()),
        }
        kept = stored_items(self._shape.kept, self._run.id, NoHistory().item)
        usage = choice.finished.usage if choice.finished is not None else Usage()
        answer = CompactedConversation(
            id=response_id(self._run),
            created_at=self._run.created,
            output=[*kept, summary],
            usage=usage_of(usage),
        )
        return msgspec.json.encode(answer)


def _said_by_users(shape: ResponseShape, context: DecodeContext) -> tuple[Item, ...]:
    history = context.history or NoHistory()
    previous = shape.draft.previous_response_id
    before = [] if previous is None else history.items(previous)
    return tuple(item for item in (*before, *shape.input) if item.get("role") == "user")
