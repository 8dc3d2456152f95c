"""The body and the reply of `/v1/letters`."""

from typing import Annotated, Final

from msgspec import Meta, Struct

from pippin.api.dialects.shared.engine_fields import Name
from pippin.api.dialects.shared.fields import BOOKKEEPING, Contract
from pippin.core.events import LettersCounted
from pippin.core.tasks import CountLetters


class LettersRequest(Struct, kw_only=True):
    text: Annotated[str, Meta(description="Where letters are counted.")]
    model: Annotated[Name, Meta(description="Name of the model.")] = "default"


class LettersReply(Struct, kw_only=True):
    model: str
    count: int


CONTRACT: Final = Contract(
    LettersRequest, {"user": BOOKKEEPING}, {"alphabet": "the model has its own letters."}
)
CONTRACTS: Final = {"POST /v1/letters": CONTRACT}


def task_of(fields: LettersRequest) -> CountLetters:
    return CountLetters(fields.text)


def reply_of(model: str, found: LettersCounted) -> LettersReply:
    return LettersReply(model=model, count=found.count)
