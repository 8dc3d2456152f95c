"""Each vision-language family answers as transformers does, from checkpoints that it saves.

`PIPPIN_ORACLE_WRITE=1` writes the verdicts anew, from which docs/engine.md has its table.
"""

import io
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import yaml
from PIL import Image as Pictures

from pippin.core.conversation import Inline, Video
from pippin.core.errors import ServerError
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.vision.checkpoint import load_model
from pippin.engines.language.vision.media import WholePrompt
from pippin.engines.language.vision.model import embedded
from tests.engines.language.vision.any_family import shrink, write
from tests.engines.language.vision.family_settings import FAMILIES
from tests.engines.language.vision.test_video import video
from tests.engines.language.vision.tiny_vision_models import picture, tiny_vision_model
from tests.engines.language.vision.vision_bench import VisionBench

# The first test of all writes the checkpoints.
pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).resolve().parents[4]
ORACLES = ROOT / "tests" / "oracles"
VERDICTS = ORACLES / "vision_verdicts.json"
QUESTION = "Which is larger, and which one is left of the other?"
USUAL = (
    *("gemma3", "gemma4", "idefics3", "llava", "mistral3", "pixtral", "qwen2_5_vl", "qwen2_vl", "qwen3_5"),
    *("qwen3_vl", "smolvlm"),
)
OTHERS = (
    *(
        "aya_vision",
        "glm4v",
        "glm4v_moe",
        "glm_ocr",
        "granite_vision",
        "hunyuan_vl",
        "idefics2",
        "internvl",
        "lfm2_vl",
    ),
    *("llama4", "llava_next", "llava_onevision", "mllama", "muse_glimmer", "paddleocr_vl", "paligemma"),
    *("granite4_vision", "minicpmv4_6", "minicpmv4_7", "molmo2", "qwen3_5_moe", "qwen3_vl_moe"),
    *("cohere_compass", "kimi_k25", "minimax_m3_vl", "muse_spark", "qwen4_exp", "step3p7"),
)
SCALED = (
    "gemma3",
    "glm4v",
    "glm_ocr",
    "llama4",
    "llava",
    "mistral3",
    "paddleocr_vl",
    "qwen2_5_vl",
    "qwen3_5",
    "qwen3_vl",
)
"""A second checkpoint of these families, `qwen3_5-scaled` and so on, has positions scaled by YaRN."""
NAMES = [*USUAL, *OTHERS, *(f"{family}-scaled" for family in SCALED)]
WATCHING = (
    *(
        "gemma4",
        "glm4v",
        "glm4v_moe",
        "internvl",
        "llava_onevision",
        "minimax_m3_vl",
        "muse_spark",
        "qwen2_5_vl",
        "qwen2_vl",
    ),
    *("qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe", "qwen4_exp", "smolvlm"),
)
"""Families that are shown films too."""
OWN_FIELDS = ("max_dynamic_patch", "use_thumbnail")
TEXT = [1, 5, 9, 14, 33, 2, 70]
DIFFERING = yaml.safe_load((ORACLES / "vision.yaml").read_text("utf-8"))["differing"]
CLOSE = 1e-4  # of the logits' standard deviation


class InFloat32:
    """MLX for a module that rounds to 16 bits whatever the weights are stored in."""

    bfloat16 = mx.float32

    def __getattr__(self, name: str) -> Any:
        return getattr(mx, name)


