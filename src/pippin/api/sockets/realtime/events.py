"""The events on a connection. Their fields are those of OpenAI's package (`openai.types.realtime`)."""

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from pippin.api.dialects.shared.fields import Contract
from pippin.api.sockets.realtime.conversation import Item
from pippin.api.sockets.realtime.session import (
    PCM,
    Metadata,
    Modality,
    Pcm,
    Session,
    SessionFields,
    SharedFields,
)

EventId = Annotated[str, Meta(max_length=512)]

# What clients send


class ClientEvent(Struct, kw_only=True):
    type: str
    event_id: EventId | None = None


class SessionUpdate(ClientEvent, kw_only=True):
    session: SessionFields


class ItemCreate(ClientEvent, kw_only=True):
    item: Item
    previous_item_id: Annotated[str, Meta(max_length=64)] | None = None


class ItemNamed(ClientEvent, kw_only=True):
    item_id: Annotated[str, Meta(max_length=512)]


class SoundAppend(ClientEvent, kw_only=True):
    audio: str


class Plain(ClientEvent, kw_only=True):
    pass


class ResponseFields(SharedFields, kw_only=True):
    """The `response` of a `response.create`; its fields override the session's for this response."""

    conversation: Literal["auto"] | None = None
    input: Any = None
    metadata: Metadata | None = None


class ResponseCreate(ClientEvent, kw_only=True):
    response: ResponseFields | None = None


class ResponseCancel(ClientEvent, kw_only=True):
    response_id: Annotated[str, Meta(max_length=512)] | None = None


CONTRACTS: Final[dict[str, Contract[Any]]] = {
    "session.update": Contract(SessionUpdate),
    "conversation.item.create": Contract(ItemCreate),
    "conversation.item.retrieve": Contract(ItemNamed),
    "conversation.item.delete": Contract(ItemNamed),
    "input_audio_buffer.append": Contract(
        SoundAppend, refused={"sample_rate": "sound has the rate of the session's `audio.input.format`."}
    ),
    "input_audio_buffer.commit": Contract(
        Plain, refused={"pad_partial": "sound of any length is taken; leave it out."}
    ),
    "input_audio_buffer.clear": Contract(Plain),
    "response.create": Contract(ResponseCreate),
    "response.cancel": Contract(ResponseCancel),
}

REFUSED: Final = {
    "conversation.item.truncate": "an answer stays as it was written: delete the item, or cancel the response in time.",
    "output_audio_buffer.clear": "there is no WebRTC here: stop playing what was received.",
}
"""What to do instead of OpenAI's other events."""

# What the server sends


class Problem(Struct, kw_only=True):
    """The content of an error event; `event_id` is the id of the client's event that caused it."""

    type: str
    code: str | None
    message: str
    param: str | None = None
    event_id: str | None = None


class StatusDetails(Struct, kw_only=True, omit_defaults=True):
    type: Literal["cancelled", "incomplete", "failed"]
    reason: str | None = None
    error: dict[str, str | None] | None = None


class InputDetails(Struct, kw_only=True):
    text_tokens: int
    cached_tokens: int
    audio_tokens: int = 0
    image_tokens: int = 0


class OutputDetails(Struct, kw_only=True):
    text_tokens: int
    audio_tokens: int


class UsageFigures(Struct, kw_only=True):
    """`audio_tokens` are the tokens of the speech model, which spoke the language model's text."""

    total_tokens: int
    input_tokens: int
    output_tokens: int
    input_token_details: InputDetails
    output_token_details: OutputDetails


class SpokenAs(Struct, kw_only=True):
    format: Pcm = PCM
    voice: str


class ResponseAudio(Struct, kw_only=True):
    output: SpokenAs


class ResponseObject(Struct, kw_only=True):
    id: str
    object: Literal["realtime.response"] = "realtime.response"
    status: Literal["in_progress", "completed", "cancelled", "incomplete", "failed"] = "in_progress"
    status_details: StatusDetails | None = None
    output: list[Item]
    conversation_id: str
    output_modalities: tuple[Modality, ...]
    max_output_tokens: int | Literal["inf"]
    audio: ResponseAudio | UnsetType = UNSET
    metadata: dict[str, str] | None = None
    usage: UsageFigures | None = None
    warnings: list[str] | UnsetType = UNSET


