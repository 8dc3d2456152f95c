"""Files that a prompt names become parts of the message."""

import base64
from pathlib import Path

import pytest

from pippin.cli.chat.attachments import attach, named_files, read_prompt
from pippin.config.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, data in {
        "cat.png": b"png",
        "my cat.PNG": b"png",
        "song.mp3": b"mp3",
        "clip.mp4": b"mp4",
        "log.txt": b"a line",
        "a.pdf": b"%PDF-1.7",
        "data.bin": b"\xff\xfe\x00",
    }.items():
        (tmp_path / name).write_bytes(data)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("what is in cat.png?", ["cat.png"]),
        (r"what is in my\ cat.PNG and cat.png", ["my cat.PNG", "cat.png"]),
        ("'my cat.PNG' and \"cat.png\"", ["my cat.PNG", "cat.png"]),
        ("cat.png, cat.png", ["cat.png"]),
        ("read log.txt", []),
        ("read @log.txt.", ["log.txt"]),
        ("mail me@log.txt", []),
        ("hello @nobody and dog.png", []),
        ("x" * 5000 + ".png", []),
    ],
)
def test_media_are_named_by_their_path_and_other_files_behind_an_at(
    folder: Path, text: str, names: list[str]
) -> None:
    assert [str(path) for path in named_files(text)] == names


def test_each_kind_of_file_becomes_the_part_that_the_api_has_for_it(folder: Path) -> None:
    content, files = read_prompt("look at cat.png song.mp3 clip.mp4 @log.txt @a.pdf")
    assert [path.name for path in files] == ["cat.png", "song.mp3", "clip.mp4", "log.txt", "a.pdf"]
    assert content == [
        {
            "type": "image_url",
            "image_url": {"url": f"data:image/png;base64,{base64.b64encode(b'png').decode()}"},
        },
        {
            "type": "input_audio",
            "input_audio": {"data": base64.b64encode(b"mp3").decode(), "format": "mp3"},
        },
        {
            "type": "video_url",
            "video_url": {"url": f"data:video/mp4;base64,{base64.b64encode(b'mp4').decode()}"},
        },
        {"type": "text", "text": "File log.txt:\n\na line"},
        {
            "type": "file",
            "file": {
                "filename": "a.pdf",
                "file_data": f"data:application/pdf;base64,{base64.b64encode(b'%PDF-1.7').decode()}",
            },
        },
        {"type": "text", "text": "look at cat.png song.mp3 clip.mp4 @log.txt @a.pdf"},
    ]


def test_a_prompt_without_files_is_its_text(folder: Path) -> None:
    assert read_prompt("hello") == ("hello", ())


@pytest.mark.parametrize(
    ("name", "said"),
    [("data.bin", "neither text nor a picture"), ("none.txt", "No such file"), (".", "directory")],
)
def test_what_can_not_be_attached_is_said(folder: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        attach(Path(name))
