"""Every family of mlx-vlm's image pipelines but Z-Image (`test_library_images.py`): pixel by pixel as mlx-vlm paints.

The checkpoints are random, tiny and in the real format. Where mlx-vlm's code fixes a part's size, both sides run with a
smaller one (`instead`)."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import numpy as np
import pytest

from pippin.core.errors import ServerError
from pippin.core.events import Failed
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.tasks import GenerateImages
from pippin.engines import pictures
from pippin.engines.blocking import BlockingJob
from pippin.engines.images import painting
from pippin.engines.images.painting import ImagePreparer
from tests.engines.images import tiny_families as tiny
from tests.engines.images.library_bench import SMALL, Painter, Pixels, edited, generated, png
from tests.engines.images.tiny_pipelines import Json, write_json
from tests.engines.language.vision.any_family import Family, shrink

SMALL_VAE: Final[Json] = {
    "decoder_block_out_channels": tiny.SMALL_CHANNELS,
    "encoder_block_out_channels": tiny.SMALL_CHANNELS,
}


@dataclasses.dataclass(frozen=True)
class Shown:
    """How a family is asked, and what it reads."""

    make: Callable[[Path], Path]
    name: str
    """Of the folder: some families tell their variants by it."""
    side: int
    """Of the smallest picture that it paints."""
    instead: Callable[[], Json] = dict
    """What is put into mlx-vlm's code, as `Family.instead` of the vision families has it."""
    guided: Json | None = None
    """Settings that change a picture."""
    generates: bool = True
    edits: Json | None = None
    """Settings of an edit, of a family that edits."""
    several: bool = False
    sees_alpha: bool = False
    """Whether it has a channel for transparency, and needs no white behind it."""
    extra: Json = dataclasses.field(default_factory=dict)
    """What mlx-vlm is told and Pippin always says."""
    checks: bool = True
    """Whether it refuses sides that are no multiples of 16; the API lets none through."""


NEGATIVE: Final = {"guidance": 3.0, "negative_prompt": "blue"}
FAMILIES: dict[str, Shown] = {
    "moss_image": Shown(tiny.tiny_moss_image, "moss-image", 32, guided={"guidance": 7.0}),
    "ming_image": Shown(tiny.tiny_ming_image, "ming-image", 256),
    "flux2": Shown(
        tiny.tiny_flux2,
        "flux2-klein-4b",
        256,
        lambda: tiny.small_flux2("flux2-klein-4b"),
        guided={"guidance": 3.0},
        edits={},
        several=True,
    ),
    "flux2_kv": Shown(
        tiny.tiny_flux2,
        "flux2-klein-9b-kv",
        256,
        lambda: tiny.small_flux2("flux2-klein-9b-kv"),
        edits={"guidance": 2.0},
        several=True,
    ),
    "qwen_image": Shown(
        tiny.tiny_qwen_image,
        "qwen-image-2.1",
        64,
        tiny.small_qwen_image,
        guided=NEGATIVE,
        edits=NEGATIVE,
        several=True,
        sees_alpha=True,
        checks=False,
    ),
    "ernie_image": Shown(
        tiny.tiny_ernie_image,
        "ernie-image",
        32,
        lambda: {"ernie_image.weights.Flux2VAE": SMALL_VAE},
        guided=NEGATIVE,
        edits={**NEGATIVE, "strength": 0.7},
    ),
    "mage_flow": Shown(
        tiny.tiny_mage_flow,
        "mage-flow",
        512,
        lambda: {"mage_flow.weights.MageVAE": tiny.small_mage_vae()},
        guided=NEGATIVE,
    ),
    "mage_flow_edit": Shown(
        tiny.tiny_mage_flow,
        "mage-flow-edit",
        512,
        lambda: {"mage_flow.weights.MageVAE": tiny.small_mage_vae()},
        generates=False,
        edits=NEGATIVE,
        several=True,
    ),
    "ideogram4": Shown(
        tiny.tiny_ideogram, "ideogram-4-fp8", 256, lambda: tiny.FLUX2_VAE, guided={"guidance": 3.0}
    ),
    "llada_image": Shown(
        tiny.tiny_llada_image,
        "llada-image",
        64,
        lambda: tiny.FLUX2_VAE,
        guided=NEGATIVE,
        edits=NEGATIVE,
    ),
    "flux3": Shown(
        tiny.tiny_flux3,
        "flux-3-image-klein-base",
        64,
        lambda: {"flux3.weights.Flux3VAE": tiny.small_flux3_vae()},
        guided={"guidance": 2.0},
        edits={},
        several=True,
        extra={"upsample_prompt": False},
    ),
}
GENERATING: Final = [name for name, shown in FAMILIES.items() if shown.generates]
EDITING: Final = [name for name, shown in FAMILIES.items() if shown.edits is not None]