class Part(Struct, kw_only=True):
    """A content part in the events about it."""

    type: Literal["text", "audio"]
    text: str | UnsetType = UNSET
    transcript: str | UnsetType = UNSET


class TranscriptionTokens(Struct, kw_only=True):
    audio_tokens: int
    text_tokens: int = 0


class TranscriptionUsage(Struct, kw_only=True):
    type: Literal["tokens"] = "tokens"
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_token_details: TranscriptionTokens


class ServerEvent(Struct, tag_field="type", kw_only=True):
    """`event_id` is set when the event is sent."""

    event_id: str = ""


class OfResponse(ServerEvent, kw_only=True):
    response_id: str


class OfItem(OfResponse, kw_only=True):
    item_id: str
    output_index: int


class OfPart(OfItem, kw_only=True):
    content_index: int = 0


class OfContent(ServerEvent, kw_only=True):
    item_id: str
    content_index: int


class OfSession(ServerEvent, kw_only=True):
    session: Session


class PlacedItem(ServerEvent, kw_only=True):
    previous_item_id: str | None
    item: Item


class OfOutput(OfResponse, kw_only=True):
    output_index: int
    item: Item


class WithPart(OfPart, kw_only=True):
    part: Part


class PartPiece(OfPart, kw_only=True):
    delta: str


class ItemPiece(OfItem, kw_only=True):
    delta: str


class SessionCreated(OfSession, tag="session.created", kw_only=True):
    pass


class SessionUpdated(OfSession, tag="session.updated", kw_only=True):
    pass


class ItemAdded(PlacedItem, tag="conversation.item.added", kw_only=True):
    pass


class ItemDone(PlacedItem, tag="conversation.item.done", kw_only=True):
    pass


class ItemRetrieved(ServerEvent, tag="conversation.item.retrieved", kw_only=True):
    item: Item


class ItemDeleted(ServerEvent, tag="conversation.item.deleted", kw_only=True):
    item_id: str


class TranscriptDelta(OfContent, tag="conversation.item.input_audio_transcription.delta", kw_only=True):
    delta: str


class TranscriptCompleted(
    OfContent, tag="conversation.item.input_audio_transcription.completed", kw_only=True
):
    transcript: str
    usage: TranscriptionUsage


class TranscriptFailed(OfContent, tag="conversation.item.input_audio_transcription.failed", kw_only=True):
    error: Problem


class SoundCommitted(ServerEvent, tag="input_audio_buffer.committed", kw_only=True):
    item_id: str
    previous_item_id: str | None


class SoundCleared(ServerEvent, tag="input_audio_buffer.cleared", kw_only=True):
    pass


class ErrorEvent(ServerEvent, tag="error", kw_only=True):
    error: Problem


class ResponseCreated(ServerEvent, tag="response.created", kw_only=True):
    response: ResponseObject


class ResponseDone(ServerEvent, tag="response.done", kw_only=True):
    response: ResponseObject


class OutputItemAdded(OfOutput, tag="response.output_item.added", kw_only=True):
    pass


class OutputItemDone(OfOutput, tag="response.output_item.done", kw_only=True):
    pass


class PartAdded(WithPart, tag="response.content_part.added", kw_only=True):
    pass


class PartDone(WithPart, tag="response.content_part.done", kw_only=True):
    pass


class TextDelta(PartPiece, tag="response.output_text.delta", kw_only=True):
    pass


class TextDone(OfPart, tag="response.output_text.done", kw_only=True):
    text: str


class SpokenDelta(PartPiece, tag="response.output_audio_transcript.delta", kw_only=True):
    pass


class SpokenDone(OfPart, tag="response.output_audio_transcript.done", kw_only=True):
    transcript: str


class SoundDelta(PartPiece, tag="response.output_audio.delta", kw_only=True):
    pass


class SoundDone(OfPart, tag="response.output_audio.done", kw_only=True):
    pass


class ArgumentsDelta(ItemPiece, tag="response.function_call_arguments.delta", kw_only=True):
    call_id: str


class ArgumentsDone(OfItem, tag="response.function_call_arguments.done", kw_only=True):
    call_id: str
    name: str
    arguments: str
