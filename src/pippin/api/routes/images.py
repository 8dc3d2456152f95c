"""`/v1/images/...`: pictures from texts, and pictures from pictures."""

import asyncio
from dataclasses import dataclass
from typing import Final, Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from pippin.api.access.exchange import exchange_of
from pippin.api.dialects.shared.fields import invalid, unsupported
from pippin.api.http.forms import is_form
from pippin.api.kinds import images
from pippin.api.routing import Api, both, json_reply
from pippin.core.errors import ServerError
from pippin.core.events import PicturesDone
from pippin.core.models import ModelInfo
from pippin.core.tasks import GenerateImages

TASKS: Final[dict[str, Literal["generate", "edit"]]] = {"generate": "generate", "edit": "edit"}


def routes(api: Api) -> list[BaseRoute]:
    pictures = ImageRoutes(api)
    reply = images.ImagesReply
    return [
        *both("/images/generations", pictures.generate, "POST", body=images.ImageRequest, answer=reply),
        *both("/images/edits", pictures.edit, "POST", body=images.ImageEditRequest, answer=reply, form=True),
        *both("/images/defaults", pictures.defaults),
    ]


@dataclass(frozen=True)
class ImageRoutes:
    api: Api

    async def generate(self, request: Request) -> Response:
        """Pictures from a text"""
        fields = await self.api.handler.fields_of(request, "image generations", images.GENERATIONS.decode)
        return await self._answer(request, fields, images.task_of(fields), "image_generations")

    async def edit(self, request: Request) -> Response:
        """Pictures from pictures and a text"""
        handler, media = self.api.handler, self.api.handler.media
        if is_form(request):
            form = await handler.form_of(request)
            fields, unknown = images.EDITS.decode_form(form.fields)
            handler.note_unknown("image edits", unknown)
            found = [upload.data for upload in form.files.get("image", [])]
            if "mask" in form.files:
                raise unsupported("mask", images.REFUSED["mask"])
            if not found:
                raise invalid("image", "is required: send it as a file of the form.")
        else:
            fields = await handler.fields_of(request, "image edits", images.EDITS.decode)
            given = images.addresses_of(fields)
            if len(given) > images.MOST_INPUTS:
                raise invalid("image", f"must not be more than {images.MOST_INPUTS} pictures.")
            found = [
                (await media.fetch(address, f"image[{place}]")).data for place, address in enumerate(given)
            ]
        for place, datum in enumerate(found):
            if not datum:
                raise invalid(f"image[{place}]", "is empty; send a picture.")
        return await self._answer(request, fields, images.task_of(fields, found), "image_edits")

    async def defaults(self, request: Request) -> Response:
        """What a model does where a request leaves it out, as mlx_vlm.server has it; loads nothing.

        `?model=` names the model; `task` is `generate` or `edit`. `guidance` is null for a model that takes none.
        """
        task = TASKS.get(request.query_params.get("task", "generate"))
        if task is None:
            raise invalid("task", "must be generate or edit.")
        info = await self._described(request, request.query_params.get("model") or "default")
        found = await asyncio.to_thread(self.api.service.image_defaults.find, info, task)
        return json_reply({"steps": found.steps, "guidance": found.guidance})

    async def _described(self, request: Request, name: str) -> ModelInfo:
        """The image model with that name, downloaded or not. Raises `ServerError`."""
        service = self.api.service
        try:
            info = await service.find(name, "images")
        except ServerError:
            missing = await asyncio.to_thread(service.catalog.missing)
            named = next((each for each in missing if each.id == name), None)
            if named is None:
                raise
            info = named
        exchange_of(request.scope).check_opens(name, info)
        if info.kind != "images":
            raise ServerError(
                "invalid_request", f"{info.id} is of kind {info.kind} and makes no pictures.", "model"
            )
        return info

    async def _answer(
        self, request: Request, fields: images.ImageRequest, task: GenerateImages, operation: str
    ) -> Response:
        model = fields.model or "default"
        found = await self.api.handler.task(request, task, model=model, operation=operation)
        done = found[-1]
        assert isinstance(done, PicturesDone)
        reply = await asyncio.to_thread(images.draw, task, found, done.usage.prompt_tokens)
        return await asyncio.to_thread(json_reply, reply)
