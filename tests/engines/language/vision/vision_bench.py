"""A tiny vision-language model with its preparer and engine, and mlx-vlm's own generate as the judge."""

import functools
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import pytest
from PIL import Image as Pictures

from pippin.config.options.model import ModelOptions
from pippin.core.conversation import Image, Inline, Message, Part, Text
from pippin.core.events import Event, Failed, Finished
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.requests import GenerationRequest, Sampling
from pippin.core.tasks import Generate
from pippin.engines.device import DevicePlan
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.library.autoregressive import AutoregressiveModel
from pippin.engines.language.library.engine import LibraryEngine
from pippin.engines.language.loading.asked import Asked
from pippin.engines.language.loading.engine import build_engine
from pippin.engines.language.loading.weights import way_of
from pippin.engines.language.model.weights import Reading, load_weights
from pippin.engines.language.prompt.preparer import open_preparer
from pippin.engines.language.step.decoder import SequenceDecoder
from pippin.engines.language.step.engine import LanguageEngine
from pippin.engines.language.vision.checkpoint import read_config
from pippin.engines.language.vision.films.published import prepare_as_published
from pippin.engines.language.vision.model import VisionModel
from pippin.engines.language.vision.preprocessor import settings_in
from pippin.engines.language.vision.tiles import cut_into_tiles
from pippin.engines.language.vision.video import Clip
from pippin.engines.sound import Samples
from tests.engines.language.bench import PLAN, Tried, tried_once, watch

Tokens = dict[str, list[int]]

WRITTEN_BY_LIBRARY = {
    *("deepseek_v4", "deepseek_v41", "deepseek_vl_v2", "deepseekocr", "deepseekocr_2", "jina_vlm"),
    *("minicpmv4_6", "minicpmv4_7", "moondream2", "moondream3", "phi4_siglip", "plamo2vl"),
}
"""Families whose markers of pictures mlx-vlm writes, and no template."""


HEARD_AS_BY_LIBRARY = {"inkling", "minicpmo"}
"""Families that mlx-vlm's own loop runs, where mlx-vlm decides on which side of the text a recording stands."""


def tokenizer_of(processor: Any) -> Any:
    """What mlx-vlm loads is a tokenizer alone for families whose pictures their models prepare."""
    return getattr(processor, "tokenizer", processor)


def _with_ends(batchify: Any, *samples: Any) -> Any:
    """What DeepSeek-VL2's processor makes of samples, with rows of zeros after the counts of tiles: without them its
    model reads past the end of that array, and now and then finds no picture."""
    made = batchify(*samples)
    tiles = made["images_spatial_crop"]
    made["images_spatial_crop"] = mx.pad(
        tiles, [(0, 0), (0, made["images"].shape[1] - tiles.shape[1]), (0, 0)]
    )
    return made


