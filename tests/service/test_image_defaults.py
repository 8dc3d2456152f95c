"""Steps and guidance of image models, as mlx-vlm says of a folder."""

from pathlib import Path

import pytest

from pippin.core.errors import ServerError
from pippin.core.models import FolderDefaults, ImageDefaults, ModelInfo
from pippin.service.image_defaults import ImageDefaultsReader
from tests.engines.images.tiny_families import tiny_flux2
from tests.engines.images.tiny_pipelines import tiny_z_image


def model(name: str, folder: str | None = "/models/x") -> ModelInfo:
    return ModelInfo(id=name, kind="images", path=folder)


class Teller:
    """Stands in for mlx-vlm, which only generates by the one folder that it knows."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, folder: str) -> FolderDefaults | None:
        self.asked.append(folder)
        return FolderDefaults(ImageDefaults(20, 7.0), None) if folder == "/models/x" else None


def test_a_folder_that_mlx_vlm_knows_has_its_defaults_and_is_asked_once() -> None:
    teller = Teller()
    reader = ImageDefaultsReader(teller)
    for _ in range(2):
        assert reader.find(model("ideogram-4-fp8"), "generate") == ImageDefaults(20, 7.0)
    assert teller.asked == ["/models/x"]


def test_a_task_that_the_folder_cannot_do_is_refused() -> None:
    with pytest.raises(ServerError, match="must be generate") as caught:
        ImageDefaultsReader(Teller()).find(model("ideogram-4-fp8"), "edit")
    assert (caught.value.report.status, caught.value.report.param) == (400, "task")


@pytest.mark.parametrize("folder", ["/models/y", None])
def test_what_mlx_vlm_does_not_know_has_no_defaults(folder: str | None) -> None:
    with pytest.raises(ServerError, match="pull it first"):
        ImageDefaultsReader(Teller()).find(model("unknown", folder), "generate")


@pytest.mark.long
def test_mlx_vlm_is_asked_in_a_process_of_its_own(tmp_path: Path) -> None:
    reader = ImageDefaultsReader()
    painter = tiny_z_image(tmp_path / "z-image", turbo=True)
    assert reader.find(model("x", str(painter)), "edit") == ImageDefaults(8, 0.0)
    other = tiny_flux2(tmp_path / "flux2-klein-base-9b")
    assert reader.find(model("x", str(other)), "generate") == ImageDefaults(50, 4.0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ServerError, match="pull it first"):
        reader.find(model("x", str(tmp_path / "empty")), "generate")
