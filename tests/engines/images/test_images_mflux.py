"""mflux's real pipelines, tiny and with random weights, of every preset: what no drawing can show.

Run in an environment of their own (`PIPPIN_IMAGES_PYTHON`), because mflux pins another MLX on Linux.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pippin.core.image_presets import PRESETS, ImagePreset

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[3]
Ran = dict[str, dict[str, Any]]


@pytest.fixture(scope="module", params=PRESETS, ids=[preset.name for preset in PRESETS])
def preset(request: pytest.FixtureRequest) -> ImagePreset:
    found: ImagePreset = request.param
    return found


@pytest.fixture(scope="module")
def found(preset: ImagePreset, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """What `image_pipeline.py` asked of the preset, and what came."""
    python = Path(os.environ.get("PIPPIN_IMAGES_PYTHON", ROOT / ".venv-images" / "bin" / "python"))
    if not python.is_file():
        pytest.fail(f"There is no {python}: make it with `make .venv-images/.ready`.", pytrace=False)
    done = subprocess.run(
        [python, "tests/oracles/image_pipeline.py", tmp_path_factory.mktemp("images"), preset.name],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"src{os.pathsep}."},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: Ran = json.loads(done.stdout.splitlines()[-1])[preset.name]
    return answer


def test_a_seed_gives_the_same_picture_alone_and_as_one_of_several(found: Ran) -> None:
    assert found["plain"]["last"] == "PicturesDone"
    assert found["plain"]["pictures"] == found["again"]["pictures"] == found["two"]["pictures"][:1]
    assert found["two"]["seeds"] == [7, 8]
    assert len(set(found["two"]["pictures"])) == 2
    assert found["plain"]["steps"] == [1, 2, 3]
    assert found["plain"]["sizes"] == [[64, 64]]


def test_all_that_is_asked_for_changes_the_picture(preset: ImagePreset, found: Ran) -> None:
    changes = {"longer", "other_prompt", "quantized"}
    changes |= {"guided"} if preset.guidance is not None else set()
    changes |= {"negative"} if preset.negative else set()
    changes |= {"from_picture"} if not preset.edits else set()
    changes |= {"from_two"} if preset.pictures > 1 else set()
    changes |= {"lora"} if not preset.captions else set()  # mflux has no LoRA for FIBO
    assert changes <= set(found)
    assert {name: found[name]["last"] for name in changes} == dict.fromkeys(changes, "PicturesDone")
    pictures = [found[name]["pictures"][0] for name in ("plain", *sorted(changes))]
    assert len(set(pictures)) == len(pictures)


def test_a_lora_of_strength_zero_changes_nothing(preset: ImagePreset, found: Ran) -> None:
    if preset.captions:
        assert "lora_off" not in found
    else:
        assert found["lora_off"]["pictures"] == found["plain"]["pictures"]


def test_previews_come_while_it_is_made(found: Ran) -> None:
    assert found["partial"]["partials"] == [0, 1]
    assert found["partial"]["sizes"] == [[64, 64]] * 3


def test_starting_from_a_picture_leaves_steps_out(preset: ImagePreset, found: Ran) -> None:
    assert ("from_picture" in found) is not preset.edits
    if not preset.edits:
        assert found["from_picture"]["steps"] == [1, 2]


def test_a_cancelled_request_stops_and_the_model_goes_on(found: Ran) -> None:
    assert found["cancelled"]["pictures"] == []
    assert found["after_cancel"]["pictures"] == found["plain"]["pictures"]
