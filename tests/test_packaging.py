"""What ships the package agrees with what the package says: the formula, the containers, the release."""

import hashlib
import re
import shutil
import subprocess
import sysconfig
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from scripts.check_install import PYTHONS
from scripts.write_formula import formula

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_python_that_is_promised_is_checked() -> None:
    prefix = "Programming Language :: Python :: 3."
    promised = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if name.startswith(prefix)]
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    assert promised == list(PYTHONS) == release["jobs"]["install"]["strategy"]["matrix"]["python"]
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "packaging/containers").iterdir()), ids=lambda path: path.name
)
def test_a_container_installs_extras_that_there_are(path: Path) -> None:
    extras = set(re.findall(r"--extra ([\w-]+)", path.read_text()))
    assert {"mcp", "vision"} <= extras <= PROJECT["optional-dependencies"].keys()


@pytest.mark.parametrize(
    "path", sorted((ROOT / "packaging/containers").iterdir()), ids=lambda path: path.name
)
def test_a_container_runs_as_nobody_special(path: Path) -> None:
    """The user is a number, made in the same file, and is not root."""
    text = path.read_text()
    [user] = re.findall(r"^USER (\d+)$", text, re.MULTILINE)
    assert int(user) > 0
    assert f"--uid {user} " in text


WORKFLOWS = sorted((ROOT / ".github/workflows").iterdir())


FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").iterdir())


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_the_forms_of_issues_have_the_form_that_github_demands(path: Path) -> None:
    schema = "issue-config" if path.stem == "config" else "issue-forms"
    words = ("check-jsonschema", "--builtin-schema", f"vendor.github-{schema}")
    done = checked(*words, files=[path])
    assert done.returncode == 0, done.stdout + done.stderr


