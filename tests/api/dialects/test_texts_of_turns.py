"""Texts of one message stay apart from each other, and go on in a line of their own where turns are merged."""

from pippin.api.dialects.gemini.content import Content, ContentPart, ContentsReader
from pippin.api.dialects.messages.content import MessageParam, MessagesReader
from pippin.core.conversation import Message, Text


def test_geminis_contents_in_a_row_are_lines_and_their_parts_are_not() -> None:
    reader = ContentsReader()
    parts = (ContentPart(text="a"), ContentPart(text="b"))
    reader.system(Content(parts=parts), "system_instruction")
    reader.read((Content(parts=parts, role="user"), Content(parts=parts, role="user")))
    assert reader.messages == [
        Message("system", (Text("a"), Text("b"))),
        Message("user", (Text("a"), Text("b\na"), Text("b"))),
    ]


def test_the_lists_of_anthropics_system_and_turns_stay_lists() -> None:
    reader, texts = MessagesReader(), [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    reader.system(texts)
    reader.read([MessageParam(role="user", content=texts), MessageParam(role="user", content=texts)])
    assert [message.parts for message in reader.messages] == [
        (Text("a"), Text("b")),
        (Text("a"), Text("b\na"), Text("b")),
    ]
