"""What each agent is told, without starting it."""

import json
import os
import subprocess
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from pippin.cli.verbs.agent import Agent, agents, lacks, name_for, prepare, start, words_of
from pippin.core.errors import ServerError
from tests.cli.serving import Terminal, terminal

__all__ = ["terminal"]

MODEL = "mlx-community/Some-Coder-4bit"
KEY = "secret-key-1"


def target(folder: Path) -> dict[str, str]:
    return words_of("http://127.0.0.1:8000", MODEL, 60_000, KEY, folder)


@pytest.mark.parametrize("name", agents())
def test_every_agent_is_told_of_address_and_model_and_of_nothing_that_is_left_open(
    name: str, tmp_path: Path
) -> None:
    setup = prepare(agents()[name], target(tmp_path), ("-p", "hello {model}"))
    told = " ".join([*setup.variables.values(), *setup.files.values(), *setup.command])
    assert "http://127.0.0.1:8000" in told
    assert MODEL in told
    assert setup.command[-2:] == ("-p", "hello {model}")
    for text in [*setup.variables.values(), *setup.files.values(), *setup.command[:-2]]:
        assert not any(f"{{{word}}}" in text for word in target(tmp_path)), text
    assert all(path.is_relative_to(tmp_path) for path in setup.files)
    assert KEY not in setup.shown(KEY)


@pytest.mark.parametrize("name", agents())
def test_files_are_in_the_format_of_their_name(name: str, tmp_path: Path) -> None:
    for path, text in prepare(agents()[name], target(tmp_path)).files.items():
        match path.suffix:
            case ".json":
                assert json.loads(text)
            case ".toml":
                assert tomllib.loads(text)
            case ".yaml" | ".yml":
                assert yaml.safe_load(text)
            case _:
                raise AssertionError(path)


@pytest.mark.parametrize("name", ["claude-desktop", "crush", "vscode"])
def test_an_agent_that_no_registry_brings_is_told_what_its_documents_ask_for(name: str) -> None:
    folder = Path("/home/me/.cache/pippin/agents") / name
    golden = Path(__file__).parent / "golden" / f"{name}.txt"
    assert prepare(agents()[name], target(folder)).shown(KEY) + "\n" == golden.read_text()


def test_codex_reads_numbers_and_tables(tmp_path: Path) -> None:
    files = prepare(agents()["codex"], target(tmp_path)).files
    read = tomllib.loads(files[tmp_path / "config.toml"])
    (model,) = json.loads(files[Path(read["model_catalog_json"])])["models"]
    assert (model["slug"], model["context_window"]) == (MODEL, 60_000)
    assert read["model_providers"]["pippin"]["base_url"] == "http://127.0.0.1:8000/v1"
    assert read["analytics"] == {"enabled": False}


def test_an_agent_that_needs_a_word_to_begin_gets_it_unless_the_user_gives_some(tmp_path: Path) -> None:
    agent = agents()["openclaw"]
    assert prepare(agent, target(tmp_path)).command == ("openclaw", "chat")
    assert prepare(agent, target(tmp_path), ("doctor",)).command == ("openclaw", "doctor")


def test_an_answer_leaves_room_in_the_window(tmp_path: Path) -> None:
    small = words_of("http://h", "m", 8_000, None, tmp_path)
    assert small["output"] == "2000"
    assert target(tmp_path)["output"] == "15000"
    assert small["key"] == "none"


def test_a_model_without_tools_or_with_a_small_window_is_told() -> None:
    able = {"capabilities": {"tools": True}, "context_window": 65_536}
    assert lacks(agents()["claude"], able) is None
    assert lacks(agents()["claude"], {**able, "context_window": 8192}) == (
        "has a window of 8192 tokens and no room for 32000"
    )
    assert lacks(agents()["claude"], {**able, "capabilities": {}}) == "doesn't call tools"
    assert lacks(agents()["aider"], {**able, "capabilities": {}}) is None


def test_an_agent_is_started_with_its_files_and_variables_and_its_status_is_given(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "some-agent"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$ADDRESS [$GONE] $*" > "$FOLDER/seen"\nexit 7\n')
    program.chmod(0o755)
    agent = Agent(
        command="some-agent",
        install="npm install some-agent",
        window=1,
        variables={"ADDRESS": "{address}", "FOLDER": "{folder}"},
        arguments=("--model", "{model}"),
        files=agents()["codex"].files,
        unset=("GONE",),
    )
    folder = tmp_path / "agents" / "some"
    setup = prepare(agent, target(folder), ("-p", "two words"))
    path = {"PATH": f"{program.parent}:{os.environ['PATH']}", "GONE": "here"}
    assert start(agent, setup, path) == 7
    assert (folder / "seen").read_text() == f"http://127.0.0.1:8000 [] --model {MODEL} -p two words\n"
    assert (folder / "config.toml").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ServerError, match="npm install some-agent"):
        start(agent, setup, {"PATH": "/nowhere"})


def served(model: str, listed: dict[str, str]) -> Any:
    """A server that lists these names, each of a model; any other name of Anthropic's means `one`."""

    def request(method: str, path: str) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        return {"data": [{"id": each} for each in listed], "id": listed.get(name, "one")}

    return SimpleNamespace(model=model, client=SimpleNamespace(request=request))


def test_a_program_that_takes_anthropics_names_alone_gets_that_of_the_model() -> None:
    agent, models = agents()["claude-desktop"], {"one": "one", "two": "two"}
    assert name_for(agent, served("one", models)) == "claude-opus-5"
    with pytest.raises(ServerError, match="Start the server with --list-claude-names"):
        name_for(agent, served("two", models))
    listed = models | {"claude-opus-5": "one", "claude-sonnet-5": "two"}
    assert name_for(agent, served("two", listed)) == "claude-sonnet-5"
    assert name_for(agents()["claude"], served("two", models)) == "two"


def test_print_is_a_script_that_a_shell_takes(terminal: Terminal) -> None:
    with terminal.serving("scripted") as serving:
        serving.wait_for(r"(\S+) is ready after")
        done = terminal.run("agent", "claude", "--print", "--force", "--", "-p", "it's")
        assert done.returncode == 0, done.stderr
        script = done.stdout.replace("\nclaude ", "\necho $ANTHROPIC_BASE_URL $ANTHROPIC_MODEL ")
        said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
        assert said == f"{serving.address} scripted -p it's\n"
        refused = terminal.run("agent", "claude")
        assert refused.returncode == 1
        assert "has a window of 4096 tokens" in refused.stderr
        assert "--force starts it all the same" in refused.stderr
    assert not (terminal.home / ".cache/pippin/agents").exists()
    assert "Did you mean `claude`" in terminal.run("agent", "cluade").stderr
    listed = terminal.run("agent", "--list").stdout
    assert all(name in listed for name in agents())
