"""Attachments of a conversation, by field, in the order in which prompts name them."""

from pippin.core.conversation import Document, Image, Inline, Message, Text, ToolResult, Video
from pippin.core.tasks import attachments, media_parts

SOURCE = Inline(b"")
OWN, SHOWN, NAMED = Image(SOURCE), Video(SOURCE), Image(SOURCE, field="input[3]")
MESSAGES = (
    Message("user", (Text("Look"), NAMED)),
    Message("user", (OWN, ToolResult("a", (Text("said"), SHOWN)), Document(SOURCE))),
)


def test_those_of_tool_results_come_before_their_message_s_own() -> None:
    assert list(attachments(MESSAGES)) == [
        ("input[3]", NAMED, 0),
        ("messages[1].content[1].content[1]", SHOWN, 1),
        ("messages[1].content[0]", OWN, 1),
        ("messages[1].content[2]", Document(SOURCE), 1),
    ]


def test_documents_are_no_media() -> None:
    assert [part for _, part in media_parts(MESSAGES)] == [NAMED, SHOWN, OWN]
