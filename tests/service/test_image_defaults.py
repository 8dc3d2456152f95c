"""Steps and guidance of image models, as mlx-vlm says of a folder."""

from pathlib import Path
from subprocess import CompletedProcess

import msgspec
import pytest

from pippin.core.errors import ServerError
from pippin.core.models import FolderDefaults, ImageDefaults, ModelInfo
from pippin.service import image_defaults
from pippin.service.image_defaults import find_defaults
from tests.engines.images.tiny_families import tiny_flux2
from tests.engines.images.tiny_pipelines import tiny_z_image


def model(name: str, folder: str | None = "/models/x") -> ModelInfo:
    return ModelInfo(id=name, kind="images", path=folder)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders of which mlx-vlm is asked; it only generates by the one that it knows."""
    folders: list[str] = []

    def run(command: list[str], **_: object) -> CompletedProcess[bytes]:
        folders.append(command[-1])
        told = msgspec.json.encode(FolderDefaults(ImageDefaults(20, 7.0), None))
        return CompletedProcess(command, 0 if command[-1] == "/models/x" else 1, told)

    image_defaults.told_of.cache_clear()
    monkeypatch.setattr(image_defaults.subprocess, "run", run)
    return folders


def test_a_folder_that_mlx_vlm_knows_has_its_defaults_and_is_asked_once(asked: list[str]) -> None:
    for _ in range(2):
        assert find_defaults(model("ideogram-4-fp8"), "generate") == ImageDefaults(20, 7.0)
    assert asked == ["/models/x"]


@pytest.mark.usefixtures("asked")
def test_a_task_that_the_folder_cannot_do_is_refused() -> None:
    with pytest.raises(ServerError, match="must be generate") as caught:
        find_defaults(model("ideogram-4-fp8"), "edit")
    assert (caught.value.report.status, caught.value.report.param) == (400, "task")


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("folder", ["/models/y", None])
def test_what_mlx_vlm_does_not_know_has_no_defaults(folder: str | None) -> None:
    with pytest.raises(ServerError, match="pull it first"):
        find_defaults(model("unknown", folder), "generate")


@pytest.mark.long
def test_mlx_vlm_is_asked_in_a_process_of_its_own(tmp_path: Path) -> None:
    painter = tiny_z_image(tmp_path / "z-image", turbo=True)
    assert find_defaults(model("x", str(painter)), "edit") == ImageDefaults(8, 0.0)
    other = tiny_flux2(tmp_path / "flux2-klein-base-9b")
    assert find_defaults(model("x", str(other)), "generate") == ImageDefaults(50, 4.0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ServerError, match="pull it first"):
        find_defaults(model("x", str(tmp_path / "empty")), "generate")
