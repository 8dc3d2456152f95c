"""What findings say that helps: commands of programs that are here, with names that are known."""

import argparse
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub.cli.hf import app
from mlx_lm.convert import configure_parser

from pippin.cli.arguments import option_parser
from pippin.cli.main import verb_of
from pippin.config.load import load
from pippin.core.published import object_in
from pippin.engines.verify.findings import finding, helped, known, names_of
from pippin.engines.verify.folder import Folder
from tests.engines.verify.folders import write

COMMANDS = {code: told["help"]["command"] for code, told in known().items()}
OWN = {"model": "'a kite'", "folder": "'/a b'", "name": "kite-1b", "converter": "mlx_lm.convert"}
"""What is known of each folder."""
NAMES = dict.fromkeys(("repository", "publisher", "source", "uncompared"), "org/name")
PROGRAMS = ("cd", "sed", "diff")
BASE = "org/Kite-1B"


def of_serve(words: list[str]) -> None:
    load(option_parser("serve", "").parse(words).given, {})


PARSERS: dict[str, Callable[[list[str]], object]] = {
    "pippin serve": of_serve,
    "pippin verify": lambda words: verb_of("verify").new_parser().parse(words),
    "pippin pull": lambda words: verb_of("pull").new_parser().parse(words),
    "pippin doctor": lambda words: verb_of("doctor").new_parser().parse(words),
    "pippin show": lambda words: verb_of("show").new_parser().parse(words),
    "pippin search": lambda words: verb_of("search").new_parser().parse(words),
    "mlx_vlm.convert": lambda words: argparse.ArgumentParser().add_argument("--hf-path"),
    "mlx_lm.convert": lambda words: configure_parser().parse_args(words),
    "hf download": lambda words: app.commands["download"].materialize().make_context("hf", words),  # type: ignore[attr-defined]
    "pip install": lambda words: argparse.ArgumentParser().add_argument("-U"),
}


@pytest.mark.parametrize("names", [OWN, OWN | NAMES], ids=["without its publisher", "whole"])
@pytest.mark.parametrize("code", known())
def test_each_finding_says_what_it_means_and_has_a_command_that_is_understood_as_it_is_typed(
    code: str, names: dict[str, str]
) -> None:
    fields = dict.fromkeys(re.findall(r"{(\w+)", known()[code]["text"]), 0) | {
        "files": ["model 2.safetensors"]
    }
    told = helped(finding(code, **fields), names)
    assert all((told.meaning, told.advice, told.command))
    assert not re.search(
        r"\b[A-Z]{3,}\b|[{}]", told.command.replace("1s/{/{", "")
    )  # a word for which another is to be put
    words = shlex.split(told.command)
    if words[0] not in PROGRAMS:
        [name] = [each for each in PARSERS if words[: len(each.split())] == each.split()]
        PARSERS[name](words[len(name.split()) :])
    for flag in re.findall(r"--[a-z-]+", told.advice):
        assert flag in option_parser("serve", "")._option_string_actions


def test_a_command_of_the_shell_does_what_its_words_say(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    write(folder, "config.json", {"tie_word_embeddings": True, "hidden_size": 8})
    write(folder, "tokenizer_config.json", {"eos_token": "{}"})
    (folder / "model 2.safetensors").touch()
    names = names_of(Folder.read(folder), None) | {"source": shlex.quote(str(folder))}
    for each in (
        finding("head-ignored"),
        finding("mistral-cuts"),
        finding("stray-shard", files=["model 2.safetensors"]),
        finding("vectors-differ", cosine=0.0, longer=0.0),
    ):
        subprocess.run(["sh", "-c", helped(each, names).command], check=True)
    assert object_in(folder / "config.json") == {"tie_word_embeddings": False, "hidden_size": 8}
    assert object_in(folder / "tokenizer_config.json") == {"fix_mistral_regex": True, "eos_token": "{}"}
    assert (folder / "unused" / "model 2.safetensors").exists()


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
    assert bool(found.keys() - OWN.keys()) == bool(names)
    assert found["name"].casefold() == (
        "kite-tuned" if "tuned" in place else BASE[4:].casefold()[: len(found["name"])]
    )


def test_a_search_helps_where_the_publisher_is_not_known() -> None:
    told = helped(finding("damaged-shard", file="x"), OWN)
    assert told.advice == "fetch the model again from its publisher; this finds its repository"
    assert told.command == "pippin search --all kite-1b"
    assert (
        helped(finding("adapter-beside", all=3), OWN).command == "pippin serve 'a kite' --adapter-path '/a b'"
    )
