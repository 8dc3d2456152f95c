"""What findings say that helps: commands of programs that are here, with names that are known."""

import argparse
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub.cli.hf import app
from mlx_lm.convert import configure_parser

from pippin.cli.arguments import option_parser
from pippin.cli.main import verb_of
from pippin.config.load import load
from pippin.engines.verify.findings import finding, helped, known, names_of
from pippin.engines.verify.folder import Folder
from tests.engines.verify.folders import write

COMMANDS = {code: told["help"].get("command") for code, told in known().items() if "help" in told}
NAMES = dict.fromkeys(("model", "repository", "publisher", "source", "uncompared"), "org/name") | {
    "folder": "/a"
}
BASE = "org/Kite-1B"


def of_serve(words: list[str]) -> None:
    load(option_parser("serve", "").parse(words).given, {})


PARSERS: dict[str, Callable[[list[str]], object]] = {
    "pippin serve": of_serve,
    "pippin verify": lambda words: verb_of("verify").new_parser().parse(words),
    "pippin pull": lambda words: verb_of("pull").new_parser().parse(words),
    "pippin doctor": lambda words: verb_of("doctor").new_parser().parse(words),
    "mlx_lm.convert": lambda words: configure_parser().parse_args(words),
    "hf download": lambda words: app.commands["download"].materialize().make_context("hf", words),  # type: ignore[attr-defined]
    "pip install": lambda words: argparse.ArgumentParser().add_argument("-U"),
}


@pytest.mark.parametrize("command", sorted({*COMMANDS.values()} - {None}))
def test_a_command_is_understood_as_it_is_typed(command: str) -> None:
    words = shlex.split(command.format_map(NAMES))
    [name] = [each for each in PARSERS if words[: len(each.split())] == each.split()]
    PARSERS[name](words[len(name.split()) :])
    assert not re.search(r"\b[A-Z]{3,}\b", command)  # a word for which another is to be put


def test_what_changes_answers_has_help_and_words_name_flags_that_are_there() -> None:
    for code, told in known().items():
        assert "help" in told or told["severity"] == "note", code
        for flag in re.findall(r"--[a-z-]+", told.get("help", {}).get("advice", "")):
            assert flag in option_parser("serve", "")._option_string_actions


@pytest.mark.parametrize(
    ("place", "base", "page", "against", "names"),
    [
        ("kite", None, "", None, ""),
        ("models--me--kite/snapshots/1", None, "", None, "model=me/kite repository=me/kite publisher=me/kite"),
        ("kite-1b-4bit", BASE, "", None, f"repository={BASE} publisher={BASE} source={BASE} uncompared={BASE}"),
        ("kite-1b-4bit", "/home/me/Kite-1B", f"---\nbase_model:\n- {BASE}\n---", None, f"publisher={BASE}"),
        ("kite-1b-4bit", None, f"base_model: {BASE}", "other kite", f"publisher={BASE} source='other kite'"),
        ("kite-tuned", BASE, "", None, ""),  # the base of another model
        ("models--me--kite-1b-4bit/snapshots/1", BASE, "", None, f"repository=me/kite-1b-4bit publisher={BASE}"),
    ],
)  # fmt: skip
def test_names_are_those_that_are_known(
    place: str, base: str | None, page: str, against: str | None, names: str, tmp_path: Path
) -> None:
    folder = tmp_path / place
    folder.mkdir(parents=True)
    write(folder, "config.json", {"_name_or_path": base})
    (folder / "README.md").write_text(page)
    found = names_of(Folder.read(folder), None if against is None else Path(against))
    said = dict(each.split("=") for each in re.findall(r"\w+=(?:'[^']*'|\S+)", names))
    assert found.items() >= said.items()
    assert found["folder"] == str(folder)
    assert bool(found.keys() - {"model", "folder"}) == bool(names)


def test_a_command_without_a_name_is_left_out() -> None:
    names = {"folder": "/a b", "model": "kite"}
    assert helped(finding("damaged-shard", file="x"), names).command == ""
    told = helped(finding("adapter-beside", all=3), names)
    assert (told.advice, told.command) == ("serve the model with it", "pippin serve kite --adapter-path /a b")
