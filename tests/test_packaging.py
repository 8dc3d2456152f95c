"""What ships the package agrees with what the package says: the formula, the containers, the release."""

import hashlib
import re
import tomllib
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
    [extras] = re.findall(r'"/source\[([\w,]+)\]"', path.read_text())
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()


def test_the_formula_names_the_release(tmp_path: Path) -> None:
    source = tmp_path / "pippin-1.2.3.tar.gz"
    source.write_bytes(b"sources")
    written = formula(source)
    assert "/pippin-1.2.3.tar.gz" in written
    assert hashlib.sha256(b"sources").hexdigest() in written
    assert "@" not in written.replace("python@3.12", "")
    with pytest.raises(ValueError, match="not called"):
        formula(tmp_path / "other.zip")
