"""Pictures by mlx-vlm's pipelines, one after the other.

One call of the library makes one picture. It evaluates its latents after each step, where a cancelled call ends.
"""

import dataclasses
import importlib.util
import inspect
import math
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import mlx.core as mx
import msgspec

from pippin.config.errors import install_command
from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Event, Picture, PicturesDone, Usage
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.published import name_of, object_in
from pippin.core.tasks import GenerateImages, Task
from pippin.engines import pictures
from pippin.engines.base import Job, LoadProgress, Preparer
from pippin.engines.blocking import BlockingEngine, BlockingJob, Call
from pippin.engines.device import loading
from pippin.engines.language.upstream.classes import replaced

if TYPE_CHECKING:
    from PIL.Image import Image


def mage_flow_variant(folder: Path) -> str:
    """The name of mlx-vlm's variant: as its conversion recorded it, or else as the folder's own name tells.

    mlx-vlm 0.7.10 looks for `edit`, `turbo` and `base` in the whole path, so that a model below `/data/edited` edits.
    """
    if written := object_in(folder / "mlx_mage_flow.json").get("variant"):
        return str(written)
    name = name_of(folder).rpartition("/")[2].lower()
    edit = "-edit" if "edit" in name else ""
    steps = next((f"-{word}" for word in ("turbo", "base") if word in name), "")
    return f"mage-flow{edit}{steps}"


SIDE_STEP = 16
"""Width and height are multiples of this many pixels, the side of a token's patch."""

DEFAULT_PIXELS = 1024 * 1024
"""The area of a picture when the request names no size."""

STEPS_FACTOR = {"low": 0.5, "medium": 1.0, "high": 1.5, None: 1.0}
"""The factor of the model's number of steps for each `quality` of OpenAI's API."""


def size_of(task: GenerateImages, given: "list[Image]") -> tuple[int, int]:
    """Width and height that the request names, or the proportions of its first picture at about `DEFAULT_PIXELS`."""
    if task.width is not None and task.height is not None:
        return task.width, task.height
    if not given:
        side = math.isqrt(DEFAULT_PIXELS)
        return side, side
    width, height = given[0].size
    scale = math.sqrt(DEFAULT_PIXELS / (width * height))
    sides = [max(SIDE_STEP, round(side * scale / SIDE_STEP) * SIDE_STEP) for side in (width, height)]
    return min(sides[0], 4096), min(sides[1], 4096)


MOST_PICTURES: Final = 10
"""The most pictures that a request may give to a family that takes several."""
READS_ENCODER_ONCE: Final = ("ming_image",)
"""Families whose pipeline drops its text encoder after the first picture and never reads it again (mlx-vlm 0.7.10).
Other families read theirs again for each picture, so that it takes no memory while the rest computes."""

EDITS_BY_ANOTHER_PIPELINE: Final = ("flux2",)
"""Families whose class for editing needs a pipeline of another kind than the one for generating."""

CHOOSES_ITS_SIZE: Final = ("ernie_image", "flux2", "flux3", "llada_image", "qwen_image")
"""Families that choose a size that they support from the given pictures if an edit names none. Others would take the
first picture's own, however large or small."""

SEES_ALPHA: Final = ("qwen_image",)
"""Families that are given transparency; others would see the colours below it."""

LEAST_SIDE: Final = {"mage_flow": 512}
MOST_SIDE: Final = {"mage_flow": 2048}
"""The sides that a family supports, for sizes that are chosen here."""

EDIT_STEP: Final = {"qwen_image": 32}
"""The step of the sides of an edited picture, where the pipeline would silently round others down."""

MOST_PROMPTS: Final = 4
"""How many encoded prompts a pipeline keeps from one request to the next. Those of FLUX.2 and Mage-Flow would
keep all of them."""