@pytest.fixture
def shown(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Shown, Painter]]:
    """A family with its painter, while mlx-vlm's code is made small."""
    found = FAMILIES[request.param]
    with pytest.MonkeyPatch.context() as patch:
        shrink(Family(instead=found.instead()), patch)
        folder = found.make(tmp_path / found.name)
        painter = Painter(folder)
        try:
            yield found, painter
        finally:
            painter.engine.close()


def same(found: Pixels, expected: Pixels) -> bool:
    return found.shape == expected.shape and bool(np.array_equal(found, expected))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shown", GENERATING, indirect=True)
def test_pictures_are_mlx_vlms(shown: tuple[Shown, Painter]) -> None:
    """Twice, with other settings between: pipelines give parts of themselves up after a picture."""
    family, painter = shown
    asked = {"width": family.side, "height": family.side, "steps": 2}
    expected = generated(painter.folder, **asked, **family.extra)
    assert same(painter.paint(**asked)[0], expected)
    if family.guided is not None:
        guided = painter.paint(**asked, **family.guided)[0]
        assert same(guided, generated(painter.folder, **asked, **family.guided, **family.extra))
        assert not same(guided, expected)
    assert not same(painter.paint(**asked, seed=6)[0], expected)
    cancel(painter, **asked)
    if family.edits is None:
        assert painter.refusal(images=(png(),), **asked).report.param == "image"
    if family.checks:
        (failed,) = painter.events(**{**asked, "width": family.side + 8})
        assert isinstance(failed, Failed)
        assert (failed.error.kind, failed.error.status) == ("invalid_request", 400)
    assert same(painter.paint(**asked)[0], expected)


@pytest.mark.parametrize(
    ("pipeline", "name", "generates", "edits"),
    [
        # Its decoder is FLUX.2's, which edits.
        ("Ideogram4Pipeline", "ideogram-4-fp8", True, False),
        ("MageFlowPipeline", "mage-flow", True, False),
        ("MageFlowPipeline", "mage-flow-edit", False, True),
        ("Flux2KleinPipeline", "flux2-klein-4b", True, True),
    ],
)
def test_a_folder_has_the_classes_of_its_own_tasks(
    pipeline: str, name: str, generates: bool, edits: bool, tmp_path: Path
) -> None:
    folder = tmp_path / name
    for part in ("transformer", "unconditional_transformer", "text_encoder", "vae", "tokenizer"):
        write_json(folder / part / "config.json", {})
        for file in ("tokenizer.json", "model.safetensors"):
            (folder / part / file).touch()
    write_json(folder / "vae" / "config.json", {"_class_name": "AutoencoderKLFlux2"})
    write_json(folder / "model_index.json", {"_class_name": pipeline})
    found = painting.find_classes(folder)
    assert found is not None
    assert (found.generation is not None, found.edit is not None) == (generates, edits)


