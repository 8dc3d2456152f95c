"""mflux's real pipelines, tiny and with random weights, from its own files on disk: what no drawing can show.

Run in an environment of their own (`PIPPIN_IMAGES_PYTHON`), because mflux pins another MLX on Linux.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    python = Path(os.environ.get("PIPPIN_IMAGES_PYTHON", ROOT / ".cache" / "images" / "bin" / "python"))
    if not python.is_file():
        pytest.fail(f"There is no {python}: docs/images.md says how to make it.", pytrace=False)
    done = subprocess.run(
        [python, "tests/oracles/image_pipeline.py", tmp_path_factory.mktemp("images")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "src"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_a_seed_gives_the_same_picture_alone_and_as_one_of_several(found: dict[str, Any]) -> None:
    assert found["plain"]["pictures"] == found["again"]["pictures"] == found["two"]["pictures"][:1]
    assert found["two"]["seeds"] == [7, 8]
    assert len(set(found["two"]["pictures"])) == 2
    assert found["plain"]["steps"] == [1, 2, 3]
    assert found["plain"]["sizes"] == [[64, 64]]


@pytest.mark.parametrize("change", ["guided", "from_picture", "quantized", "lora", "edit"])
def test_what_is_asked_for_changes_the_picture(found: dict[str, Any], change: str) -> None:
    assert found[change]["last"] == "PicturesDone"
    assert found[change]["pictures"] != found["plain"]["pictures"]


def test_a_lora_of_strength_zero_changes_nothing(found: dict[str, Any]) -> None:
    assert found["lora_off"]["pictures"] == found["plain"]["pictures"]


def test_previews_come_while_it_is_made(found: dict[str, Any]) -> None:
    assert found["partial"]["partials"] == [0, 1]
    assert found["partial"]["sizes"] == [[64, 64]] * 3


def test_starting_from_a_picture_leaves_steps_out(found: dict[str, Any]) -> None:
    assert found["from_picture"]["steps"] == [1, 2]


def test_a_cancelled_request_stops_and_the_model_goes_on(found: dict[str, Any]) -> None:
    assert found["cancelled"]["pictures"] == []
    assert found["after_cancel"]["pictures"] == found["plain"]["pictures"]
