"""What the documents show is true: generated pages are fresh, links lead somewhere, examples run.

A fenced block whose info string ends in `run` (```bash run, ```python run) is executed against a server with the
scripted model, in place of the address and the model that it names. Other bash blocks are only parsed.
"""

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from scripts.docs.__main__ import PAGES as GENERATED
from scripts.docs.cli_page import help_of

from pippin.cli.arguments import option_parser
from pippin.cli.main import VERBS
from pippin.config.flags import flags
from pippin.config.load import load
from tests.running_server import running_server

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
FENCE = re.compile(r"^```(\S+)?([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]+)")
ADDRESS = re.compile(r"http://(?:127\.0\.0\.1|localhost):8000")
MODELS = ("smollm2-135m-instruct",)


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    runs: bool
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text("utf-8")
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            runs = match[2].split()[-1:] == ["run"]
            found.append(Block(page, line, match[1] or "", runs, match[3]))
    return found


def of(*languages: str, runs: bool | None = None) -> list[Block]:
    return [block for block in blocks() if block.language in languages and runs in (None, block.runs)]


def named(found: list[Block]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("block", found, ids=[block.name for block in found])


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_server(tmp_path_factory.mktemp("home"), "scripted") as address:
        yield address


@pytest.mark.parametrize("name", GENERATED)
def test_generated_pages_are_fresh(name: str) -> None:
    written = (ROOT / "docs" / name).read_text("utf-8")
    assert written == GENERATED[name](), f"docs/{name} is old: run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(FENCE.sub("", page.read_text("utf-8")))
    assert [target for target in targets if not (page.parent / target).exists()] == []


@named(of("json", "yaml"))
def test_data_in_documents_is_well_formed(block: Block) -> None:
    json.loads(block.text) if block.language == "json" else yaml.safe_load(block.text)


@named(of("bash", "sh", "console"))
def test_commands_in_documents_are_understood(block: Block) -> None:
    text = block.text.replace("\\\n", " ")
    for line in text.splitlines():
        with contextlib.suppress(ValueError):  # a quoted text of several lines
            words = shlex.split(line.removeprefix("$ "), comments=True)
            program = Path(words[0]).name if words else ""
            if program == "pippin" and len(words) > 1 and words[1] in VERBS:
                _understand(words[1:])


OF_OTHER_PROGRAMS = {
    "--add-host",
    "--allow-all-tools",
    "--allowedTools",
    "--analytics-disable",
    "--apikey",
    "--apply",
    "--auth-type",
    "--auto",
    "--backend",
    "--baseurl",
    "--build",
    "--constraint",
    "--data",
    "--fail",
    "--fast",
    "--for",
    "--hf-path",
    "--max-connections",
    "--mlx-path",
    "--modelid",
    "--no-show-model-warnings",
    "--profile",
    "--out",
    "--output",
    "--print",
    "--provider",
    "--q-bits",
    "--q-group-size",
    "--q-mode",
    "--quant-predicate",
    "--schema",
    "--service",
    "--set",
    "--silent",
    "--tasks",
    "--timeout",
    "--transport",
    "--url",
    "--user",
    "--write",
    "--yolo",
}
OF_BENCHMARKS = ("performance.md", "engine.md", "reliability.md", "vision.md")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-zA-Z]*(?:-[a-z]+)*")
REMOVED = re.compile(r"^### Removed\n.*?(?=^##|\Z)", re.MULTILINE | re.DOTALL)
"""What the changelog says of flags that are gone."""
OF_THE_COMMAND = [
    page for page in PAGES if page.name not in OF_BENCHMARKS and page.parent.name != "measurements"
]


@pytest.mark.parametrize("page", OF_THE_COMMAND, ids=[str(page.relative_to(ROOT)) for page in OF_THE_COMMAND])
def test_flags_in_documents_exist(page: Path) -> None:
    shown = "".join(help_of(name) for name in VERBS)
    known = {*flags(), *FLAG.findall(shown), *OF_OTHER_PROGRAMS}
    text = REMOVED.sub("", page.read_text("utf-8"))
    assert set(FLAG.findall(text)) <= known


def _understand(words: list[str]) -> None:
    match words:
        case ["serve" | "launch" as verb, *arguments]:
            arguments = [word for word in arguments if word not in ("...", "&")]
            parsed = option_parser(verb, "").parse(arguments)
            files = ("--config", "--models-config")
            load([flag for flag in parsed.given if flag.name not in files], {})
        case _:
            pass


@named(of("bash", "python", runs=True))
def test_examples_in_documents_run(block: Block, address: str, tmp_path: Path) -> None:
    text = ADDRESS.sub(address, block.text)
    for model in MODELS:
        text = text.replace(model, "scripted")
    command = ["bash", "-euo", "pipefail", "-c"] if block.language == "bash" else [sys.executable, "-c"]
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [*command, text],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{block.name}\n{done.stdout}\n{done.stderr}"


def test_a_benchmark_is_named_by_a_page_or_imported_by_one_that_is() -> None:
    texts = {path.stem: path.read_text() for path in (ROOT / "benchmarks").glob("[!_]*.py")}
    named = "".join(path.read_text() for path in [*PAGES, ROOT / "Makefile"])
    found: set[str] = set()
    while added := {
        name
        for name in texts.keys() - found
        if re.search(
            rf"benchmarks(\.|/| import .*\b){name}\b", "".join([named, *(texts[each] for each in found)])
        )
    }:
        found |= added
    assert texts.keys() == found
