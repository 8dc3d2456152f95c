"""A model's media are tried when it is loaded; those that would be answered wrongly are refused."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.engines.tiny_vision_models import FAMILIES, picture, tiny_vision_model
from tests.engines.vision_bench import VisionBench

from pippin.core.errors import ServerError
from pippin.engines.language.vision.trial import is_faithful, runs


@pytest.mark.parametrize("family", list(FAMILIES))
def test_all_families_stand_the_trial(family: str, tmp_path: Path) -> None:
    bench = VisionBench(tiny_vision_model(family, tmp_path / family))
    bench.preparer.try_media(partial(is_faithful, bench.model))
    assert bench.preparer.info.capabilities.images
    assert bench.preparer.info.capabilities.video == family.startswith("qwen")


def test_a_family_whose_text_changes_beside_pictures_is_served_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = VisionBench(tiny_vision_model("llava", tmp_path / "llava"))
    embed = bench.model.inner.get_input_embeddings

    def changed(tokens: Any, pixels: Any = None, **settings: Any) -> Any:
        found = embed(tokens, pixels, **settings)
        if pixels is not None:
            found.inputs_embeds = found.inputs_embeds + found.inputs_embeds.mean(axis=1, keepdims=True)
        return found

    monkeypatch.setattr(bench.model.inner, "get_input_embeddings", changed)
    bench.preparer.try_media(partial(is_faithful, bench.model))
    assert not bench.preparer.info.capabilities.images
    assert "is served without image" in caplog.text
    with pytest.raises(ServerError, match="takes no image"):
        bench.job("a", picture(20, 20), "?")
    assert bench.run(bench.job("b", "Only text"))[0]["b"]


def test_a_model_that_does_not_take_the_engines_caches_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = VisionBench(tiny_vision_model("llava", tmp_path / "llava"))
    assert runs(bench.model)
    monkeypatch.setattr(bench.model.inner, "language_model", lambda *_, **__: None)
    assert not runs(bench.model)
