"""Pippin's pictures by mlx-vlm's pipelines, and mlx-vlm's own by the same folder, to be compared pixel by pixel."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pippin.catalog.info import read_info
from pippin.core.errors import ServerError
from pippin.core.events import Event, Picture
from pippin.core.models import WorkerSpec
from pippin.core.tasks import GenerateImages
from pippin.engines import images
from pippin.engines.images.painting import ImagePreparer
from tests.engines.driving import no_progress, run

Pixels = np.ndarray[Any, Any]
PROMPT = "a red fish"
SMALL: dict[str, Any] = {"width": 32, "height": 32, "steps": 3, "seed": 5}


class Painter:
    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        spec = WorkerSpec(info=read_info(folder, kind="images"), options=options)
        self.preparer = images.open_preparer(spec)
        assert isinstance(self.preparer, ImagePreparer)
        self.engine = images.open_engine(spec, self.preparer, no_progress)

    def events(self, **asked: Any) -> list[Event]:
        job = self.preparer.prepare("a", GenerateImages(**{"prompt": PROMPT, **SMALL, **asked}))
        assert not isinstance(job, tuple)
        return run(self.engine, job)["a"]

    def paint(self, **asked: Any) -> list[Pixels]:
        events = self.events(**asked)
        found = [pixels(event.data) for event in events if isinstance(event, Picture)]
        assert found, events
        return found

    def refusal(self, **asked: Any) -> ServerError:
        with pytest.raises(ServerError) as caught:
            self.preparer.prepare("a", GenerateImages(**{"prompt": PROMPT, **SMALL, **asked}))
        return caught.value


def pixels(data: bytes) -> Pixels:
    with Image.open(io.BytesIO(data)) as found:
        return np.array(found.convert("RGB"))


def png(colour: tuple[int, ...] = (200, 20, 20), width: int = 32, height: int = 32) -> bytes:
    """A picture of one colour; of four numbers, the last is how opaque its right half is."""
    file = io.BytesIO()
    image = Image.new("RGB" if len(colour) == 3 else "RGBA", (width, height), colour)
    if len(colour) == 4:
        image.paste((*colour[:3], 255), (0, 0, width // 2, height))
    image.save(file, "PNG")
    return file.getvalue()


def generated(folder: Path, **asked: Any) -> Pixels:
    """By mlx-vlm itself."""
    from mlx_vlm.generate.image import generate_image, load_image_generation_model

    settings = {name: value for name, value in {**SMALL, **asked}.items() if value is not None}
    model = load_image_generation_model(str(folder))
    return np.array(generate_image(model, PROMPT, **settings).array)[..., :3]


def edited(folder: Path, given: list[Path], **asked: Any) -> Pixels:
    from mlx_vlm.generate.edit_image import edit_image, load_image_edit_model

    settings = {name: value for name, value in {**SMALL, **asked}.items() if value is not None}
    model = load_image_edit_model(str(folder))
    return np.array(edit_image(model, PROMPT, image_paths=given, **settings).array)[..., :3]
