"""The processor of a model whose media are prepared with the whole prompt: turns messages into text as mlx-vlm does,
and the text with all its media into arrays."""

import hashlib
import itertools
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import mlx.core as mx
import numpy as np
from jinja2 import TemplateError
from PIL import ImageOps

from pippin.config.options.model import ModelOptions
from pippin.core.conversation import Audio, Image, MediaPart, Part, Video
from pippin.core.errors import ServerError
from pippin.engines.device import require_sound_device
from pippin.engines.language.kv_cache.agreement import FAILURES
from pippin.engines.language.template.template import ChatTemplate
from pippin.engines.language.text.tokenizer import BREAK, Tokenizer
from pippin.engines.language.vision.checkpoint import read_config
from pippin.engines.language.vision.films.written import InternVLFilms, WrittenFilms
from pippin.engines.language.vision.joint import Evaluate
from pippin.engines.language.vision.media import (
    MODALITIES,
    TEXT_ONLY,
    JointTokens,
    Medium,
    Modality,
    Parts,
    PlacedPrompt,
    SampleRenderer,
    TextOnly,
    WholePrompt,
    inline_bytes,
    listed,
    modality_of,
    require_text_after,
)
from pippin.engines.language.vision.preprocessor import in_older_files, settings_in
from pippin.engines.language.vision.processing import (
    LibraryProcessor,
    digest_of,
    plain_arrays,
    sample_clip,
    sample_image,
    unpreparable,
)
from pippin.engines.language.vision.video import Clip
from pippin.engines.refusals import refused

log = logging.getLogger(__name__)

PLAIN_TEMPLATE = (
    "{%- if messages | length == 1 and messages[0].role == 'user' -%}{{ messages[0].content }}"
    "{%- else -%}{%- for message in messages -%}"
    "{{ message.role | capitalize }}: {{ message.content }}{{ '\\n' }}"
    "{%- endfor -%}{%- if add_generation_prompt -%}Assistant:{%- endif -%}{%- endif -%}"
)
"""How mlx-vlm writes a conversation for a model without a chat template."""

JOINED_TEMPLATE = "{{ messages | map(attribute='content') | join('\n') }}"
"""How mlx-vlm's processor of PLaMo 2 VL writes a conversation: its `chat_template` is a name and no template."""

NUMBERED = ("phi3_v", "phi4mm")
NUMBER = re.compile(r"<\|image_\d+\|>")
"""Marks of pictures, which mlx-vlm numbers anew in each message, and the publishers throughout a prompt."""

MARKED = "QXA"  # a word before which a processor writes the marker of a medium


Writing = Literal["by architecture", "as parts", "as text"]
"""How messages with media are given to a chat template: as mlx-vlm does for the architecture, as lists of parts, or as
text with the markers that the model's processor would put there."""


@dataclass(frozen=True)
class LibraryStyle:
    """How a message with media is given to the chat template of an architecture."""

    model_type: str
    writing: Writing = "by architecture"
    markers: dict[Modality, str] = field(default_factory=dict)  # what names media in text
    films: bool = False  # named as pictures are

    def content(self, parts: tuple[Part, ...], shield: Callable[[str], str]) -> Any:
        """The content of a message that holds media, as the chat template takes it. Text goes through `shield`.

        Raises `ServerError` for media that the architecture does not take in one message.
        """
        found = listed(parts, shield)
        if self.films:
            found = [{"type": "image"} if each["type"] == "video" else each for each in found]
        match self.writing:
            case "by architecture":
                return self._by_library(found)
            case "as parts":
                return found
            case "as text":
                return "".join(each.get("text", self.markers.get(each["type"], "")) for each in found)

    def _by_library(self, listed: list[dict[str, Any]]) -> Any:
        from mlx_vlm.prompt_utils import MODEL_CONFIG, extract_text_from_content, get_message_json

        if self.model_type not in MODEL_CONFIG:
            return extract_text_from_content(listed)
        counts = {kind: sum(each["type"] == kind for each in listed) for kind in MODALITIES}
        clips = {"video": ["video"] * counts["video"]} if counts["video"] else {}
        seen = [each for each in listed if each["type"] in ("text", "image")]
        try:
            message = get_message_json(
                self.model_type,
                seen if counts["image"] else extract_text_from_content(seen),
                "user",
                num_images=counts["image"],
                num_audios=counts["audio"],
                **clips,
            )
        except FAILURES as error:  # as for two pictures of an architecture that takes one
            log.info("its media can't be written: %s: %s", type(error).__name__, error)
            together = "one message has media that this model can't take together; send one in each message."
            raise refused("messages", f"can't be written for this model: {together}") from error
        return message["content"] if isinstance(message, dict) else message


