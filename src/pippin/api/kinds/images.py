"""`/v1/images/...`, in OpenAI's form: pictures from texts, and pictures from pictures."""

import asyncio
import base64
import math
import re
import time
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.dialects.shared.engine_fields import Name
from pippin.api.dialects.shared.fields import Contract, about, invalid, unsupported, without_effect
from pippin.api.http.forms import is_form
from pippin.api.routing import Api, both, json_reply
from pippin.core.decoding import convert
from pippin.core.errors import ServerError
from pippin.core.events import Event, Picture, PicturesDone
from pippin.core.tasks import GenerateImages
from pippin.service.image_defaults import find_defaults

LARGEST_SIDE: Final = 4096
MOST_PIXELS: Final = 16 << 20
SIDE_STEP: Final = 16
MOST_PROMPT: Final = 32_000
MOST_INPUTS: Final = 16
SIZE: Final = re.compile(r"(\d{1,5})x(\d{1,5})")

Guidance = Annotated[float, Meta(ge=0, le=100)]
Quality = Literal["auto", "low", "medium", "high", "standard", "hd"]
EFFORT: Final[dict[str | None, Literal["low", "medium", "high"]]] = {
    "low": "low",
    "medium": "medium",
    "high": "high",
    "hd": "high",
}


class ImageRequest(Struct, kw_only=True, omit_defaults=True):
    """A picture from a text."""

    prompt: Annotated[str, about("What is to be seen.", min_length=1, max_length=MOST_PROMPT)]
    model: Annotated[Name | None, about("Name of the model.")] = None
    n: Annotated[int, about("How many pictures.", ge=1, le=10)] | None = None
    size: Annotated[str | None, about("WIDTHxHEIGHT, both multiples of 16; auto is the model's own.")] = None
    width: Annotated[int | None, about("Instead of `size`.")] = None
    height: Annotated[int | None, about("Instead of `size`.")] = None
    quality: Annotated[Quality | None, about("low takes half the model's steps, high one and a half.")] = None
    response_format: Annotated[Literal["b64_json"] | None, about("Only b64_json.")] = None
    output_format: Annotated[Literal["png", "jpeg", "webp"] | None, about("png if not set.")] = None
    output_compression: Annotated[int, about("Quality of jpeg and webp.", ge=0, le=100)] | None = None
    background: Annotated[Literal["auto", "opaque", "transparent"] | None, about("Only auto or opaque.")] = (
        None
    )
    steps: Annotated[int, about("Diffusion steps; the model's own if not set.", ge=1, le=200)] | None = None
    guidance: Annotated[Guidance | None, about("How closely to follow the prompt.")] = None
    guidance_scale: Annotated[Guidance | None, about("mlx-openai-server's name for it.")] = None
    seed: Annotated[
        Annotated[int, Meta(ge=0, lt=2**32)] | None,
        about("Same seed, same picture; the next picture of the request has the next seed."),
    ] = None
    negative_prompt: Annotated[
        Annotated[str, Meta(max_length=MOST_PROMPT)] | None,
        about("What is not to be seen, for models that are told."),
    ] = None


class ImageAddress(Struct, kw_only=True):
    image_url: str | None = None
    file_id: str | None = None


class ImageEditRequest(ImageRequest, kw_only=True, omit_defaults=True):
    """A picture from pictures: as a form with files `image` (or `image[]`), or as JSON."""

    image: Annotated[str | tuple[str, ...] | None, about("In JSON: data URIs or addresses of pictures.")] = (
        None
    )
    images: Annotated[
        tuple[ImageAddress, ...] | None, about("In JSON, as OpenAI has it: `image_url` of each.")
    ] = None
    strength: Annotated[float, about("How much of the picture may stay.", ge=0, le=1)] | None = None
    input_fidelity: Annotated[
        Literal["low", "high"] | None, about("Accepted: models here look at all they can.")
    ] = None


ACCEPTED, REFUSED = without_effect(__name__, "images")
GENERATIONS: Final = Contract(ImageRequest, ACCEPTED, REFUSED)
EDITS: Final = Contract(ImageEditRequest, ACCEPTED, REFUSED)
CONTRACTS: Final = {
    "POST /v1/images/generations": GENERATIONS,
    "POST /v1/images/edits (form with `image`, or JSON)": EDITS,
}


def task_of(fields: ImageRequest, images: Sequence[bytes] = ()) -> GenerateImages:
    if fields.background == "transparent":
        raise unsupported("background", "pictures are opaque; leave it out.")
    output = fields.output_format or "png"
    if fields.output_compression is not None and output == "png":
        raise invalid("output_compression", "needs `output_format` jpeg or webp.")
    width, height = size_of(fields)
    guidance = fields.guidance_scale if fields.guidance is None else fields.guidance
    drawn = {
        "n": fields.n or 1,
        "width": width,
        "height": height,
        "guidance": guidance,
        "negative_prompt": fields.negative_prompt or None,
        "images": tuple(images),
        "format": output,
        "quality": fields.output_compression,
        "effort": EFFORT.get(fields.quality),
    }
    # `prompt`, `steps`, `seed` and `strength` have the same names.
    return convert(asdict(fields) | drawn, GenerateImages)