def make(family: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Write a family's folder, with the inputs of a question about pictures."""
    family = family.partition("-")[0]
    if family in USUAL:
        tiny_vision_model(family, folder)
    else:
        shrink(FAMILIES[family], patch)
        write(family, FAMILIES[family], folder)
    if family == "internvl":  # the fields that transformers' class lacks
        config = json.loads((folder / "config.json").read_text())
        kept = {name: value for name, value in config.items() if name not in OWN_FIELDS}
        (folder / "config.json").write_text(json.dumps(kept))
    bench = VisionBench(folder)
    for name, parts in shown(folder.name).items():
        np.savez(folder / f"{name}.npz", **inputs_of(bench.job("a", *parts)))


def shown(name: str) -> dict[str, list[Any]]:
    """The messages for a checkpoint, by name: a question about pictures, and those about films."""
    family = name.partition("-")[0]
    pictures = [picture(60, 28, 1), picture(20, 52, 2)]
    if not family.startswith(("qwen", "idefics")):  # there pictures of unlike sizes are no one array
        pictures.pop()
    found = {"inputs": [*pictures, QUESTION]}
    if name in WATCHING:
        # Transformers takes LLaVA-OneVision's films as one array.
        wide, tall = film(44, (64, 32), 5), film(20, (48, 80), 5 if family == "llava_onevision" else 3)
        found["film"] = [wide, QUESTION]
        found["films"] = [tall, "Then", wide, QUESTION]
        found["beside"] = [wide, "or", *pictures, QUESTION]
        found["behind"] = [*pictures, "or", tall, QUESTION]
    return found


def film(frames: int, size: tuple[int, int], most: int) -> Video:
    """Spots that change their colours, of which so many frames are shown at most."""

    def frame(number: int) -> np.ndarray:
        return np.asarray(Pictures.open(io.BytesIO(picture(*size, number // 4))))

    return Video(Inline(video(frames, size=size, shown=frame)), max_frames=most)


def inputs_of(job: LanguageJob) -> dict[str, Any]:
    """What transformers is given for a prompt."""
    assert job.media is not None
    if isinstance(job.media, WholePrompt):
        return {"input_ids": job.media.ids, **job.media.arrays}
    if job.media.joint:
        [placed] = job.media.placed
        return {"input_ids": np.array([placed.medium.tokens]), **placed.medium.arrays}
    names = {name for placed in job.media.placed for name in placed.medium.arrays}
    arrays = {
        name: joined([each.medium.arrays[name] for each in job.media.placed if name in each.medium.arrays])
        for name in names
    }
    kinds = np.zeros((1, len(job.prompt)), np.int64)
    for placed in job.media.placed:
        kinds[0, list(placed.positions)] = 1 + (placed.medium.modality == "video")
    arrays |= {"mm_token_type_ids": kinds, "token_type_ids": kinds}
    return {"input_ids": np.array([job.prompt]), **arrays}


def joined(arrays: list[Any]) -> np.ndarray:
    """The arrays of several media, where SmolVLM has the pictures of one in their second axis."""
    return np.concatenate(arrays, axis=int(len({np.shape(each)[1:] for each in arrays}) > 1))


@pytest.fixture(scope="module")
def written(oracle_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder with all checkpoints and what transformers answers."""
    folder = Path(os.environ.get("PIPPIN_VISION_FOLDER", tmp_path_factory.mktemp("vision")))
    with pytest.MonkeyPatch.context() as patch:
        for module in ("language", "sanitize"):
            patch.setattr(f"mlx_vlm.models.muse_spark.{module}.mx", InFloat32())
        if not any(folder.iterdir()):
            for family in NAMES:
                make(family, folder / family, patch)
            subprocess.run([oracle_python, ORACLES / "vision_oracle.py", folder], check=True, timeout=900)
        yield folder


@pytest.fixture(scope="module")
def verdicts() -> Iterator[dict[str, str]]:
    """What is known; what is found anew is kept if it is asked for."""
    found = json.loads(VERDICTS.read_text("utf-8")) if VERDICTS.exists() else {}
    yield found
    if os.environ.get("PIPPIN_ORACLE_WRITE"):
        kept = {name: found[name] for name in sorted(found) if name in NAMES}
        VERDICTS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", "utf-8")


def logits(bench: VisionBench, parts: list[Any]) -> np.ndarray:
    """Of a message whose media are seen: [tokens, vocabulary]."""
    job = bench.job("a", *parts)
    if isinstance(job.media, WholePrompt):
        model, _ = load_model(bench.folder)
        given = embedded(model.inner, job.media)
        ids = mx.array(job.media.ids)
        return np.array(model.inner.language_model(ids, cache=model.make_cache(), **given).logits[0])
    sight = bench.engine.vision
    assert sight is not None
    assert job.media is not None
    viewing = sight.open(job.prompt, job.media)
    while (medium := viewing.missing(0, len(job.prompt))) is not None:
        viewing.encode(medium, wait=True)
    inputs = viewing.inputs(tuple(job.prompt), 0)
    return np.array(bench.model(mx.array([job.prompt]), bench.model.make_cache(), inputs=inputs)[0])


def close(found: np.ndarray, expected: np.ndarray) -> bool:
    return bool(np.abs(found - expected).max() < CLOSE * expected.std())


def verdict(folder: Path) -> str:
    if not (folder / "inputs.npy").exists():
        return "transformers fails"
    bench = VisionBench(folder)
    differing = []
    for name, parts in shown(folder.name).items():
        try:
            found = logits(bench, parts)
        except ServerError as error:
            if "takes text only" not in error.report.message:
                return f"refused: {error.report.message}"
            text = np.array(bench.model(mx.array([TEXT]), bench.model.make_cache())[0])
            return "text equal" if close(text, np.load(folder / "text.npy")) else "differs"
        failed = not (folder / f"{name}.npy").exists()
        if failed or not close(found, np.load(folder / f"{name}.npy")):
            differing.append(name if not failed else f"{name} fails")
    if differing:
        return ", ".join(["differs", *differing])
    return "equal, films too" if folder.name in WATCHING else "equal"


@pytest.mark.long
@pytest.mark.parametrize("family", NAMES)
def test_a_checkpoint_of_transformers_is_answered_as_the_table_says(
    family: str, written: Path, verdicts: dict[str, str]
) -> None:
    own = verdict(written / family)
    if os.environ.get("PIPPIN_ORACLE_WRITE"):
        verdicts[family] = own
    assert own == verdicts[family]


def test_no_family_answers_in_another_way_without_a_word() -> None:
    known = json.loads(VERDICTS.read_text("utf-8"))
    assert sorted(known) == sorted(NAMES)
    assert {name for name, own in known.items() if own.startswith("differs")} == {*DIFFERING}