class _ShieldedTokenizer:
    """A processor's tokenizer that reads markers spelled by clients as text: shielded ones, see `Literals`."""

    def __init__(self, tokenizer: Any, encode_shielded: Callable[[str], list[int]]) -> None:
        self._tokenizer = tokenizer
        self._encode_shielded = encode_shielded

    def __call__(self, text: Any = None, **settings: Any) -> Any:
        pieces = [text] if isinstance(text, str) else text
        shielded = isinstance(pieces, list) and any(
            isinstance(piece, str) and BREAK in piece for piece in pieces
        )
        if not shielded:
            return self._tokenizer(text, **settings)
        from transformers import BatchEncoding

        ids = [self._encode_shielded(piece) for piece in pieces]
        if settings.get("add_special_tokens", True):
            start = list(self._tokenizer("")["input_ids"])  # what is put before every text
            ids = [[*start, *each] for each in ids]
        made = {"input_ids": ids, "attention_mask": [[1] * len(each) for each in ids]}
        if settings.get("return_token_type_ids"):
            made["token_type_ids"] = [[0] * len(each) for each in ids]
        if isinstance(text, str) and settings.get("return_tensors") is None:
            return BatchEncoding({name: lists[0] for name, lists in made.items()})
        return BatchEncoding(made, tensor_type=settings.get("return_tensors"))

    def encode(self, text: str, **settings: Any) -> Any:
        if BREAK in text:
            return self(text, **settings)["input_ids"]
        return self._tokenizer.encode(text, **settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __len__(self) -> int:
        return len(self._tokenizer)


class PromptProcessor(LibraryProcessor):
    """A model's processor, given whole prompts. Several threads may use it at once."""

    def __init__(self, folder: Path, options: ModelOptions, tokenizer: Tokenizer) -> None:
        """Raises what mlx-vlm and transformers raise for a folder that they can't read."""
        import mlx_vlm.utils

        config = read_config(folder)
        package, _ = mlx_vlm.utils.get_model_and_args(config)
        self._config = config
        self._numbers: InternVLFilms | None = None  # films whose frames are numbered pictures
        # `trust_remote_code` is always given: mlx-vlm's own processors run code from the folder by default.
        trusted, settings = options.trust_remote_code, settings_in(folder)
        with in_older_files(folder, settings) as files:
            opened = mlx_vlm.utils.load_processor(files, False, trust_remote_code=trusted)
            reader = getattr(package, "ImageProcessor", None)
            pixels = getattr(opened, "image_processor", None)
            # As mlx-vlm does, but for one that has read the folder's settings: this knows config.json alone.
            if reader is not None and not isinstance(pixels, reader):
                pixels = mlx_vlm.utils.load_image_processor(files, trust_remote_code=trusted)
                opened.image_processor = pixels
        super().__init__(opened, settings, config, options)
        if hasattr(self._processor, "tokenizer"):
            encode = tokenizer.literals.encode
            self._processor.tokenizer = _ShieldedTokenizer(self._processor.tokenizer, encode)
        # Some models have their template in the processor instead of the tokenizer.
        own = getattr(self._processor, "chat_template", None)
        own = None if not isinstance(own, str) else own if "{" in own else JOINED_TEMPLATE
        # A model's own template writes all special tokens.
        self._adds_tokens = not tokenizer.chat_templates and own is None
        self.templates = {"default": own or PLAIN_TEMPLATE}
        self.writing = LibraryStyle(
            str(config.get("model_type", "")).lower(), films=self._numbers is not None
        )
        self.takes_several = False  # whether a prompt may have several pictures, found by testing
        self.joint: JointTokens | None = None  # set if prompts run in batches, found by testing

    def _takes(self, films: WrittenFilms) -> bool:
        # Frames of one tile each: else a processor cuts them, as pictures.
        own = getattr(self._processor, "image_processor", None)
        if isinstance(films, InternVLFilms) and getattr(own, "dynamic_min_num", None) == 1:
            self._numbers = films
        return self._numbers is not None

    def style(self, template: ChatTemplate) -> LibraryStyle:
        return self.writing

    def markers(self) -> dict[Modality, str]:
        """What the processor writes for media, if it turns messages into text before the template sees them."""
        found: dict[Modality, str] = {}
        for modality in MODALITIES:
            with suppress(*FAILURES, TemplateError):
                named, bare = (
                    self._processor.apply_chat_template(
                        [{"role": "user", "content": [*parts, {"type": "text", "text": MARKED}]}],
                        tokenize=False,
                    ).partition(MARKED)
                    for parts in ([{"type": modality}], [])
                )
                if named[0].startswith(bare[0]) and named[1:] == bare[1:] and named != bare:
                    found[modality] = named[0].removeprefix(bare[0])
        return found

    def placed(
        self, text: str, media: list[Medium], parts: Parts, encode: Callable[[str], list[int]]
    ) -> PlacedPrompt:
        made = self.prompt(text, parts)
        if self.joint is None:
            # Some processors number media with ids below 0, which are no tokens.
            return [max(int(each), 0) for each in made.ids[0]], made
        digests = b"".join(digest_of(part, inline_bytes(part), self._options) for _, part in parts)
        tokens, found = self.joint.place(made, modality_of(parts[0][1]), hashlib.blake2b(digests).digest())
        return tokens, require_text_after(found, len(tokens))

    def prompt(self, text: str, media: Parts) -> WholePrompt:
        """A rendered prompt and its media, each with its field, as the model takes them. Raises `ServerError`."""
        given: dict[str, list[Any]] = defaultdict(list)
        for where, part in media:
            self._add(part, where, given)
        try:
            return self._run(text, given)
        except FAILURES as error:
            where = media[-1][0] if media else "messages"
            if not self.takes_several and sum(isinstance(part, Image) for _, part in media) > 1:
                another = "is another picture, and this model takes one in a request: leave it out."
                raise refused(where, another, "unsupported") from error
            raise unpreparable(where, error, len(media)) from error

    def joined(
        self, renderer: SampleRenderer, find: Callable[[Sequence[WholePrompt]], JointTokens | None]
    ) -> TextOnly:
        try:
            samples = [list(_samples(self, renderer, modality)) for modality in sorted(self.modalities)]
        except (*FAILURES, ServerError) as error:
            log.info("its media can't be joined: a sample fails: %s: %s", type(error).__name__, error)
            return TEXT_ONLY
        found = [tokens for each in samples if (tokens := find(each)) is not None]
        # One set of tokens for all modalities: a prompt may have several.
        counts = {each.features for each in found}
        if len(found) == len(samples) and len(counts) == 1:
            ids = frozenset[int]().union(*(each.ids for each in found))
            self.joint = JointTokens(ids, counts.pop())
        return TEXT_ONLY if self.joint is None else self

    def _add(self, part: MediaPart, where: str, given: dict[str, list[Any]]) -> None:
        """Decode a medium into the arguments of the library."""
        match part:
            case Image():
                given["images"].append(self._decoded(part, where))
                given["counts"].append(None)
            case Video():
                self._add_clip(self._decoded(part, where), given)
            case Audio():
                if "audio" in given and not getattr(self._processor, "supports_multiple_audio", False):
                    another = "is another recording, and this model takes one in a request: leave it out."
                    raise refused(where, another, "unsupported")
                given["audio"].append(self._decoded(part, where))

    def sample(self, modality: Modality, number: int, text: str, count: int = 1) -> WholePrompt:
        """A rendered prompt with small media. The last one differs by `number`: 0 and 1 have the same size, and a
        picture of number 2 is wider. Raises `FAILURES`."""
        given: dict[str, list[Any]] = defaultdict(list)
        match modality:
            case "image":
                picture = sample_image()
                given["images"] += [picture] * (count - 1)
                others = (picture, ImageOps.invert(picture), picture.resize((120, 60)))
                given["images"].append(others[number])
            case "video":
                clip = sample_clip()
                self._add_clip(replace(clip, frames=clip.frames // (1 + number)), given)
            case "audio":
                waves = np.sin(np.arange(self._audio_rate) * (0.05 + 0.1 * number))
                given["audio"].append(waves.astype(np.float32))
        return self._run(text, given)

    def _add_clip(self, clip: Clip, given: dict[str, list[Any]]) -> None:
        if self._numbers is None:
            given["videos"].append(clip.frames)
            given["video_metadata"].append(clip.metadata)
        else:
            given["images"] += self._numbers.tiles(clip.frames, self._processor.image_processor.size)
            given["counts"].append(len(clip.frames))

    def _run(self, text: str, given: dict[str, list[Any]]) -> WholePrompt:
        from mlx_vlm.utils import prepare_inputs

        counts = given.pop("counts", [])
        if self._numbers is not None:
            text = self._numbers.marked(text, counts)
        if self._config.get("model_type") in NUMBERED:
            number = itertools.count(1)
            if len(NUMBER.findall(text)) != len(given.get("images", ())):
                raise ValueError("a text has a mark of a picture, such as <|image_1|>")
            text = NUMBER.sub(lambda _: f"<|image_{next(number)}|>", text)
        with self._lock:
            found = prepare_inputs(
                self._processor,
                prompts=text,
                image_token_index=self._config.get("image_token_index"),
                add_special_tokens=self._adds_tokens,
                **given,
            )
        ids = np.array(found.pop("input_ids"))
        arrays = {name: plain_arrays(value) for name, value in found.items() if value is not None}
        return WholePrompt(ids.reshape(1, -1).astype(np.int32), _with_ends(arrays))


def _with_ends(arrays: dict[str, Any]) -> dict[str, Any]:
    """The arrays of a prompt, with rows of zeros after its last picture for a model that reads up to such a row.

    DeepSeek-VL2's processor in mlx-vlm returns [1, pictures, 2] counts of tiles, and its model looks for their end in
    as many rows as there are tiles (`get_input_embeddings`). Past the end of the array it took arbitrary memory for
    counts, and so left the picture out of some prompts.
    """
    tiles, pixels = arrays.get("images_spatial_crop"), arrays.get("pixel_values")
    if not isinstance(tiles, np.ndarray) or tiles.ndim != 3 or not isinstance(pixels, np.ndarray):
        return arrays
    ends = np.zeros((tiles.shape[0], max(pixels.shape[1] - tiles.shape[1], 0), 2), tiles.dtype)
    return {**arrays, "images_spatial_crop": np.concatenate([tiles, ends], axis=1)}


def try_modalities(
    processor: PromptProcessor,
    open_renderer: "Callable[[PromptProcessor], SampleRenderer]",
    evaluate: Evaluate,
) -> bool:
    """Find out, by testing, which modalities the model takes and how its messages are written; return whether any.

    Messages are written in the first of the `Writing`s with which the model takes media.
    """
    found: set[Modality] = set()
    for writing in get_args(Writing):
        markers = processor.markers() if writing == "as text" else {}
        processor.writing = replace(processor.writing, writing=writing, markers=markers)
        renderer = open_renderer(processor)
        found = {each for each in processor.tried if _sees_a_difference(processor, renderer, each, evaluate)}
        if found:
            break
    processor.modalities = frozenset(found)
    if "image" in found:
        processor.takes_several = _sees_a_difference(processor, renderer, "image", evaluate, count=2)
    return bool(found)


def _samples(
    processor: PromptProcessor, renderer: SampleRenderer, modality: Modality
) -> Iterator[WholePrompt]:
    """Prompts with media of a modality: two that differ in the medium only, and pictures of other sizes and number."""
    asked = [(0, 1), (1, 1)]
    if modality == "image":
        asked += [(2, 1), (2, 2)] if processor.takes_several else [(2, 1)]
    for number, count in asked:
        yield processor.sample(modality, number, renderer.sample(modality, count), count)


def _sees_a_difference(
    processor: PromptProcessor,
    renderer: SampleRenderer,
    modality: Modality,
    evaluate: Evaluate,
    count: int = 1,
) -> bool:
    """Whether the model runs a prompt with samples of the modality, and what it gives changes with the last sample.

    A family that leaves the medium out of the prompt would give the same for both.
    """
    try:
        text = renderer.sample(modality, count)
        first, second = (evaluate(processor.sample(modality, number, text, count)) for number in (0, 1))
    except (*FAILURES, ServerError) as error:
        require_sound_device(error)
        log.info("a prompt with %s fails: %s: %s", modality, type(error).__name__, error)
        return False
    finite = bool(mx.all(mx.isfinite(first)).item()) and bool(mx.all(mx.isfinite(second)).item())
    return finite and float(mx.abs(first - second).max()) > 0
