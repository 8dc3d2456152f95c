"""`POST /v1/responses/compact`: replaces a conversation with its user messages and a summary."""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from pippin.api.dialects.base import DecodeContext, Decoded, Dialect, Encoder, History, RunInfo
from pippin.api.dialects.responses.answer import CompactedConversation, stored_items, usage_of
from pippin.api.dialects.responses.dialect import ResponsesDialect
from pippin.api.dialects.responses.encode import ID_PREFIX, response_id
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


class CompactionEncoder(Encoder):
    """Encodes whole answers only: `decode` refuses streams."""

    def __init__(self, kept: tuple[Item, ...], run: RunInfo) -> None:
        self._kept = kept
        self._run = run

    def whole(self, completions: Sequence[Completion]) -> bytes:
        [choice] = completions[0].choices
        summary = {
            "id": f"cmp_{self._run.id}",
            "type": "compaction",
            "encrypted_content": seal(choice.text("text").strip()),
        }
        kept = stored_items(self._kept, self._run.id, History().item)
        usage = choice.finished.usage if choice.finished is not None else Usage()
        answer = CompactedConversation(
            id=response_id(self._run),
            created_at=self._run.created,
            output=[*kept, summary],
            usage=usage_of(usage),
        )
        return msgspec.json.encode(answer)


class CompactionDialect(OpenAIErrors, Dialect[tuple[Item, ...]]):
    """Reads the body like that of a response, and asks for a summary instead of an answer.

    The instruction comes last, so that the conversation's prefix in the cache is reused.
    """

    name = "responses_compact"
    path = "/responses/compact"
    id_prefix = ID_PREFIX
    contract = ResponsesDialect.contract
    answer = CompactedConversation
    encoding = CompactionEncoder

    def __init__(self) -> None:
        self._responses = ResponsesDialect()

    def decode(self, body: bytes, context: DecodeContext) -> Decoded[tuple[Item, ...]]:
        if decode_json(body, ModelName).model is None:
            raise invalid("model", "is required: name the model that writes the summary.")
        decoded = self._responses.decode(body, context)
        if decoded.stream:
            raise unsupported("stream", "a compaction is answered in one piece; leave it out.")
        [asked] = decoded.requests
        previous = decoded.shape.draft.previous_response_id
        before = [] if previous is None else context.history.items(previous)
        said = (item for item in (*before, *decoded.shape.input) if item.get("role") == "user")
        return Decoded(
            requests=(summary_request(asked),),
            shape=tuple(said),
            ignored=decoded.ignored,
            warnings=decoded.warnings,
        )
