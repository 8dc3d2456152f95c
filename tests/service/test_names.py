"""Names that are no model's, answered by one that is here: those of Claude, and any where one model is served."""

import asyncio

import pytest

from pippin.config.options.server import ModelEntry, ServerOptions
from pippin.core.errors import ServerError
from tests.service.doubles import scripted, scripted_service


def resolved(name: str, options: ServerOptions) -> str:
    async def ask() -> str:
        async with scripted_service(scripted("one"), scripted("two"), options=options) as service:
            return service.model(name).id

    return asyncio.run(ask())


def test_a_claude_name_is_the_model_that_the_operator_chose() -> None:
    options = ServerOptions(models=(ModelEntry(path="one"),), claude_model="two")
    assert resolved("claude-sonnet-4-5", options) == "two"


def test_without_a_choice_it_is_the_default_model() -> None:
    assert resolved("claude-sonnet-4-5", ServerOptions(models=(ModelEntry(path="one"),))) == "one"


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
