"""When the GPU fails in a pass of a load, the load fails, and no model loses what it can do. A failure while a model is
served is no fault of what a client sent."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import mlx.nn as nn
import pytest

from pippin.cli.verbs import running_server
from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError, is_of_device, with_way_out
from pippin.core.events import Accepted, Failed
from pippin.engines.blocking import BlockingEngine, BlockingJob, Call
from pippin.engines.language.kv_cache import agreement
from pippin.engines.language.loading import engine as loading
from pippin.engines.language.model.head import Head
from pippin.engines.language.step.engine import LanguageEngine
from tests.engines.language.bench import Bench
from tests.engines.language.vision.any_family import write
from tests.engines.language.vision.family_settings import FAMILIES
from tests.engines.language.vision.tiny_vision_models import picture, tiny_vision_model
from tests.engines.language.vision.vision_bench import VisionBench
from tests.engines.tiny_models import TinyModels

KILLED: Final = "[METAL] Command buffer execution failed: Caused GPU Timeout Error"
Build = Callable[[], tuple[Any, ...]]
"""Loads a model and says what it can do."""


class Passes:
    """Counts the passes of models, each of which begins with an embedding, and keeps the heads that were tried."""

    def __init__(self, failing: int | None) -> None:
        self.count, self.failing = 0, failing
        self.heads: list[Head] = []

    def begin(self) -> None:
        self.count += 1
        if self.count - 1 == self.failing:
            raise RuntimeError(KILLED)


@contextmanager
def passes(failing: int | None = None) -> Iterator[Passes]:
    """Within this context the GPU fails in one of the passes, and no trial is left out since an earlier load passed."""
    counted = Passes(failing)
    own = nn.Embedding.__call__

    def embed(layer: Any, tokens: Any) -> Any:
        counted.begin()
        return own(layer, tokens)

    def tried(*given: Any) -> Head:
        counted.heads.append(Head(*given))
        return counted.heads[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(nn.Embedding, "__call__", embed)
        patched.setattr(agreement, "known", lambda *_: None)
        patched.setattr(loading, "Head", tried)
        yield counted


def hold_to_what_it_can(build: Build, every: int = 1) -> None:
    """Fail in one pass after the other, or in every such one; the load must fail with it or give what it gives else."""
    with passes() as counted:
        whole = build()
    assert counted.count > every
    assert all(each.works for each in counted.heads)
    for place in range(0, counted.count, every):
        with passes(place) as failed:
            found = built(build)
        if isinstance(found, Exception):
            assert KILLED in str(found), place
            if isinstance(found, ServerError):
                assert found.report.kind == "load_failed"
                assert "AGX_RELAX_CDM_CTXSTORE_TIMEOUT=1" in str(found)
        else:
            assert found == whole, place
            assert all(each.works for each in failed.heads)


def built(build: Build) -> tuple[Any, ...] | Exception:
    try:
        return build()
    except (ServerError, RuntimeError) as error:
        return error


def abilities(engine: LanguageEngine) -> tuple[Any, ...]:
    """What a language engine can do, as trials found it."""
    return engine.counters.agreement != "", type(engine.decoding), type(engine.prefixes)


@pytest.mark.parametrize(
    ("architecture", "options", "every"),
    [
        ("llama", ModelOptions(prompt_lookup=True), 4),
        pytest.param("llama", ModelOptions(kv_bits=8, kv_group_size=32), 1, marks=pytest.mark.long),
        pytest.param("qwen3_next", ModelOptions(prompt_lookup=True), 1, marks=pytest.mark.long),
        pytest.param("lfm2", ModelOptions(), 1, marks=pytest.mark.long),
    ],
)
def test_text_models_lose_nothing(
    architecture: str, options: ModelOptions, every: int, tiny_models: TinyModels
) -> None:
    folder = tiny_models(architecture, **({"head_dim": 32} if options.kv_bits else {}))
    hold_to_what_it_can(lambda: abilities(Bench(folder, options).engine), every)


@pytest.mark.long
def test_a_draft_model_loses_nothing(tiny_models: TinyModels) -> None:
    folder = tiny_models("llama")
    options = ModelOptions(draft_model_path=str(folder))
    hold_to_what_it_can(lambda: abilities(Bench(folder, options).engine), every=4)


def seen_by(folder: Path) -> tuple[Any, ...]:
    """What a vision model takes, and whether in batches or by mlx-vlm's loop."""
    bench = VisionBench(folder)
    found, media = bench.preparer.info.capabilities, bench.preparer.media
    how = [getattr(media, name, None) for name in ("writing", "takes_several", "joint")]
    return type(bench.engine), type(media), found.images, found.video, found.audio, *how


