"""Makes the requests anew from the newest packages, and prints what is new.

python -m tests.corpus
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.agents.programs import CACHE, node
from tests.corpus import javascript_types, python_types
from tests.corpus.sources import BODY, JAVASCRIPT, LISTS, PYTHON, RUN

REQUESTS: Final = Path(__file__).parent / "requests.json"
FOLDER: Final = CACHE.parent / "corpus"


def main() -> None:
    before = json.loads(REQUESTS.read_text()) if REQUESTS.exists() else {}
    made = {"PyPI": of_python(), "npm": of_javascript()}
    for path in sorted(set(paths_of(made)) - set(paths_of(before))):
        print("new:", " ".join(path))
    for path in sorted(set(paths_of(before)) - set(paths_of(made))):
        print("gone:", " ".join(path))
    REQUESTS.write_text(json.dumps(made, indent=1) + "\n")


def paths_of(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The places of all fields, with packages and addresses before them."""
    yield path
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from paths_of(inner, (*path, name))
    if isinstance(value, list):
        for inner in value:
            yield from paths_of(inner, (*path, "[]"))


def of_python() -> dict[str, Any]:
    folder = FOLDER / "python"
    install = [
        Path(sys.executable).with_name("uv"),
        "pip",
        "install",
        "--quiet",
        "--upgrade",
        "--target",
        str(folder),
    ]
    subprocess.run([*install, *PYTHON], check=True)
    places = [
        name for addresses in PYTHON.values() for types in addresses.values() for name in types.values()
    ]
    done = subprocess.run(
        [sys.executable, python_types.__file__],
        env={"PYTHONPATH": str(folder)},
        input=json.dumps(places),
        capture_output=True,
        text=True,
        check=True,
    )
    samples = dict(zip(places, json.loads(done.stdout), strict=True))
    return {
        package: {
            address: body_of({field: samples[name] for field, name in types.items()})
            for address, types in own.items()
        }
        for package, own in PYTHON.items()
    }


def of_javascript() -> dict[str, Any]:
    folder = FOLDER / "npm"
    more = [package for *_, needed in RUN.values() for package in needed]
    newest = [f"{package}@latest" for package in (*JAVASCRIPT, *RUN, *more)]
    subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder), *newest],
        check=True,
        capture_output=True,
    )

    def value(package: str, place: str) -> Any:
        file, _, interface = place.partition(":")
        return javascript_types.sample((folder / "node_modules" / package / file).read_text(), interface)

    typed = {
        package: {
            address: body_of({field: value(package, name) for field, name in types.items()})
            for address, types in own.items()
        }
        for package, own in JAVASCRIPT.items()
    }
    return typed | {package: {address: sent(folder, file)} for package, (address, file, _) in RUN.items()}


def sent(folder: Path, program: str) -> Any:
    """The body that a program of this folder sends, run where the packages are."""
    done = subprocess.run(
        [node() / "node", "--input-type=module"],
        cwd=folder,
        input=Path(__file__).with_name(program).read_text(),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return json.loads(done.stdout)


def body_of(samples: dict[str, Any]) -> Any:
    """The body that holds these values in its fields."""
    if BODY in samples:
        return samples[BODY]
    return {field: [value] if field in LISTS else value for field, value in samples.items()}


if __name__ == "__main__":
    main()
