"""What a model can't take becomes a line, or is refused, by where it stands and by what the operator says."""

import io
from typing import Any

import pytest
from PIL import Image as PillowImage

from pippin.core.conversation import (
    Audio,
    Document,
    Image,
    Inline,
    Message,
    Missing,
    Text,
    ToolCall,
    ToolResult,
    Video,
)
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import newest_question
from pippin.engines.attachments.reading import AttachmentReader, Readable
from tests.engines.attachments.pdfs import pdf


def png(width: int, height: int) -> bytes:
    file = io.BytesIO()
    PillowImage.new("RGB", (width, height)).save(file, "PNG")
    return file.getvalue()


PICTURE = Image(Inline(png(640, 480), "image/png"))
LINE = Text("[Picture left out: image/png: this model reads text only.]", apart=True)


def user(*parts: Any) -> Message:
    return Message("user", tuple(Text(part) if isinstance(part, str) else part for part in parts))


ANSWER = Message("assistant", (Text("A"),))
CALL = Message("assistant", (ToolCall("1", "f", "{}"),))


def result(*parts: Any) -> Message:
    return Message("tool", (ToolResult("1", parts),))


def read(*messages: Message, policy: Any = "auto", taken: tuple[str, ...] = (), **more: Any) -> Readable:
    return AttachmentReader(policy).read(GenerationRequest(model="", messages=messages, **more), taken)


def said(readable: Readable) -> list[Any]:
    parts = [part for message in readable.request.messages or () for part in message.parts]
    return [inner for part in parts for inner in (part.parts if isinstance(part, ToolResult) else (part,))]


@pytest.mark.parametrize(
    "messages",
    [
        (user(PICTURE), ANSWER, user("Q")),
        (user(PICTURE), user("Q")),
        (user("Q"), CALL, result(PICTURE)),
        (user("Q"), CALL, result(PICTURE), user("Q")),
        (Message("system", (PICTURE,)), user("Q")),
        (user(PICTURE), CALL, result(Text("R"))),
        (user("Q"), CALL, result(Text("R")), user(PICTURE)),
        (user("Q"), CALL, result(Text("R")), user(PICTURE), user(PICTURE)),
        (user("Q"), CALL, result(Text("R")), user("Attached media from tool result:", PICTURE)),
        (user("Q"), CALL, result(Text("R")), user("<image name=[Image #1]>", PICTURE, "</image>")),
        (user("Q"), CALL, user(ToolResult("1", (Text("R"),)), PICTURE)),
    ],
    ids=[
        "an earlier turn",
        "an unanswered turn",
        "a result",
        "an earlier result",
        "system",
        "before a call",
        "behind a result",
        "two behind a result",
        "announced behind a result",
        "in tags behind a result",
        "beside a result",
    ],
)
def test_a_picture_that_would_end_the_conversation_becomes_a_line(messages: tuple[Message, ...]) -> None:
    found = read(*messages)
    assert LINE in said(found)
    assert PICTURE not in said(found)
    assert found.warnings == (
        "A line in the prompt says in the place of each what was left out of it: "
        f"{said(found).count(LINE)} x picture.",
    )


@pytest.mark.parametrize(
    "messages",
    [
        (user("Q"), ANSWER, user("look", PICTURE)),
        (user(PICTURE), Message("system", (Text("S"),))),
        (user("Q"), CALL, result(Text("R")), user("look", PICTURE)),
        (user("Q"), CALL, result(Text("R")), user("look"), user(PICTURE)),
        (user("Q"), ANSWER, user(PICTURE)),
        (user(PICTURE),),
    ],
)
def test_the_users_newest_question_is_refused_by_its_field(messages: tuple[Message, ...]) -> None:
    with pytest.raises(ServerError, match="text only") as caught:
        read(*messages)
    assert caught.value.report.kind == "unsupported"
    assert (caught.value.report.param or "").startswith("messages[")


def test_the_beginning_of_an_answer_does_not_answer_the_question() -> None:
    assert newest_question([user("Q"), ANSWER], continued=True) == 0
    with pytest.raises(ServerError):
        read(user(PICTURE), ANSWER, continue_final=True)


def test_operators_may_refuse_all_or_describe_all() -> None:
    assert LINE in said(read(user(PICTURE), policy="describe"))
    with pytest.raises(ServerError):
        read(user("Q"), CALL, result(PICTURE), policy="refuse")


@pytest.mark.parametrize(
    ("part", "line"),
    [
        (Image(Inline(b"x", "image/tiff")), "[Picture left out: image/tiff: this model reads text only.]"),
        (Image(Inline(b"x")), "[Picture left out: this model reads text only.]"),
        (Audio(Inline(b"x"), "wav"), "[Sound left out: audio/wav: this model reads text only.]"),
        (Video(Inline(b"x", "video/mp4")), "[Video left out: video/mp4: this model reads text only.]"),
        (
            Document(Inline(b"%PDF-"), "a.pdf"),
            "[Document left out: application/pdf, a.pdf: it can't be read as PDF: it is damaged or cut off.]",
        ),
        (
            Image(Missing(ErrorReport(kind="invalid_request", message="x could not be fetched.", param="x"))),
            "[Picture left out: it could not be fetched.]",
        ),
    ],
)
def test_the_line_says_what_is_known(part: Any, line: str) -> None:
    assert said(read(user(part), ANSWER, user("Q"))) == [Text(line, apart=True), Text("A"), Text("Q")]


def test_media_that_the_model_takes_stay_and_others_go() -> None:
    found = read(user(PICTURE, Video(Inline(b"x"))), ANSWER, user("Q"), taken=("image",))
    kept, line, *_ = said(found)
    assert kept.source == PICTURE.source
    assert kept.field == "messages[0].content[0]"
    assert line == Text("[Video left out: this model takes no video.]", apart=True)


def test_a_document_is_text_to_all_and_pictures_to_those_that_see() -> None:
    paper = Document(Inline(pdf("Wombats")))
    [text] = said(read(user(paper)))
    assert "Wombats" in text.text
    shown = said(read(user(paper), taken=("image",)))
    assert [type(part) for part in shown] == [Text, Image]


def test_what_is_refused_later_is_left_out_where_it_may_be() -> None:
    def refused(readable: Readable, kind: Any, param: str) -> bool:
        return readable.leave_out_for(
            ErrorReport(kind=kind, message=f"'{param}' is odd; send less.", param=param)
        )

    def conversation() -> Readable:
        return read(user(PICTURE), ANSWER, user(PICTURE), ANSWER, user(PICTURE), taken=("image",))

    damaged = conversation()
    assert refused(damaged, "invalid_request", "messages[2].content[0]")
    assert said(damaged)[2] == Text("[Picture left out: image/png: it is odd.]", apart=True)
    assert [type(part) for part in said(damaged)].count(Image) == 2

    crowded = conversation()
    assert refused(crowded, "unsupported", "messages[4].content[0]")
    assert [type(part) for part in said(crowded)] == [Text, Text, Text, Text, Image]
    assert "fewer of them" in said(crowded)[0].text
    assert not refused(crowded, "unsupported", "messages[4].content[0]"), "the newest is refused"

    misplaced = conversation()
    assert refused(misplaced, "invalid_request", "messages")
    assert [type(part) for part in said(misplaced)].count(Image) == 1
    assert not refused(misplaced, "invalid_request", "messages")
    assert not refused(conversation(), "invalid_request", "temperature")
    assert not refused(conversation(), "context_length_exceeded", "messages"), "the client must shorten it"
