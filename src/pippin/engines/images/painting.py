"""Pictures by mflux's pipelines, one after the other."""

import importlib
import inspect
import json
import secrets
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pippin.config.options.model import ModelOptions
from pippin.core.decoding import convert
from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Event, Picture, PicturesDone, Progress, Usage
from pippin.core.image_presets import ImagePreset, preset_of
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.tasks import GenerateImages, Task
from pippin.engines import pictures
from pippin.engines.base import Job, LoadProgress
from pippin.engines.blocking import BlockingEngine, BlockingJob, Call
from pippin.engines.device import configure, decide, find_facts
from pippin.engines.images.mflux_classes import CLASSES, MFLUX
from pippin.engines.images.requests import (
    STEPS_FACTOR,
    at_most,
    decoded,
    picture_tokens,
    request_of,
    size_of,
    written,
)

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class Pipeline:
    """A loaded model of mflux, and the function that decodes its latents to a picture."""

    model: Any
    preset: ImagePreset
    preview: "Callable[[Any, int, int], Image]"  # latents, height, width


class ImagePreparer:
    """Checks the fields of an image request, and decodes the pictures that it starts from."""

    def __init__(self, spec: WorkerSpec) -> None:
        options = convert(spec.options, ModelOptions)
        self.info: ModelInfo = spec.info
        self.options = options
        self.preset = preset_of(spec.info, options.config_name)

    def prepare(self, id: str, task: Task) -> Job | tuple[Event, ...]:
        wanted = request_of(task, self.info)
        self._check(wanted)
        given, words = decoded(wanted)
        width, height = size_of(wanted, given)
        wanted = msgspec.structs.replace(wanted, width=width, height=height)
        return BlockingJob[Pipeline](id, Accepted(words), painter(wanted, given, words))

    def _check(self, task: GenerateImages) -> None:
        """Raises `ServerError` naming the field that this model can't honour."""
        name, preset = self.info.id, self.preset
        if preset.edits and not task.images:
            raise ServerError("invalid_request", f"{name} edits pictures: use /v1/images/edits.", "image")
        if task.images and not preset.edits and len(task.images) > 1:
            raise ServerError("unsupported", f"{name} starts from one picture; send one.", "image")
        if len(task.images) > preset.pictures:
            raise ServerError("unsupported", f"{name} takes {at_most(preset.pictures)}.", "image")
        if task.mask is not None:
            raise ServerError(
                "unsupported", f"{name} has no masks; say in `prompt` what is to change.", "mask"
            )
        if task.strength is not None and (preset.edits or not task.images):
            raise ServerError("unsupported", f"{name} has no `strength` here; leave it out.", "strength")
        if task.negative_prompt and not preset.negative:
            raise ServerError(
                "unsupported", f"{name} has no negative prompt; leave it out.", "negative_prompt"
            )
        if task.guidance is not None and preset.guidance is None:
            raise ServerError(
                "unsupported", f"{name} was distilled to need no guidance; leave it out.", "guidance"
            )


def open_engine(
    spec: WorkerSpec, preparer: ImagePreparer, progress: LoadProgress
) -> BlockingEngine[Pipeline]:
    def load() -> Pipeline:
        configure(decide(find_facts(), preparer.options))
        progress(0, spec.info.size_bytes, "weights")
        pipeline = load_pipeline(Path(spec.info.path or ""), preparer.preset, preparer.options)
        progress(spec.info.size_bytes, spec.info.size_bytes, "weights")
        return pipeline

    return BlockingEngine(load)


def load_pipeline(folder: Path, preset: ImagePreset, options: ModelOptions) -> Pipeline:
    """Load a model. Raises `ServerError` for LoRA options that contradict each other or the model."""
    scales = options.lora_scales or (1.0,) * len(options.lora_paths)
    if len(scales) != len(options.lora_paths):
        raise ServerError("load_failed", "Give as many lora_scales as lora_paths, or none.", "lora_scales")
    classes = CLASSES[preset.name]
    build = mflux_named(classes.model)
    config = getattr(mflux_named("common.config.model_config:ModelConfig"), classes.config)()
    arguments: dict[str, Any] = {"model_path": str(folder), "model_config": config}
    if options.quantize not in (None, 16):
        arguments["quantize"] = options.quantize
    if options.lora_paths:
        if "lora_paths" not in inspect.signature(build).parameters:
            raise ServerError(
                "load_failed", f"{preset.name} takes no LoRA files; leave them out.", "lora_paths"
            )
        arguments |= {"lora_paths": list(options.lora_paths), "lora_scales": list(scales)}
    model = build(**arguments)
    return Pipeline(model, preset, previewer(model, mflux_named(classes.latents)))


def mflux_named(path: str) -> Any:
    """The attribute of mflux that is named as `module:Name`, below `mflux.models`."""
    module, name = path.split(":")
    return getattr(importlib.import_module(MFLUX + module), name)


