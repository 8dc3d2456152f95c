"""A Mage-Flow's own name tells whether it edits, and no folder that it lies in."""

from pathlib import Path

import pytest

from pippin.core.models import ImageDefaults
from pippin.engines.images.defaults import find_defaults
from pippin.engines.images.painting import find_classes, mage_flow_variant
from tests.engines.images.tiny_pipelines import write_json


def mage_flow(folder: Path) -> Path:
    for part in ("transformer", "vae", "text_encoder"):
        write_json(folder / part / "config.json", {})
    write_json(folder / "model_index.json", {"_class_name": "MageFlowPipeline"})
    return folder


@pytest.mark.parametrize(
    ("path", "steps", "edits"),
    [
        ("Mage-Flow", 20, False),
        ("edited/database/Mage-Flow", 20, False),
        ("turbo/Mage-Flow-Base", 30, False),
        ("credits/Mage_Flow_Turbo", 4, False),
        ("base/Mage-Flow-Edit-Turbo", 4, True),
        ("models--microsoft--Mage-Flow-Edit/snapshots/0123abc", 30, True),
        ("edit/models--microsoft--Mage-Flow/snapshots/0123abc", 20, False),
    ],
)
def test_the_models_own_name_tells_what_it_does(tmp_path: Path, path: str, steps: int, edits: bool) -> None:
    found = find_defaults(mage_flow(tmp_path / path))
    assert found is not None
    shown = ImageDefaults(steps, 1.0 if steps == 4 else 5.0)
    assert (found.generate, found.edit) == ((None, shown) if edits else (shown, None))


def test_what_a_conversion_wrote_counts_before_the_name(tmp_path: Path) -> None:
    folder = mage_flow(tmp_path / "Mage-Flow-Edit")
    write_json(folder / "mlx_mage_flow.json", {"variant": "mage-flow-turbo"})
    classes = find_classes(folder)
    assert classes is not None
    assert classes.edit is None
    assert classes.defaults(classes.generation, folder).steps == 4


def test_every_name_is_one_that_mlx_vlm_knows() -> None:
    from mlx_vlm.models.mage_flow.config import list_variants

    assert {mage_flow_variant(Path("/nowhere") / name.title()) for name in list_variants()} == set(
        list_variants()
    )