@pytest.mark.long
@pytest.mark.parametrize("family", ["qwen3_vl", "gemma3", "llava"])
def test_models_that_see_lose_no_medium(family: str, tmp_path: Path) -> None:
    folder = tiny_vision_model(family, tmp_path / family)
    hold_to_what_it_can(lambda: seen_by(folder), every=5)


@pytest.mark.long
@pytest.mark.parametrize("family", ["internvl", "paligemma"])
def test_models_that_see_whole_prompts_lose_no_medium(family: str, tmp_path: Path) -> None:
    folder = write(family, FAMILIES[family], tmp_path / family)
    hold_to_what_it_can(lambda: seen_by(folder), every=5)


@pytest.mark.parametrize("family", ["qwen3_vl", pytest.param("paligemma", marks=pytest.mark.long)])
def test_a_client_is_not_told_that_its_picture_is_wrong_when_the_gpu_fails(
    family: str, tmp_path: Path
) -> None:
    if family == "paligemma":
        bench = VisionBench(write(family, FAMILIES[family], tmp_path / family))
    else:
        bench = VisionBench(tiny_vision_model(family, tmp_path / family))
    job = bench.job("a", picture(60, 28, 1), "What?")
    with passes(0), pytest.raises((RuntimeError, AssertionError)) as raised:
        bench.run(job)
    assert "Send one of another size" not in str(raised.value)


def test_ps_tells_why_a_model_is_not_in_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {
        "/health": {"workers": [{"id": "tiny", "state": "failed"}]},
        "/v1/models": {"data": [{"id": "tiny", "loaded": False, "error": with_way_out(KILLED)}]},
        "/v1/status": {"mtp": {"drafts": 0, "accepted": 0}},
    }
    monkeypatch.setattr(running_server, "ask", lambda _parsed, _method, path: told[path])
    assert running_server.ps.run([]) == 0
    assert "AGX_RELAX_CDM_CTXSTORE_TIMEOUT=1" in capsys.readouterr().out


def test_who_waits_for_a_long_call_of_a_library_is_told_the_way_out() -> None:
    def fail(model: None, call: Call) -> None:
        raise RuntimeError(KILLED)

    engine = BlockingEngine(lambda: None)
    engine.submit(BlockingJob("a", Accepted(0), fail))
    (event,) = [event for _, event in engine.step()]
    engine.close()
    assert isinstance(event, Failed)
    assert "AGX_RELAX_CDM_CTXSTORE_TIMEOUT=1" in event.error.message


@pytest.mark.parametrize(
    "message",
    [
        KILLED,
        "[metal::malloc] Attempting to allocate 9 bytes which is greater than the maximum allowed buffer size",
        "cudaMallocAsync(&p, size, stream) failed: out of memory",
        "cuLaunchKernel(kernel, 1, 1, 1) failed: an illegal memory access was encountered",
        "[malloc] Unable to allocate 17179869184 bytes.",
    ],
)
def test_what_a_gpu_says_is_known(message: str) -> None:
    assert is_of_device(RuntimeError(message))


@pytest.mark.parametrize("message", ["cumsum(): incompatible function arguments", "[reshape] Cannot reshape"])
def test_a_models_own_error_is_not_the_devices(message: str) -> None:
    assert not is_of_device(RuntimeError(message))
