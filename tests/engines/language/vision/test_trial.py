"""A model's media are tried when it is loaded; those that would be answered wrongly are refused."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from msgspec.structs import replace

from pippin.core.conversation import Message, Text
from pippin.core.errors import ServerError
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.requests import GenerationRequest, Sampling
from pippin.core.tasks import Generate
from pippin.engines.language.loading.engine import open_engine
from pippin.engines.language.prompt.preparer import open_preparer
from pippin.engines.language.vision import checkpoint, trial
from pippin.engines.language.vision.processing import MediaProcessor
from pippin.engines.language.vision.trial import is_faithful, runs
from tests.engines.language.bench import PLAN, watch
from tests.engines.language.vision.tiny_vision_models import FAMILIES, HEARING, picture, tiny_vision_model
from tests.engines.language.vision.vision_bench import VisionBench


def test_a_diffusion_language_model_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = SimpleNamespace(generate=lambda: None)
    read = SimpleNamespace(config=SimpleNamespace(mask_token_id=3), language_model=writer)
    monkeypatch.setattr(checkpoint.reading, "load_model", lambda folder: read)
    with pytest.raises(ServerError, match=r"or run it by `mlx_vlm\.generate`"):
        checkpoint.load_model(tmp_path)


@pytest.mark.parametrize("family", [*FAMILIES, *HEARING])
def test_all_families_stand_the_trial(family: str, tmp_path: Path) -> None:
    bench = VisionBench(tiny_vision_model(family, tmp_path / family))
    found = bench.preparer.info.capabilities
    assert found.images
    assert found.video
    media = bench.preparer.media
    assert (media.frames is None) == family.startswith(("qwen", "gemma4", "smolvlm")), (
        "others are shown frames as pictures"
    )
    assert found.audio == (family in HEARING)
    # Sound is heard in order, also by those whose pictures are seen as a whole.
    seen_whole = {"gemma3": {"image"}, "gemma4": {"image", "video"}, "gemma4_unified": {"image", "video"}}
    assert bench.model.bidirectional == seen_whole.get(family, set())


def test_the_models_files_decide_whether_pictures_are_seen_as_a_whole(tmp_path: Path) -> None:
    bench = VisionBench(tiny_vision_model("gemma4", tmp_path / "gemma4", use_bidirectional_attention=None))
    assert bench.preparer.info.capabilities.images
    assert not bench.model.bidirectional
    shown = picture(60, 28, 1)
    assert bench.alone(bench.job("a", shown, "Where?")) == bench.judged("Where?", [shown])


@pytest.mark.parametrize(
    ("off", "whole"), [((4e-7, 4e-7), False), ((1.1e-6, 6.6e-7), False), ((0.4, 6e-7), True)]
)
def test_rounding_makes_no_pictures_seen_as_a_whole(
    off: tuple[float, float], whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = VisionBench(tiny_vision_model("qwen3_vl", tmp_path / "qwen3_vl"))
    media = bench.preparer.media
    assert isinstance(media, MediaProcessor)
    ways = [(off[0], 0, frozenset[str]()), (off[1], 1, frozenset({"image"}))]
    monkeypatch.setattr(trial, "_differences", lambda *_: (mx.array([3.0]), ways))
    sample = media.samples["image"]
    apart = replace(
        sample, tokens=(1, *sample.tokens, 1), placeholders=tuple(place + 1 for place in sample.placeholders)
    )
    assert is_faithful(bench.model, apart)
    assert bench.model.bidirectional == ({"image"} if whole else set())


def test_pictures_that_are_seen_as_a_whole_must_stand_apart(tmp_path: Path) -> None:
    bench = VisionBench(tiny_vision_model("gemma4", tmp_path / "gemma4"))
    media = bench.preparer.media
    assert isinstance(media, MediaProcessor)
    sample = media.samples["image"]
    first, last = sample.placeholders[0], sample.placeholders[-1] + 1
    bare = replace(sample, tokens=sample.tokens[first:last], placeholders=tuple(range(last - first)))
    assert is_faithful(bench.model, sample)
    assert not is_faithful(bench.model, bare)


@pytest.mark.parametrize("kind", [mx.bfloat16, mx.float16])
def test_rounding_in_sixteen_bits_is_no_fault(kind: mx.Dtype, tmp_path: Path) -> None:
    bench = VisionBench(tiny_vision_model("qwen3_vl", tmp_path / "qwen3_vl"))
    bench.model.set_dtype(kind)
    bench.preparer.loaded(bench.preparer.media.tested(partial(is_faithful, bench.model)))
    assert bench.preparer.info.capabilities.images
    assert bench.run(bench.job("a", picture(30, 30), "?"))[0]["a"]


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
    bench.preparer.loaded(bench.preparer.media.tested(partial(is_faithful, bench.model)))
    assert not bench.preparer.info.capabilities.images
    assert "takes no image in its batches" in caplog.text
    with pytest.raises(ServerError, match="takes text only"):
        bench.job("a", picture(20, 20), "?")
    assert bench.run(bench.job("b", "Only text"))[0]["b"]


def test_a_model_that_does_not_take_the_engines_caches_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = VisionBench(tiny_vision_model("llava", tmp_path / "llava"))
    assert runs(bench.model)
    monkeypatch.setattr(bench.model.inner, "language_model", lambda *_, **__: None)
    assert not runs(bench.model)


@pytest.mark.parametrize(
    ("missing", "words"),
    [("vision_tower", "takes no image in its batches"), ("vision_tower.merger.norm", "served for text only")],
)
def test_weights_without_towers_are_served_for_text(
    missing: str, words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny_vision_model("qwen3_vl", tmp_path / "qwen3_vl")
    expected = VisionBench(folder).run(VisionBench(folder).job("a", "Only text"))[0]["a"]
    weights = mx.load(str(folder / "model.safetensors"))
    text = {name: array for name, array in weights.items() if missing not in name}
    mx.save_safetensors(str(folder / "model.safetensors"), text)
    info = ModelInfo(id="tiny", kind="language", path=str(folder), architecture="qwen3_vl")
    spec = WorkerSpec(info=info, options={"dtype": PLAN.run_type})
    preparer = open_preparer(spec)
    engine = open_engine(spec, preparer, lambda *_: None)
    assert words in caplog.text
    assert not preparer.info.capabilities.images
    watched = watch(engine)
    asked = GenerationRequest(
        model="tiny",
        messages=(Message("user", (Text("Only text"),)),),
        max_tokens=12,
        sampling=Sampling(temperature=0),
    )
    job = preparer.prepare("a", Generate(asked))
    assert not isinstance(job, tuple)
    engine.submit(job)
    while engine.busy:
        engine.step()
    assert watched["a", 0] == expected