@dataclasses.dataclass(frozen=True)
class Classes:
    """mlx-vlm's classes that generate and edit pictures with one model folder; None for what it cannot do."""

    generation: Any
    edit: Any
    variant: str | None = None
    """The name of the model in mlx-vlm, if the library would derive it from the folder's whole path."""

    @property
    def either(self) -> Any:
        return self.generation or self.edit

    @property
    def family(self) -> str:
        found: str = self.either.model_type
        return found

    def defaults(self, wanted: Any, folder: Path) -> Any:
        """Steps and guidance of one of the two classes, for requests that name none."""
        if self.variant is not None:
            return wanted.resolve_defaults(self.variant)
        return wanted.resolve_defaults(str(folder), model_path=folder)

    def can(self, word: str) -> bool:
        """Whether the family's classes read this setting from the extra fields of a request."""
        return any(
            f'"{word}"' in inspect.getsource(inspect.getmodule(each) or each)
            for each in (self.generation, self.edit)
            if each is not None
        )


def find_classes(folder: Path) -> Classes | None:
    """The installed mlx-vlm's classes for a folder, or None if it knows none. They read no weights."""
    from mlx_vlm.generate.edit_image import image_edit_model_class
    from mlx_vlm.generate.image import image_generation_model_class

    generation, edit = image_generation_model_class(str(folder)), image_edit_model_class(str(folder))
    if generation is None and edit is None:
        return None
    if generation is None or edit is None:
        return Classes(generation, edit)
    if generation.model_type != edit.model_type:
        # mlx-vlm also looks for an editing class in the folder's parts: the decoder of an Ideogram 4 is FLUX.2's.
        return Classes(generation, None)
    variant = mage_flow_variant(folder) if generation.model_type == "mage_flow" else None
    # The search does not ask whether a class supports this very model: a Mage-Flow either generates or edits.
    generates, edits = (each.supports_model(variant or str(folder)) for each in (generation, edit))
    if not (generates or edits):
        return Classes(generation, edit, variant)
    return Classes(generation if generates else None, edit if edits else None, variant)


class ImagePreparer:
    """Checks the fields of an image request, and decodes the pictures that it starts from."""

    def __init__(self, spec: WorkerSpec, classes: Classes) -> None:
        self.info: ModelInfo = spec.info
        self.classes = classes
        self._negative = classes.can("negative_prompt")
        self._strength = classes.can("strength")
        self._several = classes.edit is not None and not self._strength and classes.family != "llada_image"

    def prepare(self, id: str, task: Task) -> Job | tuple[Event, ...]:
        assert isinstance(task, GenerateImages)
        self._check(task)
        sees_alpha = self.classes.family in SEES_ALPHA
        given = [
            pictures.decode(data, param=f"image[{index}]", keep_alpha=sees_alpha)
            for index, data in enumerate(task.images)
        ]
        words = len(task.prompt.split()) + len((task.negative_prompt or "").split())
        return BlockingJob[Pipeline](
            id, Accepted(words), partial(paint, self._sized(task, given), given, words)
        )

    def _sized(self, task: GenerateImages, given: "list[Image]") -> GenerateImages:
        """The task with a size, unless it is an edit whose size the family chooses itself."""
        family = self.classes.family
        if task.width is None and given and family in CHOOSES_ITS_SIZE:
            return task
        sides = size_of(task, given)
        if task.width is None:
            least, most = LEAST_SIDE.get(family, SIDE_STEP), MOST_SIDE.get(family, max(sides))
            sides = min(max(sides[0], least), most), min(max(sides[1], least), most)
        return msgspec.structs.replace(task, width=sides[0], height=sides[1])

    def _check(self, task: GenerateImages) -> None:
        """Raises `ServerError` naming the field that this model can't honour."""
        name, most = self.info.id, MOST_PICTURES if self._several else 1
        if task.images and self.classes.edit is None:
            raise ServerError(
                "unsupported", f"{name} edits no pictures: use /v1/images/generations.", "image"
            )
        if not task.images and self.classes.generation is None:
            raise ServerError("invalid_request", f"{name} edits pictures: use /v1/images/edits.", "image")
        if len(task.images) > most:
            takes = "one picture" if most == 1 else f"{most} pictures at most"
            raise ServerError("unsupported", f"{name} takes {takes}.", "image")
        if task.strength is not None and not (self._strength and task.images):
            raise ServerError("unsupported", f"{name} has no `strength` here; leave it out.", "strength")
        if task.negative_prompt and not self._negative:
            raise ServerError(
                "unsupported", f"{name} has no negative prompt; leave it out.", "negative_prompt"
            )
        if task.negative_prompt and self._guidance(task) <= 1:
            raise ServerError(
                "unsupported",
                f"{name} reads `negative_prompt` with a `guidance` above 1 alone; leave it out, or set that.",
                "negative_prompt",
            )
        step = EDIT_STEP.get(self.classes.family, 1)
        if task.images and any(side is not None and side % step for side in (task.width, task.height)):
            raise ServerError(
                "invalid_request", f"{name} edits pictures whose sides are multiples of {step}.", "size"
            )

    def _guidance(self, task: GenerateImages) -> float:
        """The request's guidance, or else that of the model's configuration."""
        if task.guidance is not None:
            return task.guidance
        wanted = self.classes.edit if task.images else self.classes.generation
        found: float = self.classes.defaults(wanted, Path(self.info.path or "")).guidance
        return found