@pytest.mark.parametrize(
    ("family", "given", "expected"),
    [
        ("flux2", (96, 64), (None, None)),
        ("z_image", (96, 64), (1248, 832)),
        ("mage_flow", (4000, 500), (2048, 512)),
    ],
)
def test_an_edit_without_a_size_has_one_that_the_family_takes(
    family: str,
    given: tuple[int, int],
    expected: tuple[int | None, int | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Editor:
        model_type = family

    asked: list[GenerateImages] = []
    monkeypatch.setattr(painting, "paint", lambda task, *_: asked.append(task))
    spec = WorkerSpec(info=ModelInfo(id="editor", kind="images", path="/nowhere"), options={})
    preparer = ImagePreparer(spec, painting.Classes(None, Editor))
    job = preparer.prepare("a", GenerateImages(prompt="x", images=(png((1, 2, 3), *given),)))
    assert isinstance(job, BlockingJob)
    job.run(cast(Any, None), cast(Any, None))
    assert [(task.width, task.height) for task in asked] == [expected]


def test_sides_that_a_pipeline_would_round_unasked_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Editor:
        model_type = "qwen_image"

    spec = WorkerSpec(info=ModelInfo(id="editor", kind="images", path="/nowhere"), options={})
    preparer = ImagePreparer(spec, painting.Classes(None, Editor))
    with pytest.raises(ServerError, match="multiples of 32"):
        preparer.prepare("a", GenerateImages(prompt="x", images=(png(),), width=48, height=64))


def test_a_pipeline_keeps_few_prompts() -> None:
    """Those of FLUX.2 and Mage-Flow keep all that were ever asked."""
    pipeline = object.__new__(painting.Pipeline)
    kept = {str(number): number for number in range(20)}
    pipeline._held = SimpleNamespace(pipeline=SimpleNamespace(prompt_cache=kept))
    pipeline.forget()
    assert list(kept) == ["16", "17", "18", "19"]


def test_a_prompt_that_lies_too_deep_in_itself_is_the_clients_fault(tmp_path: Path) -> None:
    painter = Painter(tiny.tiny_ideogram(tmp_path / "ideogram-4-fp8"))
    try:
        (failed,) = painter.events(prompt='{"a":' * 6000, width=256, height=256)
        assert isinstance(failed, Failed)
        # From Python 3.12 on it is read, and found to have no end.
        assert failed.error.status == 400
    finally:
        painter.engine.close()


def test_no_language_model_is_fetched_to_rewrite_a_prompt() -> None:
    """mlx-vlm's FLUX.3 does that if it is not told otherwise."""
    asked: list[Any] = []

    class Flux3:
        classes = SimpleNamespace(family="flux3", generation=None)

        def as_class(self, wanted: Any) -> Any:
            return self

        def generate(self, request: Any) -> Any:
            asked.append(request)
            return SimpleNamespace(image=None)

    painting.painted(cast(painting.Pipeline, Flux3()), GenerateImages(prompt="fish"), [], 1)
    assert asked[0].extra == {"upsample_prompt": False}


def cancel(painter: Painter, **asked: Any) -> None:
    task = GenerateImages(prompt="x", **{**SMALL, **asked, "steps": 150})
    job = painter.preparer.prepare("long", task)
    assert not isinstance(job, tuple)
    painter.engine.submit(job)
    painter.engine.step()
    painter.engine.cancel("long")
    assert not painter.engine.busy


@pytest.mark.long
@pytest.mark.parametrize("shown", ["ernie_image"], indirect=True)
def test_an_edit_without_a_size_is_mlx_vlms(shown: tuple[Shown, Painter], tmp_path: Path) -> None:
    _, painter = shown
    path = tmp_path / "given.png"
    path.write_bytes(png(width=96, height=64))
    found = painter.paint(images=(path.read_bytes(),), width=None, height=None, steps=1)[0]
    assert found.shape == (256, 384, 3)
    assert same(found, edited(painter.folder, [path], width=None, height=None, steps=1))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shown", EDITING, indirect=True)
def test_edited_pictures_are_mlx_vlms(shown: tuple[Shown, Painter], tmp_path: Path) -> None:
    """Before and after a generated one: both are painted by one model's weights. mlx-vlm shows the colours that
    transparency hides, and is given pictures on white."""
    family, painter = shown
    assert family.edits is not None
    asked = {"width": family.side, "height": family.side, "steps": 2}
    given = (png((200, 20, 20, 90), 96, 64), png((10, 90, 200), 64, 64))
    paths = []
    for place, data in enumerate(given):
        paths.append(tmp_path / f"given-{place}.png")
        picture = pictures.decode(data, param="image", keep_alpha=family.sees_alpha)
        picture.save(paths[-1])
    settings = {**asked, **family.edits}
    expected = edited(painter.folder, paths[:1], **settings, **family.extra)
    assert same(painter.paint(images=given[:1], **settings)[0], expected)
    assert not same(painter.paint(images=given[1:], **settings)[0], expected)
    if family.generates:
        assert same(painter.paint(**asked)[0], generated(painter.folder, **asked, **family.extra))
    else:
        assert painter.refusal(**asked).report.param == "image"
    if family.several:
        both = edited(painter.folder, paths, **settings, **family.extra)
        assert same(painter.paint(images=given, **settings)[0], both)
    else:
        assert painter.refusal(images=given, **asked).report.param == "image"
    assert same(painter.paint(images=given[:1], **settings)[0], expected)