class VisionBench:
    def __init__(self, folder: Path, plan: DevicePlan = PLAN, **options: Any) -> None:
        self.options = ModelOptions(cache_block_tokens=8, **options)
        self.folder = folder
        self.plan = plan
        info = ModelInfo(id="tiny", kind="language", path=str(folder), architecture=folder.name)
        self.preparer = open_preparer(WorkerSpec(info=info, options=msgspec.to_builtins(self.options)))
        loaded, _ = load_weights(
            info,
            plan,
            lambda *_: None,
            Reading(trust_remote_code=self.options.trust_remote_code),
        )
        if isinstance(loaded, VisionModel):
            self.unused = loaded.unused
        way = way_of(loaded, self.preparer)
        assert way is not None
        self.preparer.loaded(way.media)
        self.model: Any = way.alone or way.model
        self.tried: Tried = {}
        self.engine = self.new_engine()

    def new_engine(self) -> Any:
        if isinstance(self.model, AutoregressiveModel):
            return LibraryEngine(self.model, self.preparer, self.options, self.plan)
        with tried_once(self.tried):
            return build_engine(
                Asked(self.model, self.preparer.tokenizer, self.options, self.plan, self.folder)
            )

    def job(self, name: str, *parts: Part | bytes | str, tokens: int = 12, **request: Any) -> LanguageJob:
        """Of one message of the user."""
        return self.prepare(name, (Message("user", tuple(map(part_of, parts))),), tokens=tokens, **request)

    def prepare(
        self, name: str, messages: tuple[Message, ...], *, tokens: int = 12, **request: Any
    ) -> LanguageJob:
        asked = GenerationRequest(
            model="tiny",
            messages=messages,
            max_tokens=tokens,
            **{"sampling": Sampling(temperature=0), **request},
        )
        job = self.preparer.prepare(name, Generate(asked))
        assert isinstance(job, LanguageJob)
        return job

    def run(
        self, *jobs: LanguageJob, engine: LanguageEngine | LibraryEngine | None = None
    ) -> tuple[Tokens, dict[str, Finished]]:
        """Submit all at once and run to the end: every request's tokens, and how it ended."""
        engine = engine or self.engine
        if isinstance(engine, LibraryEngine):
            return run_by_library(engine, jobs)
        accept = engine.lifecycle.accept
        watched, ends = watch(engine), {}
        for job in jobs:
            engine.submit(job)
        while engine.busy:
            for name, event in engine.step():
                assert not isinstance(event, Failed), event
                if isinstance(event, Finished):
                    ends[name] = event
        engine.lifecycle.accept = accept  # type: ignore[method-assign]
        return {name: tokens for (name, _), tokens in watched.items()}, ends

    def alone(self, job: LanguageJob) -> list[int]:
        """By an engine that has seen nothing yet."""
        return self.run(job, engine=self.new_engine())[0][job.id]

    @functools.cached_property
    def processor(self) -> Any:
        """The one that mlx-vlm prepares prompts with, which is long in loading."""
        from mlx_vlm.utils import load_image_processor, load_processor

        trusted = self.options.trust_remote_code
        processor = load_processor(self.folder, eos_token_ids=256, trust_remote_code=trusted)
        # As its `load` does, but for one that has read the folder's settings: this knows config.json alone.
        own = load_image_processor(self.folder, trust_remote_code=trusted)
        read = isinstance(getattr(processor, "image_processor", None), type(own))
        if own is not None and not read and self.folder.name != "gemma4_unified":
            processor.image_processor = own
        cut_into_tiles(processor, read_config(self.folder))
        if self.folder.name == "deepseek_vl_v2":
            processor.batchify = functools.partial(_with_ends, processor.batchify)
        return processor

    def judged(
        self,
        text: str,
        pictures: Sequence[bytes],
        tokens: int = 12,
        *,
        sound: Samples | None = None,
        **sampling: Any,
    ) -> list[int]:
        """What mlx-vlm generates for one message of the user, pictures and sound first, having seen no other prompt."""
        self.unused.restore()
        from mlx_vlm.generate import stream_generate
        from mlx_vlm.prompt_utils import apply_chat_template

        processor = self.processor
        content = [*({"type": "image"} for _ in pictures), {"type": "text", "text": text}]
        if sound is not None:
            content = [{"type": "audio"}, *content]
        heard = 0 if sound is None else 1
        if self.folder.name in WRITTEN_BY_LIBRARY or (heard and self.folder.name in HEARD_AS_BY_LIBRARY):
            counts = {"num_images": len(pictures), "num_audios": heard}
            prompt = apply_chat_template(processor, read_config(self.folder), text, **counts)
        else:
            prompt = tokenizer_of(processor).apply_chat_template(
                [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
            )
        given: dict[str, Any] = {
            "image": [Pictures.open(io.BytesIO(picture)) for picture in pictures] or None
        }
        if sound is not None:
            given["audio"] = [sound]
        if self.folder.name == "llava" and pictures:
            # Its image processor in transformers takes no `padding`, with which mlx-vlm calls it.
            made = processor(text=[prompt], images=given.pop("image"))
            given |= {"input_ids": made["input_ids"], "pixel_values": made["pixel_values"]}
            given["mask"] = made["attention_mask"]
        if self.folder.name == "zaya1_vl":
            # mlx-vlm calls the tokens of a chunk `inputs`, and this model does not: its prompts can only be whole.
            given["prefill_step_size"] = None
        if self.folder.name == "gemma4" and heard and pictures:
            # In chunks mlx-vlm computes a picture beside a recording without the attention among its tokens, which it
            # has alone, and in transformers in company too.
            given["prefill_step_size"] = None
        found = stream_generate(
            self.model.inner,
            processor,
            prompt,
            max_tokens=tokens,
            **({"temperature": 0.0} | sampling),
            **given,
        )
        *_, last = found
        answer: list[int] = last.token_ids
        return answer

    def judged_video(self, text: str, clip: Clip, tokens: int = 12) -> list[int]:
        """As `judged`, for a video of these frames."""
        from mlx_vlm.generate import stream_generate
        from mlx_vlm.utils import VideoMetadata, load_processor

        processor = load_processor(self.folder, eos_token_ids=256, trust_remote_code=False)
        kind = str(read_config(self.folder).get("model_type"))
        prepare_as_published(processor, kind, settings_in(self.folder)["video"])
        prompt = tokenizer_of(processor).apply_chat_template(
            [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": text}]}],
            tokenize=False,
            add_generation_prompt=True,
        )
        told = VideoMetadata(clip.source_frames, clip.source_fps, clip.indices)
        found = stream_generate(
            self.model.inner,
            processor,
            prompt,
            video=[clip.frames],
            video_metadata=[told],
            max_tokens=tokens,
            temperature=0.0,
        )
        *_, last = found
        answer: list[int] = last.token_ids
        return answer


def run_by_library(engine: LibraryEngine, jobs: Sequence[LanguageJob]) -> tuple[Tokens, dict[str, Finished]]:
    """As `VisionBench.run`; the tokens are noted as their text is read."""
    accept, noted, ends = SequenceDecoder.accept, Tokens(), {}

    def noting(self: SequenceDecoder, token: int, *more: Any) -> list[Event]:
        noted.setdefault(self.job.id, []).append(token)
        return accept(self, token, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SequenceDecoder, "accept", noting)
        for job in jobs:
            engine.submit(job)
        while engine.busy:
            for name, event in engine.step():
                assert not isinstance(event, Failed), event
                if isinstance(event, Finished):
                    ends[name] = event
    return noted, ends


def part_of(part: Part | bytes | str) -> Part:
    match part:
        case bytes():
            return Image(Inline(part))
        case str():
            return Text(part)
        case _:
            return part