class Pipeline:
    """A loaded pipeline of mlx-vlm. To be used on the thread that loaded it."""

    def __init__(self, folder: Path, classes: Classes) -> None:
        self._folder = folder
        self.classes = classes
        self._held: Any = self._read(classes.either)

    def as_class(self, wanted: Any) -> Any:
        """The pipeline as one of its classes, around the same weights if both classes hold the same."""
        # Not by `isinstance`: one of the classes may descend from the other, and have other defaults.
        if type(self._held) is wanted:
            return self._held
        held, self._held = self._held, None
        names = {each.name for each in dataclasses.fields(wanted)}
        transformer = None
        if held is not None and self.classes.family in EDITS_BY_ANOTHER_PIPELINE:
            transformer = held.pipeline.transformer
        elif held is not None and names <= {each.name for each in dataclasses.fields(held)}:
            self._held = wanted(**{name: getattr(held, name) for name in names})
            return self._held
        del held  # before the other is read, so that the weights of both are never in memory together
        mx.clear_cache()
        self._held = self._read(wanted)
        if transformer is not None:
            self._held.pipeline.transformer = transformer
        return self._held

    def forget(self) -> None:
        """Drop all prompts that the pipeline keeps but the last `MOST_PROMPTS`."""
        kept = getattr(getattr(self._held, "pipeline", None), "prompt_cache", {})
        while len(kept) > MOST_PROMPTS:
            del kept[next(iter(kept))]

    def _read(self, wanted: Any) -> Any:
        kept = {"evict_text_encoder": False} if self.classes.family in READS_ENCODER_ONCE else {}
        name = self.classes.variant or str(self._folder)
        return wanted.from_model_id(name, model_path=self._folder, **kept)


def open_preparer(spec: WorkerSpec) -> ImagePreparer:
    """Raises `ServerError("load_failed")` if mlx-vlm is not installed, or does not paint with this model."""
    if importlib.util.find_spec("mlx_vlm") is None:
        raise ServerError("load_failed", f"Image models need an extra: {install_command('vision')}")
    classes = find_classes(Path(spec.info.path or ""))
    if classes is None:
        raise ServerError(
            "load_failed",
            f"mlx-vlm has no pipeline for the model {spec.info.id!r}; docs/images.md names the families that it has.",
        )
    if classes.family == "bonsai":
        raise ServerError(
            "load_failed",
            f"The model {spec.info.id!r} computes with kernels for Apple's GPU alone, and its decoder is in another "
            "repository: take another family of docs/images.md, or paint with mlx-vlm itself.",
        )
    return ImagePreparer(spec, classes)