def size_of(fields: ImageRequest) -> tuple[int | None, int | None]:
    if fields.size is None or fields.size == "auto":
        width, height = fields.width, fields.height
        if (width is None) != (height is None):
            raise invalid("height" if height is None else "width", "is required with the other one.")
        if width is None or height is None:
            return None, None
        names = ("width", "height")
    else:
        found = SIZE.fullmatch(fields.size)
        if found is None:
            raise invalid("size", "must be auto or WIDTHxHEIGHT, such as 1024x1024.")
        width, height = int(found[1]), int(found[2])
        names = ("size", "size")
    for name, side in zip(names, (width, height), strict=True):
        if not SIDE_STEP <= side <= LARGEST_SIDE or side % SIDE_STEP:
            raise invalid(name, f"must be multiples of {SIDE_STEP} up to {LARGEST_SIDE}.")
    if width * height > MOST_PIXELS:
        raise invalid(names[0], f"must not have more than {MOST_PIXELS} pixels.")
    return width, height


def addresses_of(fields: ImageEditRequest) -> list[str]:
    """The URLs of the pictures in a JSON body. Raises `ServerError`."""
    given = [fields.image] if isinstance(fields.image, str) else list(fields.image or ())
    for place, item in enumerate(fields.images or ()):
        if item.file_id is not None:
            raise unsupported(
                f"images[{place}].file_id", "there are no stored files; send `image_url` with a data URI."
            )
        if item.image_url is None:
            raise invalid(f"images[{place}].image_url", "is required.")
        given.append(item.image_url)
    return given


class ImageItem(Struct, kw_only=True):
    b64_json: str
    seed: int


class InputDetails(Struct, kw_only=True):
    image_tokens: int = 0
    text_tokens: int


class ImageUsage(Struct, kw_only=True):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputDetails


class ImagesReply(Struct, kw_only=True):
    created: int
    data: list[ImageItem]
    output_format: str
    size: str
    background: Literal["opaque"] = "opaque"
    usage: ImageUsage


def draw(task: GenerateImages, events: Sequence[Event], prompt_tokens: int) -> ImagesReply:
    """A whole reply."""
    pictures = [event for event in events if isinstance(event, Picture)]
    pictures.sort(key=lambda picture: picture.index)
    # One for each square of 16 by 16 pixels, the unit of diffusion models.
    tokens = sum(math.ceil(each.width / SIDE_STEP) * math.ceil(each.height / SIDE_STEP) for each in pictures)
    return ImagesReply(
        created=int(time.time()),
        data=[
            ImageItem(b64_json=base64.b64encode(picture.data).decode(), seed=picture.seed)
            for picture in pictures
        ],
        output_format=task.format,
        size=f"{pictures[0].width}x{pictures[0].height}",
        usage=ImageUsage(
            input_tokens=prompt_tokens,
            output_tokens=tokens,
            total_tokens=prompt_tokens + tokens,
            input_tokens_details=InputDetails(text_tokens=prompt_tokens),
        ),
    )


def routes(api: Api) -> list[BaseRoute]:
    pictures = ImageRoutes(api)
    reply = ImagesReply
    return [
        *both("/images/generations", pictures.generate, "POST", body=ImageRequest, answer=reply),
        *both("/images/edits", pictures.edit, "POST", body=ImageEditRequest, answer=reply, form=True),
        *both("/images/defaults", pictures.defaults),
    ]


class ImageRoutes(Struct, frozen=True):
    api: Api

    async def generate(self, request: Request) -> Response:
        """Pictures from a text"""
        fields = await self.api.handler.fields_of(request, "image generations", GENERATIONS.decode)
        return await self._answer(request, fields, task_of(fields), "image_generations")

    async def edit(self, request: Request) -> Response:
        """Pictures from pictures and a text"""
        handler, media = self.api.handler, self.api.handler.media
        if is_form(request):
            form = await handler.form_of(request)
            fields, unknown = EDITS.decode_form(form.fields)
            handler.note_unknown("image edits", unknown)
            given: list[bytes | str] = [upload.data for upload in form.files.get("image", [])]
            for name in form.files.keys() - {"image"}:
                raise unsupported(name, REFUSED.get(name, "pictures are sent as `image`."))
        else:
            fields = await handler.fields_of(request, "image edits", EDITS.decode)
            given = [*addresses_of(fields)]
        if not 1 <= len(given) <= MOST_INPUTS:
            raise invalid(
                "image", f"is required, as a file of a form or in JSON: 1 to {MOST_INPUTS} pictures."
            )
        found = []
        for place, each in enumerate(given):
            at = f"image[{place}]"
            found.append(each if isinstance(each, bytes) else (await media.fetch(each, at)).data)
            if not found[-1]:
                raise invalid(at, "is empty; send a picture.")
        return await self._answer(request, fields, task_of(fields, found), "image_edits")

    async def defaults(self, request: Request) -> Response:
        """What a model does where a request leaves it out, as mlx_vlm.server has it; loads nothing.

        `?model=` names the model; `task` is `generate` or `edit`. `guidance` is null for a model that takes none.
        """
        asked: Any = request.query_params.get("task", "generate")
        if asked not in ("generate", "edit"):
            raise invalid("task", "must be generate or edit.")
        name = request.query_params.get("model") or "default"
        info = await self.api.model(request, name, "images", here=False)
        if info.kind != "images":
            raise ServerError(
                "invalid_request", f"{info.id} is of kind {info.kind} and makes no pictures.", "model"
            )
        found = await asyncio.to_thread(find_defaults, info, asked)
        return json_reply({"steps": found.steps, "guidance": found.guidance})

    async def _answer(
        self, request: Request, fields: ImageRequest, task: GenerateImages, operation: str
    ) -> Response:
        model = fields.model or "default"
        done, found = await self.api.handler.task(
            request, task, PicturesDone, model=model, operation=operation
        )
        return await asyncio.to_thread(lambda: json_reply(draw(task, found, done.usage.prompt_tokens)))
