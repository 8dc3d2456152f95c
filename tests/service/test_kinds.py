"""A model of another kind is refused before it is loaded, with those that could."""

import asyncio
import logging

import pytest

from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo, ModelKind
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Embed, Generate, ListVoices, Task, Tokenize
from pippin.service.service import suits, wrong_kind
from tests.service.doubles import scripted, scripted_service

CHAT = Generate(GenerationRequest(model="m", prompt="Hi"))
KINDS: tuple[ModelKind, ...] = ("language", "embeddings", "speech", "images")
HERE = [ModelInfo(id=f"one-of-{kind}", kind=kind) for kind in KINDS]


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        (CHAT, "language"),
        (Tokenize("Hi"), "language"),
        (Embed(inputs=("a",)), "embeddings"),
        (ListVoices(), "speech"),
    ],
)
def test_only_a_model_of_the_right_kind_is_asked_and_others_are_told_which_is(
    task: Task, kind: ModelKind
) -> None:
    for info in HERE:
        assert suits(task, info) == (info.kind == kind)
        if not suits(task, info):
            refusal = wrong_kind(task, info, HERE).report
            assert f"Name one that can: one-of-{kind}" in refusal.message
            assert (refusal.status, refusal.param) == (400, "model")
            assert f"serve one of kind {kind}" in wrong_kind(task, info, [info]).report.message


def test_a_service_refuses_it_before_anything_is_loaded() -> None:
    async def scene() -> None:
        embedder = ModelInfo(id="embedder", kind="embeddings")
        async with scripted_service(embedder, scripted("able")) as service:
            with pytest.raises(ServerError, match="is of kind embeddings and can't generate text") as refused:
                await service.start(CHAT, model="embedder", id="r")
            assert (refused.value.report.status, refused.value.report.param) == (400, "model")
            assert not service.pool.states()

    asyncio.run(scene())


def test_a_scripted_model_is_asked_whatever_it_is() -> None:
    assert suits(Embed(inputs=("a",)), scripted("m"))


def test_a_name_with_line_ends_begins_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        async with scripted_service(scripted()) as service:
            with pytest.raises(ServerError):
                await service.start(CHAT, model="x\nERROR forged", id="r")

    caplog.set_level(logging.DEBUG)
    asyncio.run(scene())
    assert "forged" in caplog.text
    assert "\nERROR forged" not in caplog.text
