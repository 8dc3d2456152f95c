"""Names that are no model's, answered by one that is here: of Claude and Gemini, and any where one model is served."""

import asyncio
from typing import Any

import pytest

from pippin.config.options.server import ModelEntry, ServerOptions
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo, ModelKind
from tests.service.doubles import scripted, scripted_service

EMBEDDER = ModelInfo(id="embedder", kind="embeddings")
CHAT = ModelInfo(id="chat", kind="language")
OTHER = ModelInfo(id="other", kind="language")


def resolved(name: str, options: ServerOptions, *infos: ModelInfo, kind: ModelKind | None = None) -> str:
    async def ask() -> str:
        models = infos or (scripted("one"), scripted("two"))
        async with scripted_service(*models, options=options) as service:
            return (await service.names.find(name, kind)).id

    return asyncio.run(ask())


def serving(*names: str, **options: Any) -> ServerOptions:
    return ServerOptions(models=tuple(ModelEntry(path=name) for name in names), **options)


@pytest.mark.parametrize("name", ["default", "claude-sonnet-4-5", "gemini-3-pro"])
def test_no_models_name_means_the_first_served_model_of_the_kind_that_is_asked(name: str) -> None:
    models = (EMBEDDER, CHAT, OTHER)
    options = serving("embedder", "chat", "other")
    assert resolved(name, options, *models, kind="language") == "chat"
    assert resolved(name, options, *models, kind=None) == "chat", "a tokenizer's task"
    assert resolved(name, options, *models, kind="embeddings") == "embedder"
    assert resolved(name, ServerOptions(), EMBEDDER, CHAT, kind="language") == "chat", "the only one here"


def test_where_none_is_of_the_kind_the_refusal_is_that_of_a_model_which_is_served() -> None:
    assert resolved("default", serving("embedder"), EMBEDDER, CHAT, kind="speech") == "embedder"


def test_a_model_that_is_not_here_yet_is_the_default_of_its_kind() -> None:
    missing = ModelEntry(path="org/far")
    options = ServerOptions(models=(ModelEntry(path="embedder"), missing))
    with pytest.raises(ServerError, match="org/far"):
        resolved("default", options, EMBEDDER, kind="language")


def test_models_that_a_profile_knows_are_nobodys_default() -> None:
    known = ModelEntry(path="embedder", kind="embeddings", listed=False)
    options = ServerOptions(models=(known, ModelEntry(path="chat")), any_model_name=True)
    assert resolved("gpt-5", options, EMBEDDER, CHAT, kind="language") == "chat"
    assert resolved("default", options, EMBEDDER, CHAT, kind="language") == "chat"


def test_any_name_is_the_only_model_of_the_kind() -> None:
    options = serving("embedder", "chat", any_model_name=True)
    assert resolved("local-text-model", options, EMBEDDER, CHAT, kind="language") == "chat"
    assert resolved("local-embedding-model", options, EMBEDDER, CHAT, kind="embeddings") == "embedder"


def test_a_claude_name_is_the_model_that_the_operator_chose() -> None:
    options = ServerOptions(models=(ModelEntry(path="one"),), claude_model="two")
    assert resolved("claude-sonnet-4-5", options) == "two"


def test_without_a_choice_it_is_the_default_model() -> None:
    assert resolved("claude-sonnet-4-5", ServerOptions(models=(ModelEntry(path="one"),))) == "one"


def test_names_of_claude_that_are_listed_mean_the_language_models_in_turn() -> None:
    options = serving("embedder", "chat", "other", claude_model="other", list_claude_names=True)
    models = (EMBEDDER, CHAT, OTHER)
    assert resolved("claude-opus-5", options, *models, kind="language") == "chat"
    assert resolved("claude-sonnet-5", options, *models, kind="language") == "other"
    assert resolved("claude-next", options, *models, kind="language") == "other", "the operator's choice"


@pytest.mark.parametrize(
    "options",
    [
        ServerOptions(models=(ModelEntry(path="one"),), claude_model="two"),
        ServerOptions(models=(ModelEntry(path="one"), ModelEntry(path="two")), any_model_name=True),
        ServerOptions(any_model_name=True),
    ],
)
def test_other_unknown_names_stay_unknown(options: ServerOptions) -> None:
    with pytest.raises(ServerError):
        resolved("gpt-5", options)


def test_any_name_is_the_only_model_that_is_served_where_the_operator_says_so() -> None:
    options = ServerOptions(models=(ModelEntry(path="one"),), any_model_name=True)
    assert resolved("local-text-model", options) == "one"
    assert resolved("two", options) == "two"


def test_what_default_means_is_known_without_the_disk_once_the_model_is_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        models = (EMBEDDER, scripted("one"), scripted("two"))
        async with scripted_service(*models, options=serving("embedder", "one", "two")) as service:
            await service.pool.load("one")
            first = await service.names.find("default", "language")
            with monkeypatch.context() as patch:
                patch.setattr(service.catalog, "resolve", None)
                # The kind of the embedder is not known without it.
                with pytest.raises(TypeError):
                    await service.names.find("default", "language")
            entry = ModelEntry(path="embedder", kind="embeddings")
            await service.adopt(serving("one", "two"))
            assert await service.names.find("default", "language") == first
            monkeypatch.setattr(service.catalog, "resolve", None)
            assert (await service.names.find("default", "language")).id == "one"
            await service.adopt(ServerOptions(models=(entry, *serving("one", "two").models)))
            assert (await service.names.find("default", "language")).id == "one"

    asyncio.run(main())
