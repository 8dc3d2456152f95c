"""Drafters that cannot be run are refused by their names, with the reason and a way out."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.engines.language.drafters.loading import HeadKind, Kind, find_kind
from pippin.engines.language.loading.drafting import check_draft_kind, drafter_of
from tests.engines.language.bench import Bench
from tests.engines.language.tiny_heads import prediction_head, qwen_with_head


def folder_of(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    "kind",
    ["of_next_year_mtp", "hy_v4_mtp", "inkling_mtp", "dspark", "gemma4_dspark", "dflash2", "laguna_dflash"],
)
def test_a_drafter_of_a_type_that_is_not_run_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ServerError, match="cannot run: take a smaller model") as refused:
        find_kind(folder_of(tmp_path, {"model_type": kind}))
    assert kind in str(refused.value)
    assert refused.value.report.param == "draft_model_path"


@pytest.mark.parametrize(
    "architecture", ["mimo", "step3p5", "exaone_moe", "bailing_moe", "longcat_flash", "of_next_year"]
)
def test_an_architecture_whose_heads_are_not_run_is_named(tmp_path: Path, architecture: str) -> None:
    """Not told that its conversion lacks the weights: another would not help."""
    sentence = f"of the architecture '{architecture}', of which this version runs no prediction head"
    with pytest.raises(ServerError, match=sentence):
        find_kind(folder_of(tmp_path, {"model_type": architecture}), own=True)


@pytest.mark.parametrize(
    ("kind", "wanted", "sentence"),
    [
        ("model", "dflash", "'folder' is a smaller model, and draft_kind says 'dflash'"),
        ("eagle3", "mtp", "'folder' is a head of the kind 'eagle3', and draft_kind says 'mtp'"),
    ],
)
def test_a_drafter_of_another_kind_than_the_operator_wants_is_refused(
    kind: Kind, wanted: HeadKind, sentence: str
) -> None:
    with pytest.raises(ServerError, match=sentence) as refused:
        check_draft_kind(Path("/some/folder"), kind, wanted)
    assert refused.value.report.param == "draft_kind"


@pytest.mark.parametrize("wanted", [None, "mtp"])
@pytest.mark.parametrize("kind", ["mtp", "assistant", "layer"])
def test_a_drafter_of_the_wanted_kind_is_taken(kind: Kind, wanted: HeadKind | None) -> None:
    check_draft_kind(Path("/some/folder"), kind, wanted)


@pytest.mark.parametrize("option", ["mtp", "draft_model_path"])
def test_a_refusal_names_the_option_that_asked_for_the_drafter(tmp_path: Path, option: str) -> None:
    model = qwen_with_head(tmp_path / "model")
    given: Any = True if option == "mtp" else str(prediction_head(tmp_path / "head"))
    path = (model if option == "mtp" else Path(given)) / "model.safetensors"
    loaded: Any = mx.load(str(path))
    damaged = {name: mx.zeros((3, 3)) for name in loaded if name.endswith("fc.weight")}
    mx.save_safetensors(str(path), {**loaded, **damaged}, {"format": "mlx"})
    with pytest.raises(ServerError, match="cannot be loaded") as refused:
        Bench(model, ModelOptions(cache_block_tokens=8, **{option: given}))
    assert refused.value.report.param == option


def test_a_kind_without_a_drafter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="there is no drafter") as refused:
        drafter_of(ModelOptions(draft_kind="eagle3"), tmp_path)
    assert refused.value.report.param == "draft_kind"
    assert drafter_of(ModelOptions(draft_kind="mtp", mtp=True), tmp_path) == tmp_path