def previewer(model: Any, latent_creator: Any) -> "Callable[[Any, int, int], Image]":
    """A function of latents, height and width that decodes as mflux's `StepwiseHandler` does, but into memory."""
    from mflux.utils.image_util import ImageUtil

    def preview(latents: Any, height: int, width: int) -> "Image":
        unpacked = latent_creator.unpack_latents(latents=latents, height=height, width=width)
        vae = model.vae
        packed = hasattr(vae, "decode_packed_latents") and unpacked.shape[1] > vae.latent_channels
        decoded = vae.decode_packed_latents(unpacked) if packed else vae.decode(unpacked)
        image: Image = ImageUtil.to_pil(decoded)
        return image

    return preview


class StepCallback:
    """mflux's callback for one picture. After each step it emits progress and previews, and stops a cancelled call."""

    def __init__(self, call: Call, pipeline: Pipeline, task: GenerateImages, index: int, seed: int) -> None:
        self._call, self._pipeline, self._task = call, pipeline, task
        self._index, self._seed = index, seed
        self._shown = 0

    def call_in_loop(self, t: int, latents: Any, config: Any, **others: Any) -> None:
        total = int(config.num_inference_steps)
        first = int(config.init_time_step)
        done, count = t + 1 - first, total - first
        all_steps = count * self._task.n
        self._call.emit(Progress(count * self._index + done, all_steps))
        if self._shown < self._task.partial_images and done < count and done >= self._due(count):
            image = self._pipeline.preview(latents, config.height, config.width)
            data = pictures.encode(image, self._task.format, self._task.quality)
            width, height = image.size
            self._call.emit(Picture(self._index, data, width, height, self._seed, self._shown))
            self._shown += 1

    def _due(self, count: int) -> int:
        """The step after which the next preview is due: previews are spread evenly over `count` steps."""
        return max(1, round(count * (self._shown + 1) / (self._task.partial_images + 1)))


def painter(task: GenerateImages, given: "list[Image]", words: int) -> Callable[[Pipeline, Call], None]:
    """The call that a job runs on the model's thread: its pictures, one after the other."""

    def run(pipeline: Pipeline, call: Call) -> None:
        first = secrets.randbelow(2**32) if task.seed is None else task.seed
        with tempfile.TemporaryDirectory(prefix="pippin-images-") as folder:
            paths = written(given, Path(folder))
            arguments = arguments_of(pipeline, task, paths)
            for index in range(task.n):
                call.check()
                _paint(pipeline, call, task, arguments, index, (first + index) % 2**32)
        tokens = task.n * picture_tokens(arguments["width"], arguments["height"])
        call.emit(PicturesDone(Usage(prompt_tokens=words, completion_tokens=tokens)))

    return run


def _paint(
    pipeline: Pipeline, call: Call, task: GenerateImages, arguments: dict[str, Any], index: int, seed: int
) -> None:
    callback = StepCallback(call, pipeline, task, index, seed)
    registered = pipeline.model.callbacks.in_loop
    registered.append(callback)
    try:
        made = pipeline.model.generate_image(seed=seed, **arguments)
    finally:
        registered.remove(callback)
    image = made.image
    data = pictures.encode(image, task.format, task.quality)
    call.emit(Picture(index, data, image.size[0], image.size[1], seed))


def as_caption(prompt: str) -> str:
    """The prompt of a model that reads JSON objects; any other text becomes the object's `short_description`."""
    try:
        found = json.loads(prompt)
    except (ValueError, RecursionError):
        found = None
    return prompt if isinstance(found, dict) else json.dumps({"short_description": prompt})


def arguments_of(pipeline: Pipeline, task: GenerateImages, paths: list[Path]) -> dict[str, Any]:
    """The arguments of the pipeline's `generate_image`, without the seed."""
    preset = pipeline.preset
    known = inspect.signature(pipeline.model.generate_image).parameters
    steps = task.steps or max(1, round(preset.steps * STEPS_FACTOR[task.effort]))
    arguments: dict[str, Any] = {
        "prompt": as_caption(task.prompt) if preset.captions else task.prompt,
        "num_inference_steps": steps,
        "width": task.width,
        "height": task.height,
    }
    guidance = preset.guidance if task.guidance is None else task.guidance
    if guidance is not None:
        arguments["guidance"] = guidance
    if task.negative_prompt:
        arguments["negative_prompt"] = task.negative_prompt
    if paths and "image_paths" in known:
        arguments["image_paths"] = [str(path) for path in paths]
    elif paths and "image_path" in known:
        arguments["image_path"] = str(paths[0])
        if not preset.edits:
            arguments["image_strength"] = 0.4 if task.strength is None else task.strength
    return arguments
