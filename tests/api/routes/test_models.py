"""`/v1/models` as the real clients of both vendors read it, with strict validation."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from anthropic import Anthropic

from tests.api.live_server import MODEL, live_server
from tests.clients import anthropic_of, openai_of

CITED: Any = {
    "type": "document",
    "source": {"type": "text", "media_type": "text/plain", "data": "x"},
    "citations": {"enabled": True},
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with live_server(tmp_path_factory.mktemp("live"), {"context_window": 2048}) as found:
        with openai_of(found) as client:  # what a model can do is known once it is loaded
            client.completions.create(model=MODEL, prompt="x")
        yield found


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Anthropic]:
    with anthropic_of(address) as made:
        yield made


def test_anthropics_client_reads_what_a_model_can_do(client: Anthropic) -> None:
    [listed] = client.models.list()
    assert client.models.retrieve(MODEL) == listed
    assert [each.id for each in client.beta.models.list()] == [MODEL]
    assert client.beta.models.retrieve(MODEL).lifecycle == "active"
    assert listed.max_input_tokens == listed.max_tokens == 2048
    can = listed.capabilities
    assert can is not None
    assert not can.batch.supported  # there are OpenAI's batches alone
    assert can.structured_outputs.supported
    assert can.thinking.types.disabled.supported
    assert can.pdf_input.supported
    assert not can.server_tools.web_search.supported


def ask(client: Anthropic, block: Any) -> None:
    client.messages.create(model=MODEL, max_tokens=9, messages=[{"role": "user", "content": [block]}])


def test_what_a_model_is_said_not_to_do_is_refused(client: Anthropic) -> None:
    can = client.models.retrieve(MODEL).capabilities
    assert can is not None
    assert not can.citations.supported
    with pytest.raises(anthropic.BadRequestError):
        ask(client, CITED)


def test_a_model_that_there_is_not_is_told_in_the_shape_of_who_asked(client: Anthropic, address: str) -> None:
    with pytest.raises(anthropic.NotFoundError) as told:
        client.models.retrieve("nope")
    assert told.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    with pytest.raises(anthropic.BadRequestError, match="`limit`"):
        client.models.list(limit=0)
    with openai_of(address) as other, pytest.raises(openai.NotFoundError) as said:
        other.models.retrieve("nope")
    assert said.value.code == "model_not_found"


def test_others_are_told_in_pippins_own_words(address: str) -> None:
    with openai_of(address) as client:
        [listed] = client.models.list()
    told = listed.model_dump()
    assert told["capabilities"]["chat"] is True
    assert "lifecycle" not in told


def test_a_program_that_takes_names_of_claude_alone_finds_one_for_each_language_model(tmp_path: Path) -> None:
    with (
        live_server(tmp_path, {"context_window": 2048}, list_claude_names=True) as address,
        anthropic_of(address) as client,
    ):
        own, listed = client.models.list()
        assert (own.id, listed.id, listed.display_name) == (MODEL, "claude-opus-5", MODEL)
        assert listed.model_copy(update={"id": MODEL}) == own
        assert [each.id for each in client.models.list(after_id=MODEL)] == ["claude-opus-5"]
        assert client.models.retrieve("claude-opus-5").id == MODEL
        said = client.messages.create(
            model=listed.id, max_tokens=9, messages=[{"role": "user", "content": "x"}]
        )
        assert said.model == listed.id
