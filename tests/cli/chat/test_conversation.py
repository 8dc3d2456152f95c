"""What was said: undone, asked again, kept and read again; and the words behind a slash."""

import json
from pathlib import Path

import pytest

from pippin.cli.chat.entry import read_entry
from pippin.cli.chat.session import HELP, Conversation, help_text, read_command
from pippin.config.errors import ConfigError


def talked() -> Conversation:
    conversation = Conversation("m", [], "Be kind.")
    for question in ("one", "two"):
        conversation.ask(question)
        conversation.answered(question.upper())
    return conversation


def test_the_system_prompt_comes_first() -> None:
    assert talked().prompt()[0] == {"role": "system", "content": "Be kind."}
    assert Conversation("m", []).prompt() == []


def test_undo_takes_a_question_with_its_answer() -> None:
    conversation = talked()
    assert conversation.undo()
    assert [message["content"] for message in conversation.messages] == ["one", "ONE"]
    assert conversation.undo()
    assert not conversation.undo()


def test_retry_keeps_the_question() -> None:
    conversation = talked()
    assert conversation.take_back_answer()
    assert conversation.messages[-1] == {"role": "user", "content": "two"}
    assert not Conversation("m", []).take_back_answer()


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "kept" / "trip.json"
    talked().save(path)
    assert Conversation.load(path) == talked()


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"model": "m"}',
        json.dumps({"model": 3, "messages": []}),
        '{"model":"m","messages":[{"role":"x","content":""}]}',
    ],
)
def test_another_file_is_refused_in_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ConfigError, match="is not a conversation"):
        Conversation.load(tmp_path / "x.json")


def test_a_word_behind_a_slash_is_a_command_and_a_path_is_none() -> None:
    assert read_command("/save  my trip ") == ("save", "my trip")
    assert read_command("/exit") == ("bye", "")
    assert read_command("/?") == ("help", "")
    assert read_command("/etc/hosts is odd, why?") is None
    assert read_command("hello /bye") is None
    with pytest.raises(ConfigError, match="Did you mean `/retry`"):
        read_command("/rety")


def test_help_names_every_command() -> None:
    assert all(f"/{name}" in help_text() for name in HELP)


def test_three_quotes_begin_and_end_a_text_of_several_lines() -> None:
    lines = iter(['"""one', "  two", 'three"""', " plain ", '"""short"""'])
    entries = [read_entry(lambda mark: next(lines)) for _ in range(3)]
    assert entries == ["one\n  two\nthree", "plain", "short"]