def checked(*words: str, files: Sequence[Path] = WORKFLOWS) -> subprocess.CompletedProcess[str]:
    """Of a program that comes with a package, for the workflows."""
    command = [str(Path(sysconfig.get_path("scripts")) / words[0]), *words[1:], *map(str, files)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_the_workflows_have_the_form_that_github_demands() -> None:
    done = checked("check-jsonschema", "--builtin-schema", "vendor.github-workflows")
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_audit_finds_nothing_unsafe_in_the_workflows() -> None:
    """That a pull request's text is run, that a job has more rights than it needs, and the like."""
    done = checked("zizmor", "--offline", "--no-progress", "--format", "plain", "--min-severity", "low")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_workflow_needs_no_secret_but_the_token_that_publishes() -> None:
    secrets = {name for path in WORKFLOWS for name in re.findall(r"secrets\.(\w+)", path.read_text())}
    assert secrets == {"PYPI_TOKEN"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_named_by_their_commits(path: Path) -> None:
    """A tag of an action can be moved to other code, which would then see the token that publishes."""
    text = path.read_text()
    used = re.findall(r"uses: (\S+)", text)
    assert used
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", each) for each in used)
    checkouts = [
        step
        for job in yaml.safe_load(text)["jobs"].values()
        for step in job["steps"]
        if step.get("uses", "").startswith("actions/checkout@")
    ]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_the_formula_names_the_release(tmp_path: Path) -> None:
    source = tmp_path / "pippin-1.2.3.tar.gz"
    source.write_bytes(b"sources")
    written = formula(source)
    assert "/pippin-1.2.3.tar.gz" in written
    assert hashlib.sha256(b"sources").hexdigest() in written
    assert "@" not in written.replace("python@3.12", "")
    with pytest.raises(ValueError, match="not called"):
        formula(tmp_path / "other.zip")


@pytest.mark.skipif(shutil.which("ruby") is None, reason="needs Ruby")
def test_ruby_carries_the_formula_out(tmp_path: Path) -> None:
    """What Ruby does not parse, or what a formula has no word for, would fail on users' machines alone."""
    source = tmp_path / "pippin-1.2.3.tar.gz"
    source.write_bytes(b"sources")
    written = tmp_path / "pippin.rb"
    written.write_text(formula(source))
    done = subprocess.run(
        ["ruby", "-w", str(ROOT / "tests/data/formula_reader.rb"), str(written)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    [extras] = re.findall(r"BUILD\[([\w,]+)\]", done.stdout)
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
    [python] = set(re.findall(r"python@?(3\.\d+)", done.stdout))
    assert python in PYTHONS
    assert [line.partition(" ")[0] for line in done.stdout.splitlines()] == [
        *("service", "depends", "python3.12", "LIBEXEC/bin/pip", "link", "completion", "test")
    ]


SYSTEMS = [
    ("Darwin arm64", False, ["pippin[vision]==1.2.3"]),
    ("Linux x86_64", False, ["--with", "pippin-kernels", "pippin[cpu,vision]==1.2.3"]),
    ("Linux x86_64", True, ["pippin[cuda,vision]==1.2.3"]),
]


@pytest.mark.parametrize(("system", "nvidia", "asked"), SYSTEMS, ids=["Mac", "Linux", "NVIDIA"])
def test_the_installer_asks_uv_for_what_the_system_needs(
    tmp_path: Path, system: str, nvidia: bool, asked: list[str]
) -> None:
    done = installer(tmp_path, system, "uv", *["nvidia-smi"] * nvidia)
    assert done.stdout.splitlines()[0] == " ".join(
        ["uv", "tool", "install", "--upgrade", "--python", ">=3.11", *asked]
    )
    assert "pippin run MODEL" in done.stdout


def test_the_installer_says_where_it_does_not_run(tmp_path: Path) -> None:
    done = installer(tmp_path, "Darwin x86_64", "uv")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Apple processor" in done.stderr


def installer(folder: Path, system: str, *programs: str) -> subprocess.CompletedProcess[str]:
    """Runs it where there are only these programs, each of which prints how it was called."""
    name, machine = system.split()
    (folder / "uname").write_text(f'#!/bin/sh\n[ "$1" = -s ] && echo {name} || echo {machine}\n')
    for program in programs:
        (folder / program).write_text('#!/bin/sh\necho "${0##*/} $*"\n')
    for path in folder.iterdir():
        path.chmod(0o755)
    return subprocess.run(
        ["/bin/sh", str(ROOT / "packaging/install.sh")],
        env={"PATH": str(folder), "HOME": "/", "PIPPIN_VERSION": "1.2.3", "PIPPIN_EXTRAS": "vision"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_one_version_is_told_everywhere() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    kernels = tomllib.loads((ROOT / "kernels/pyproject.toml").read_text())["project"]
    assert cited["version"] == kernels["version"] == PROJECT["version"]
    assert cited["license"] == PROJECT["license"]
    assert f" {PROJECT['version']}\n" in (ROOT / "CHANGELOG.md").read_text()


def test_no_extra_names_another_of_this_package_under_a_marker() -> None:
    """Hatchling writes such an extra without its marker: what is for the Mac alone would be asked for on Linux too,
    where it can't be installed."""
    for extra, requirements in PROJECT["optional-dependencies"].items():
        for requirement in requirements:
            assert not (requirement.startswith("pippin[") and ";" in requirement), extra


def test_where_a_token_is_held_or_a_container_is_made_nothing_is_installed_but_what_is_locked() -> None:
    commands: list[str] = []
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            if "secrets." in str(job):
                commands += [step.get("run", "") for step in job["steps"]]
    commands += [path.read_text() for path in (ROOT / "packaging/containers").glob("Dockerfile*")]
    installs = [
        part
        for text in commands
        for part in re.split("&&|\n(?! )", text)
        if re.search(r"\b(pip install|uv sync)\b", part)
    ]
    assert len(installs) == 7
    for install in installs:
        assert re.search("--require-hashes|--frozen|--no-deps", install), install
    assert len(re.findall("sha256:", (ROOT / "packaging/uv.txt").read_text())) > 10
