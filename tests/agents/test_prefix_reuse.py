"""Two turns of each agent on the language engine: the second one finds the first one's prompt computed."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from pippin.config.options.model import ModelOptions
from pippin.engines.cpu.blas import accelerate_blas
from tests.agents.agents import aider, claude_code, codex, opencode
from tests.agents.wide_model import stretched_demo_model, wide_model
from tests.running_server import running_server

pytestmark = [
    pytest.mark.long,
    pytest.mark.model,
    pytest.mark.timeout(2400),
]  # a prompt may take five minutes

LINE: Final = re.compile(
    r"POST /v1/\S+ (\d+) .*?(?: prompt=(\d+) cached=(\d+) completion=(\d+).*)?$", re.MULTILINE
)
LONG_PROMPT: Final = 5_000  # tokens; shorter ones are not of the conversation, but for its title and the like


@pytest.fixture(scope="module", params=[wide_model, stretched_demo_model])
def wide(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Path:
    accelerate_blas(ModelOptions(), 1)
    made: Path = request.param(tmp_path_factory.mktemp("models") / "wide", demo_model)
    return made


@pytest.fixture
def server(tmp_path: Path, wide: Path) -> Iterator[str]:
    with running_server(tmp_path, str(wide), "--temperature", "1") as address:
        yield address


def answered(home: Path) -> list[tuple[int, int]]:
    """Tokens of each prompt, and how many of them were cached; all must have been answered."""
    lines = LINE.findall((home / "server.log").read_text())
    assert lines
    assert all(status == "200" and int(completion) for status, _, _, completion in lines), lines
    return [(int(prompt), int(cached)) for _, prompt, cached, _ in lines]


@pytest.mark.parametrize("agent", [codex, claude_code, opencode])
def test_the_second_turn_of_an_agent_computes_only_what_is_new(
    agent: Callable[..., str], server: str, tmp_path: Path
) -> None:
    agent(server, "wide", tmp_path, "Say hello.")
    agent(server, "wide", tmp_path, "Say goodbye.", again=True)
    turns = [turn for turn in answered(tmp_path) if turn[0] > LONG_PROMPT]
    assert len(turns) >= 2
    assert all(cached > 0.9 * prompt for prompt, cached in turns[1:]), turns


def test_aider_with_the_demo_model(tmp_path: Path, demo_model: Path) -> None:
    with running_server(tmp_path, str(demo_model), "--max-tokens", "64") as server:
        aider(server, "smollm2-135m-instruct", tmp_path, "Who are you?", "And who am I?")
    first, second = answered(tmp_path)
    assert second[0] > first[0]
    assert second[1] > 0.9 * second[0], (first, second)
