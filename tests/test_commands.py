"""Every command that README, docs and messages of the source print is one that can be typed, and works where it can."""

import ast
import contextlib
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from pippin.cli.arguments import option_parser
from pippin.cli.main import ALIASES, VERBS, main, verb_of
from pippin.config.load import load

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
)
PROGRAMS = "(?:pippin|make|pip|uv)"
QUOTED = re.compile(rf"`({PROGRAMS} [^`\n]+)`")
OPENED = re.compile(rf"`[\sf\"']*{PROGRAMS} ")
"""What the code of a text has in which a command is quoted, wherever the text is broken."""
LINE = re.compile(rf"^(?: {{4}}|\$ )?({PROGRAMS} [^\n]+)$", re.MULTILINE)
PLACES = re.compile(r"[A-Z][A-Z0-9_/.-]*|\.\.\.|\{.*\}|\[.*\]|<.*>|X|N")
"""Words for which a reader puts another."""
RUN = (
    *(
        "--help",
        "version",
        "list",
        "recommend",
        "recommend --for code",
        "agent --list",
        "config show --changed",
    ),
    *("service status", "completion bash", "search --help", "serve --help-all"),
)
"""What works without a model, a server and the network, in a home where nothing is."""


def printed_by(text: str, *forms: re.Pattern[str]) -> Iterator[str]:
    for form in forms:
        for found in form.findall(text):
            yield found.partition("  #")[0].strip().removesuffix("\\").strip()


def messages() -> Iterator[tuple[str, str]]:
    """The texts of the source, each with its file; what is put into them is a word that stands for another. A file that
    quotes nothing is not parsed: every process of a run collects these tests."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        code = path.read_text()
        for node in ast.walk(ast.parse(code)) if OPENED.search(code) else ():
            match node:
                case ast.JoinedStr(values=values):
                    parts = (part.value if isinstance(part, ast.Constant) else "NAME" for part in values)
                    yield path.stem, "".join(map(str, parts))
                case ast.Constant(value=str(text)):
                    yield path.stem, text


COMMANDS = sorted(
    {
        (str(page.relative_to(ROOT)), each)
        for page in PAGES
        for each in printed_by(page.read_text(), QUOTED, LINE)
    }
    | {(name, each) for name, text in messages() for each in printed_by(text, QUOTED)}
)
OF_PIPPIN = [each for each in COMMANDS if each[1].startswith("pippin ")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_commands_are_found() -> None:
    assert len(OF_PIPPIN) > 150
    assert {"README.md", "docs/start.md", "names"} <= {place for place, _ in OF_PIPPIN}


@pytest.mark.parametrize(("place", "command"), OF_PIPPIN, ids=[" ".join(each) for each in OF_PIPPIN])
def test_a_printed_command_is_understood(place: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(re.split(r" [|<>&] ?| \(|;|,", command)[0], comments=True)[1:]
    words = words[: words.index("--")] if "--" in words else words
    verb = ALIASES.get(words[0], words)[0]
    if PLACES.fullmatch(verb) or verb in ("--help", "help"):
        return
    assert verb in VERBS, f"{place} prints {command}"
    given = [word for word in words[1:] if word not in ("...", "…", "--help", "--help-all")]
    if verb == "serve":
        parsed = option_parser(verb, "").parse(given)
        numbers = tuple(flag for flag in parsed.given if not PLACES.fullmatch(flag.text or ""))
        files = ("--config", "--models-config")
        load([flag for flag in numbers if flag.name not in files], {})
        return
    parser = verb_of(verb).new_parser()
    known = {name for action in parser._actions for name in action.option_strings}
    flags = {word.partition("=")[0] for word in given if word.startswith("-")}
    if verb not in ("service", "config"):  # whose actions take the flags of `serve`
        assert flags <= known, f"{place} prints {command}"


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/migrating/*.md")), ids=lambda page: page.stem)
def test_what_a_migrant_types_instead_is_a_command(page: Path) -> None:
    """`pippin run`, `pull`, ...: those behind the first stand without `pippin`."""
    section = page.read_text().partition("## Other commands\n")[2].partition("\n## ")[0]
    for line in section.strip().splitlines():
        instead = re.findall("`([^`]+)`", line.partition("`: ")[2])
        words = [each for each in instead if re.fullmatch("[a-z]+", each) and each != "pippin"]
        assert {ALIASES.get(word, [word])[0] for word in words} <= set(VERBS), line


@pytest.mark.parametrize("command", RUN)
def test_a_command_that_needs_nothing_works(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("HOME", "PIPPIN_HOME", "XDG_CACHE_HOME", "HF_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    status = 0
    with contextlib.suppress(SystemExit):  # of help
        status = main(command.split())
    assert status == (1 if command == "service status" else 0), capsys.readouterr().err
    assert capsys.readouterr().out


def test_what_is_told_to_be_made_can_be_made() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    told = {
        (place, words[1])
        for place, each in COMMANDS
        if (words := each.split())[0] == "make" and words[1] != "-B"
    }
    assert {
        (place, name) for place, name in told if re.fullmatch(r"[a-z-]+", name) and name not in targets
    } == set()


def test_what_is_told_to_be_installed_is_an_extra_of_this_package() -> None:
    extras = PROJECT["optional-dependencies"].keys()
    for place, each in COMMANDS:
        for named in re.findall(r"(?:pippin|\.|\")\[([a-z,-]+)\]", each):
            assert set(named.split(",")) <= extras, f"{place} prints {each}"
