"""What a model's folder says of how pictures are prepared, and what its family's processor leaves out of that."""

import inspect
import json
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image as PillowImage

from pippin.core.errors import ServerError
from pippin.core.published import object_in

log = logging.getLogger(__name__)

FILE = "preprocessor_config.json"

PIXELS: dict[str, Any] = {
    **dict.fromkeys(("do_resize", "do_rescale", "do_normalize"), True),
    "do_center_crop": False,
    "rescale_factor": 1 / 255,
    **dict.fromkeys(("image_mean", "image_std")),
}
"""Fields that decide the pixels of pictures, and what a processor does without a field of that name; None where that
is not known."""

SIZES = (
    *("size", "crop_size", "max_image_size", "min_pixels", "max_pixels"),
    *("patch_size", "temporal_patch_size", "merge_size"),
)
"""Fields that decide the size of pictures, which processors have under other names, too."""


def settings_of(folder: Path) -> dict[str, Any]:
    """The settings of pictures, as transformers reads them: those in processor_config.json come first."""
    nested = object_in(folder / "processor_config.json").get("image_processor")
    return nested if isinstance(nested, dict) else object_in(folder / FILE)


@contextmanager
def in_older_files(folder: Path) -> Iterator[Path]:
    """A folder of the same files with the settings of pictures in a file of their own, where some families of mlx-vlm
    look for them. The model's own folder is not written."""
    said = settings_of(folder)
    if said == object_in(folder / FILE):
        yield folder
        return
    with TemporaryDirectory() as made:
        for path in folder.iterdir():
            if path.name != FILE:
                (Path(made) / path.name).symlink_to(path.resolve())
        (Path(made) / FILE).write_text(json.dumps(said), "utf-8")
        yield Path(made)


@dataclass(frozen=True)
class Preparation:
    """How pictures are prepared where a family's processor would do otherwise than its folder says."""

    resample: int | None = None  # Pillow's number of the filter that resizes; None for the processor's own
    refused: str = ""  # the fields that are not honoured

    @classmethod
    def of(cls, folder: Path, processor: Any) -> "Preparation":
        """Logs the sizes that the processor seems to leave out."""
        said, own = settings_of(folder), getattr(processor, "image_processor", None)
        if own is None:
            return cls()
        if sizes := other_sizes(said, own):
            log.warning("%s does not have the sizes of the folder: %s", type(own).__name__, ", ".join(sizes))
        resample = said.get("resample")
        return cls(resample if isinstance(resample, int) else None, ", ".join(other_pixels(said, own)))

    def require(self, param: str) -> None:
        """Raises `ServerError` naming `param` for a picture that would be prepared otherwise."""
        if self.refused:
            raise ServerError(
                "unsupported",
                f"'{param}' can't be prepared as the model's {FILE} says: its processor leaves out {self.refused}. "
                "Leave the picture out, or choose another model.",
                param,
            )

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within this context, Pillow resizes with the folder's filter in this thread. Processors have one of their own
        in their code. Not for two threads at once."""
        own, thread, wanted = PillowImage.Image.resize, threading.get_ident(), self.resample

        def resize(image: Any, size: Any, resample: Any = None, *given: Any, **named: Any) -> Any:
            return own(image, size, wanted if threading.get_ident() == thread else resample, *given, **named)

        if wanted is not None:
            PillowImage.Image.resize = resize  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            PillowImage.Image.resize = own  # type: ignore[method-assign]


def other_pixels(said: Mapping[str, Any], own: Any) -> list[str]:
    """The fields of `PIXELS` that the processor of pictures does not have so."""
    return [
        name
        for name, usual in PIXELS.items()
        if said.get(name) is not None
        and numbers_in(said[name]) != numbers_in(inspect.getattr_static(own, name, usual))
    ]


def other_sizes(said: Mapping[str, Any], own: Any) -> list[str]:
    """The fields of `SIZES` with numbers that the processor of pictures has under no name."""
    held = numbers_in(list(vars(own).values()))
    return [name for name in SIZES if not numbers_in(said.get(name)) <= held]


def numbers_in(value: Any) -> set[float]:
    """The numbers of a size, a list or a number, whatever their names."""
    match value:
        case Mapping():
            return numbers_in(list(value.values()))
        case list() | tuple():
            return set[float]().union(*map(numbers_in, value))
        case int() | float():
            return {round(float(value), 6)}
        case _ if hasattr(value, "__dataclass_fields__"):  # transformers' sizes
            return numbers_in(vars(value))
        case _ if hasattr(value, "tolist"):
            return numbers_in(value.tolist())
        case _:
            return set()
