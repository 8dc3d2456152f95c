"""What image models start from: sizes, pictures of clients, and folders of models."""

import io
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pippin.config.errors import install_command
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.tasks import GenerateImages
from pippin.engines import pictures
from pippin.engines.images import open_preparer
from pippin.engines.images.painting import size_of


def png(width: int = 40, height: int = 20, mode: str = "RGB", colour: Any = (1, 2, 3)) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (width, height), colour).save(file, "PNG")
    return file.getvalue()


def test_without_mlx_vlm_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ServerError, match=re.escape(install_command("vision"))):
        open_preparer(WorkerSpec(info=ModelInfo(id="x", kind="images", path="/nowhere")))


def test_a_folder_of_no_family_is_refused_with_the_page_that_names_them(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"docs/images\.md"):
        open_preparer(WorkerSpec(info=ModelInfo(id="x", kind="images", path=str(tmp_path))))


def test_an_edit_keeps_the_shape_of_its_picture() -> None:
    task = GenerateImages(prompt="x")
    assert size_of(task, []) == (1024, 1024)
    width, height = size_of(task, [Image.new("RGB", (4000, 2000))])
    assert width == pytest.approx(2 * height, rel=0.02)
    assert 900_000 < width * height < 1_200_000
    assert width % 16 == height % 16 == 0


# Pictures from clients


def bomb(side: int) -> bytes:
    """A small file that claims to be a huge picture."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def status_of(data: bytes) -> int:
    try:
        pictures.decode(data, param="image")
    except ServerError as error:
        return error.report.status
    return 200


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", 400),
        (b"hello", 400),
        (png()[:30], 400),
        (png()[:60], 400),
        (bomb(60_000), 400),
        (bomb(9_000), 400),
        (bomb(0), 400),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", 400),
        (b"RIFF\x00\x00\x00\x00WEBP", 400),
    ],
)
def test_what_is_no_whole_picture_is_refused(data: bytes, status: int) -> None:
    assert status_of(data) == status


def test_pictures_of_odd_kinds_become_plain_ones() -> None:
    cmyk = io.BytesIO()
    Image.new("CMYK", (8, 8)).save(cmyk, "JPEG")
    assert pictures.decode(cmyk.getvalue(), param="x").mode == "RGB"
    assert pictures.decode(png(mode="LA", colour=(5, 5)), param="x").mode == "RGB"
    assert pictures.decode(png(mode="LA", colour=(5, 5)), param="x", keep_alpha=True).mode == "RGBA"
    assert pictures.decode(png(mode="I;16", colour=5), param="x").mode == "RGB"
    moving = io.BytesIO()
    Image.new("P", (8, 8)).save(moving, "GIF", save_all=True, append_images=[Image.new("P", (8, 8), 1)])
    assert pictures.decode(moving.getvalue(), param="x").size == (8, 8)
    turned = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (8, 4)).save(turned, "JPEG", exif=exif)
    assert pictures.decode(turned.getvalue(), param="x").size == (4, 8)


@given(st.data())
def test_damaged_pictures_never_crash(data: st.DataObject) -> None:
    file = io.BytesIO()
    Image.linear_gradient("L").resize((32, 32)).save(
        file, data.draw(st.sampled_from(["PNG", "JPEG", "WEBP", "GIF"]))
    )
    whole = bytearray(file.getvalue())
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    assert status_of(bytes(whole)) in (200, 400, 413)
