"""Folders without a fault are reported without one: those of every family, and real models."""

from pathlib import Path

import pytest

from tests.engines.language.vision.tiny_vision_models import tiny_vision_model
from tests.engines.tiny_models import ARCHITECTURES, ODD_ONES, TinyModels
from tests.engines.verify.folders import found_in, report_on

SEEING = ("gemma3", "gemma4", "gemma4_unified", "idefics3", "llava", "mistral3", "pixtral", "smolvlm")


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *ODD_ONES])
def test_a_tiny_folder_of_each_family_has_no_fault(architecture: str, tiny_models: TinyModels) -> None:
    report = report_on(tiny_models(architecture), architecture=architecture)
    assert found_in(report) == []
    assert not any(section.left_out for section in report.sections)


@pytest.mark.parametrize("family", SEEING)
def test_a_tiny_folder_that_sees_pictures_has_no_fault(family: str, tmp_path: Path) -> None:
    report = report_on(tiny_vision_model(family, tmp_path / family), architecture=family)
    assert found_in(report) == []


@pytest.mark.model
def test_a_real_chat_model_has_no_fault(demo_model: Path) -> None:
    report = report_on(demo_model, architecture="llama")
    assert found_in(report) == []
    kept = report.sections[2].figures
    assert (kept["conversations kept"], kept["changed"]) == (
        26,
        1,
    )  # results in another order than their calls


@pytest.mark.model
def test_real_models_of_other_kinds_have_no_fault(minilm: Path, whisper_base: Path) -> None:
    of_encoder = report_on(minilm, kind="embeddings", architecture="bert")
    assert found_in(of_encoder) == []
    assert [section.left_out == "" for section in of_encoder.sections] == [True, True, False]
    of_whisper = report_on(whisper_base, kind="transcription")
    assert found_in(of_whisper) == []
    assert of_whisper.sections[1].left_out == "the model is of the kind transcription"