def open_engine(spec: WorkerSpec, preparer: Preparer, progress: LoadProgress) -> BlockingEngine[Pipeline]:
    assert isinstance(preparer, ImagePreparer)

    def load() -> Pipeline:
        try:
            with loading(spec):
                return Pipeline(Path(spec.info.path or ""), preparer.classes)
        except (ValueError, KeyError, TypeError, AttributeError, OSError, RuntimeError) as error:
            message = f"mlx-vlm cannot load {spec.info.id!r}: {type(error).__name__}: {str(error)[:300]}"
            raise ServerError("load_failed", message) from error

    return BlockingEngine(load)


@contextmanager
def evaluations_watched(check: Callable[[], None]) -> Iterator[None]:
    """Call `check` before each evaluation by this thread. The pipelines have no callbacks of their own."""
    thread = threading.get_ident()

    def watched(plain: Callable[..., None], *arrays: Any) -> None:
        if threading.get_ident() == thread:
            check()
        plain(*arrays)

    with replaced((mx, "eval", lambda plain: partial(watched, plain))):
        yield


def paint(task: GenerateImages, given: "list[Image]", words: int, pipeline: Pipeline, call: Call) -> None:
    """Run a request on the model's thread: its pictures, one after the other."""
    first = secrets.randbelow(2**32) if task.seed is None else task.seed
    tokens = 0
    try:
        with (
            tempfile.TemporaryDirectory(prefix="pippin-images-") as folder,
            evaluations_watched(call.check),
        ):
            paths = [Path(folder, f"{index}.png") for index in range(len(given))]
            for path, picture in zip(paths, given, strict=True):
                picture.save(path, "PNG")
            for index in range(task.n):
                seed = (first + index) % 2**32
                image = painted(pipeline, task, paths, seed)
                data = pictures.encode(image, task.format, task.quality)
                call.emit(Picture(index, data, image.size[0], image.size[1], seed))
                tokens += (image.width // SIDE_STEP) * (image.height // SIDE_STEP)
    finally:
        pipeline.forget()
    call.emit(PicturesDone(usage=Usage(prompt_tokens=words, completion_tokens=tokens)))


def painted(pipeline: Pipeline, task: GenerateImages, paths: list[Path], seed: int) -> "Image":
    """Raises `ServerError` if the pipeline refuses its arguments."""
    from mlx_vlm.generate.edit_image import ImageEditRequest
    from mlx_vlm.generate.image import ImageGenerationRequest

    model = pipeline.as_class(pipeline.classes.edit if paths else pipeline.classes.generation)
    steps = task.steps
    if steps is None and STEPS_FACTOR[task.effort] != 1:
        steps = max(1, round(model.default_sampling.steps * STEPS_FACTOR[task.effort]))
    extra = {
        "negative_prompt": task.negative_prompt,
        "strength": task.strength,
        # FLUX.3 would fetch a language model from the hub, and let it rewrite the prompt.
        "upsample_prompt": False if pipeline.classes.family == "flux3" else None,
    }
    asked: dict[str, Any] = {
        "prompt": task.prompt,
        "seed": seed,
        "steps": steps,
        "width": task.width,
        "height": task.height,
        "guidance": task.guidance,
        "extra": {name: value for name, value in extra.items() if value is not None},
    }
    try:
        if paths:
            result = model.edit(ImageEditRequest(image_paths=tuple(paths), **asked))
        else:
            result = model.generate(ImageGenerationRequest(**asked))
    except ValueError as error:
        raise ServerError("invalid_request", f"The model cannot paint this: {error}") from error
    except RecursionError as error:
        # Ideogram 4 reads prompts that begin as JSON objects.
        message = "The JSON of the prompt lies too deep in itself; send a flatter one."
        raise ServerError("invalid_request", message, "prompt") from error
    image: Image = result.image
    return image
