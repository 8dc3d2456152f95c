"""Makes a request's attachments readable: documents become text, and what the model cannot take becomes a line.

An agent sends its whole conversation with every request. If a picture in it were refused each time, the conversation
could never go on. So only the user's newest question is refused, unless the operator says otherwise.
"""

import importlib.util
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable
from typing import Final

from msgspec.structs import replace

from pippin.config.errors import install_command
from pippin.config.options.model import UnreadableMedia
from pippin.core.conversation import (
    Attachment,
    Audio,
    Document,
    Image,
    Inline,
    Missing,
    Part,
    Text,
    Video,
)
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Change, attachments, newest_question, with_attachments
from pippin.engines.attachments.documents import Documents

KINDS: Final[dict[type[Attachment], tuple[str, str]]] = {
    Image: ("image", "picture"),
    Audio: ("audio", "sound"),
    Video: ("video", "video"),
    Document: ("document", "document"),
}
"""The modality of a part, and the word for it."""
FEWER: Final = "this model takes fewer of them in a request"
NO_PLACE: Final = "this model takes none at this place of a conversation"


class AttachmentReader:
    """Makes attachments readable for one model. Several threads may use it at once."""

    def __init__(self, policy: UnreadableMedia) -> None:
        self._policy = policy
        self._documents = Documents()

    def read(self, request: GenerationRequest, taken: Container[str]) -> "Readable":
        """The request with attachments that the model can take, which are of the modalities `taken`.

        Raises `ServerError` naming an attachment that can't be read, or not by this model, where it may not be left
        out.
        """
        question = newest_question(request.messages or (), continued=request.continue_final)
        # An answer to a question about a picture that was left out would be worth nothing.
        all_needed = self._policy == "refuse" or bool(request.decisions)
        readable = Readable(
            request, lambda index: all_needed or (self._policy == "auto" and index == question)
        )
        readable.change(lambda part, where, index: self._read(readable, part, where, index, taken))
        return readable

    def _read(
        self, readable: "Readable", part: Attachment, where: str, index: int, taken: Container[str]
    ) -> Iterable[Part]:
        modality, _ = KINDS[type(part)]
        try:
            if isinstance(part.source, Missing):
                raise ServerError.of(part.source.report)
            if isinstance(part, Document):
                return self._documents.parts(part, where, sees="image" in taken)
        except ServerError as error:
            return readable.leave_out(part, index, _reason(error.report), error)
        if modality in taken:
            return (replace(part, field=where),)
        refusal, reason = _not_taken(modality, where, taken)
        return readable.leave_out(part, index, reason, refusal)


class Readable:
    """A request whose attachments are made readable, and what was left out of it."""

    def __init__(self, request: GenerationRequest, is_needed: Callable[[int], bool]) -> None:
        """`is_needed` says of a message, by its index, whether nothing of it may be left out."""
        self.request = request
        self._is_needed = is_needed
        self._left = Counter[str]()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Whole sentences on what was left out."""
        if not self._left:
            return ()
        counts = ", ".join(f"{count} x {kind}" for kind, count in self._left.items())
        return (f"A line in the prompt says in the place of each what was left out of it: {counts}.",)

    def change(self, change: Change) -> None:
        if self.request.messages is not None:
            changed = with_attachments(self.request.messages, change)
            self.request = replace(self.request, messages=changed)

    def leave_out(
        self, part: Attachment, index: int, reason: str, refusal: ServerError | None = None
    ) -> tuple[Part, ...]:
        """The line in the place of an attachment. Raises `refusal` if it may not be left out."""
        if refusal is not None and self._is_needed(index):
            raise refusal
        _, word = KINDS[type(part)]
        self._left[word] += 1
        facts = _facts(part)
        return (Text(f"[{word.capitalize()} left out{facts and ': '}{facts}: {reason}.]", apart=True),)

    def leave_out_for(self, report: ErrorReport) -> bool:
        """Leave out what has led to a refusal; False if nothing that may be left out has."""
        if report.kind not in ("invalid_request", "unsupported"):
            return False
        listed = list(attachments(self.request.messages or ()))
        free = {where for where, _, index in listed if ".pages[" in where or not self._is_needed(index)}
        place = next((n for n, (where, *_) in enumerate(listed) if where == report.param), None)
        if place is None:
            going, reason = free if report.param == "messages" else set(), NO_PLACE
        else:
            kind = type(listed[place][1])
            going = {where for where, part, _ in listed[:place] if type(part) is kind} & free
            reason = FEWER
            # Too many where it could be read alone, of which the newest are worth most; else it is at fault itself.
            if not going or (report.kind == "invalid_request" and report.param in free):
                going, reason = {report.param or ""} & free, _reason(report)
        self.change(
            lambda part, where, index: self.leave_out(part, index, reason) if where in going else (part,)
        )
        return bool(going)


def _not_taken(modality: str, where: str, taken: Container[str]) -> tuple[ServerError, str]:
    """The refusal of a modality, and the reason in a line."""
    if any(each in taken for each, _ in KINDS.values()):
        reason = f"this model takes no {modality}"
        message = f"T{reason[1:]}, and '{where}' is one. Leave it out, or choose a model that takes it."
        return ServerError("unsupported", message, where), reason
    hint = (
        ""
        if importlib.util.find_spec("mlx_vlm")
        else f" To serve models that take pictures and sound, install what they need: {install_command('vision')}"
    )
    message = (
        f"This model takes text only, and '{where}' is of the type {modality}. Leave it out, or choose a model that "
        f"takes such input.{hint}"
    )
    return ServerError("unsupported", message, where), "this model reads text only"


def _reason(report: ErrorReport) -> str:
    """The cause in a refusal, without its field, which is another one in every request, and without its advice."""
    param = report.param or ""
    told = re.sub(f"(['`]?){re.escape(param)}\\1", "it", report.message) if param else report.message
    told = re.split(r"[.;] |\.$", told, maxsplit=1)[0]
    return told[:1].lower() + told[1:]


def _facts(part: Attachment) -> str:
    """The media type and the name of an attachment, as far as they are known."""
    if not isinstance(part.source, Inline):
        return ""
    if isinstance(part, Document):
        return ", ".join(filter(None, ("application/pdf", part.name)))
    return part.source.mime or (f"audio/{part.format}" if isinstance(part, Audio) and part.format else "")
