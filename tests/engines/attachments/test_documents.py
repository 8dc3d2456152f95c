"""Documents are read in a process of their own: what they hold is shown, and hostile ones cost a sentence."""

import io
import time
from pathlib import Path

import pytest
from PIL import Image as PillowImage

from pippin.core.conversation import Document, Image, Inline, Text
from pippin.core.errors import ServerError
from pippin.engines.attachments import documents
from pippin.engines.attachments.documents import Documents, read
from tests.engines.attachments.pdfs import bomb, deep, encrypted, pdf

TREES = {
    "a tree that holds itself": "<< /Type /Pages /Kids [2 0 R] /Count 1 >>",
    "a tree without pages": "<< /Type /Pages /Kids [] /Count 0 >>",
    "deep lists": "[" * 5000 + "]" * 5000,
    "a number for a tree": "7",
}


def parts(data: bytes, name: str = "", *, sees: bool = False) -> tuple[Text | Image, ...]:
    return Documents().parts(Document(Inline(data), name), "file", sees=sees)


def refusal(data: bytes) -> str:
    with pytest.raises(ServerError) as caught:
        parts(data)
    assert caught.value.report.param == "file"
    return caught.value.report.message


def test_pages_are_text_in_their_order() -> None:
    assert parts(pdf("First page", "Second page"), "a.pdf") == (
        Text(
            "[Document: a.pdf, application/pdf, 2 pages]\n[Page 1]\nFirst page\n[Page 2]\nSecond page",
            apart=True,
        ),
    )


def test_spaces_that_do_not_break_are_kept_and_control_characters_are_not() -> None:
    [shown] = parts(pdf("a\\240b\\001c"))
    assert isinstance(shown, Text)
    assert shown.text.endswith("a\xa0bc")


def test_a_model_that_sees_gets_each_page_as_a_picture_behind_its_text() -> None:
    first, drawn, second, again = parts(pdf("One", "Two"), sees=True)
    assert isinstance(first, Text)
    assert first.text.endswith("One")
    assert second == Text("[Page 2]\nTwo", apart=True)
    assert isinstance(drawn, Image)
    assert isinstance(again, Image)
    assert again.field == "file.pages[1]"
    assert isinstance(drawn.source, Inline)
    with PillowImage.open(io.BytesIO(drawn.source.data)) as picture:
        width, height = picture.size
        # The test's pages have a blue square of 200 points, 100 points from the left and from the bottom.
        assert picture.getpixel((200 * width // 612, height - 200 * height // 792)) == (0, 0, 255)
        assert 1_000_000 < width * height < 1_210_000


def test_pages_beyond_the_bounds_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MOST_PICTURES", 1)
    shown = parts(pdf("One", "Two"), sees=True)
    assert [type(part) for part in shown] == [Text, Image, Text]
    [told] = parts(pdf(*["x"] * 501))
    assert isinstance(told, Text)
    assert told.text.endswith("[Page 500]\nx\n[Pages 501 to 501 left out: the document is too long.]")


def test_a_file_without_a_password_opens_though_it_is_encrypted() -> None:
    [shown] = parts(encrypted(pdf("Open"), ""))
    assert isinstance(shown, Text)
    assert "Open" in shown.text
    assert "it is encrypted" in refusal(encrypted(pdf("Closed"), "secret"))


def test_pages_without_text_are_said_to_a_model_that_reads_alone() -> None:
    assert "holds no text (pages: 1), and this model reads text only" in refusal(pdf(""))
    assert any(isinstance(part, Image) for part in parts(pdf(""), sees=True))


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_a_hostile_tree_of_pages_is_refused_at_once(tree: str) -> None:
    began = time.monotonic()
    assert "can't be read as PDF" in refusal(pdf("a", tree=tree))
    assert time.monotonic() - began < 15


def test_a_tree_of_three_thousand_levels_costs_a_sentence() -> None:
    began = time.monotonic()
    assert "can't be read as PDF" in refusal(deep(3000))
    assert time.monotonic() - began < 15


def test_damaged_files_are_refused() -> None:
    whole = pdf("Some text")
    for data in (b"%PDF-1.7\n", whole[:300], b"no PDF at all", whole.replace(b"/Pages", b"/Sheets")):
        assert "can't be read as PDF" in refusal(data)


def test_a_page_that_unpacks_without_end_is_left_out() -> None:
    began = time.monotonic()
    data = bomb(400 << 20)
    assert len(data) < 1 << 20
    found = read(data, 0)
    assert [page.text for page in found.pages] == ["[This page can't be read.]"]
    assert time.monotonic() - began < 25


def test_a_file_that_takes_too_long_leaves_the_pages_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text(
        'import time\nprint(\'{"pages": 3}\\n{"text": "One"}\\n{"te\', end=\'\', flush=True)\ntime.sleep(60)\n'
    )
    monkeypatch.setattr(documents.pdf, "__file__", str(slow))
    monkeypatch.setattr(documents, "MOST_SECONDS", 1.0)
    [shown] = parts(pdf("One", "Two", "Three"))
    assert isinstance(shown, Text)
    assert shown.text.endswith("One\n[Pages 2 to 3 left out: reading it took too long.]")


def test_a_document_that_comes_again_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    known, data = Documents(), Document(Inline(pdf("Text")))
    first = known.parts(data, "a", sees=False)
    monkeypatch.delattr(documents, "read")
    assert known.parts(data, "a", sees=False) == first


def test_documents_are_kept_within_a_bound_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MOST_KEPT_BYTES", 5)
    known, first, second = Documents(), Document(Inline(pdf("One"))), Document(Inline(pdf("Two")))
    for document in (first, second):
        known.parts(document, "a", sees=False)
    read: list[bytes] = []
    monkeypatch.setattr(documents, "read", lambda data, _: read.append(data) or documents.Reading(0, (), ""))
    known.parts(second, "a", sees=False)
    assert not read
    with pytest.raises(ServerError):
        known.parts(first, "a", sees=False)
    assert len(read) == 1
