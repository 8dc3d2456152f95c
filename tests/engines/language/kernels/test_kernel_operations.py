"""Models that the kernels' decoder does not know have their matrices multiplied as they are stored, and say the
same."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.cache import make_prompt_cache

from pippin.config.options.model import ModelOptions
from pippin.core.models import ModelInfo
from pippin.engines.cpu.kernels import why_missing
from pippin.engines.device import DevicePlan, decide, find_facts
from pippin.engines.language.model.head import Head
from pippin.engines.language.model.weights import load_weights, weight_bytes
from tests.engines.driving import no_progress
from tests.engines.language.kernels.test_kernel_decoder import quantised
from tests.engines.tiny_models import VOCABULARY, tiny_model

pytestmark = pytest.mark.skipif(why_missing() is not None, reason=str(why_missing()))

TOLERANCE = 1e-4  # of logits
HYBRIDS = ("qwen3_next", "lfm2", "mamba2")


def loaded(folder: Path, plan: DevicePlan) -> nn.Module:
    info = ModelInfo(id="tiny", kind="language", path=str(folder))
    model, _ = load_weights(info, plan, no_progress, kernel_threads=2)
    return model


def plan(**options: Any) -> DevicePlan:
    return decide(find_facts(), ModelOptions(**options))


def classes(model: nn.Module) -> set[str]:
    return {type(module).__name__ for _, module in model.named_modules()}


@pytest.mark.parametrize("architecture", HYBRIDS)
def test_logits_are_those_of_mlx_in_float32(
    tmp_path: Path, architecture: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = quantised(tiny_model(architecture, tmp_path / "model"))
    expected = loaded(folder, plan(cpu_kernels="off"))
    with caplog.at_level("INFO"):
        model = loaded(folder, plan())
    assert "by fused operations, with" in caplog.text
    assert f"{architecture!r} is not one that the kernels know" in caplog.text
    assert "QuantizedLinear" not in classes(model)
    ours, theirs = make_prompt_cache(model), make_prompt_cache(expected)
    tokens = mx.random.randint(0, 256, (1, 20), key=mx.random.key(1))
    for start, stop in ((0, 12), (12, 13), (13, 20)):
        found, wanted = (
            each(tokens[:, start:stop], cache=cache) for each, cache in ((model, ours), (expected, theirs))
        )
        assert float(mx.abs(found - wanted).max()) < TOLERANCE


def test_weights_stay_as_they_are_stored_and_are_counted(tmp_path: Path) -> None:
    folder = quantised(tiny_model("lfm2", tmp_path / "model"))
    stored = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert 0.7 * stored < weight_bytes(loaded(folder, plan())) < 1.2 * stored


def test_an_embedding_that_is_the_head_is_narrowed_to_what_is_drawn_from(tmp_path: Path) -> None:
    model = loaded(quantised(tiny_model("lfm2", tmp_path / "model")), plan())
    assert "KernelEmbedding" in classes(model)
    assert Head(model, VOCABULARY).works


def test_a_model_that_looks_into_its_layers_is_left_to_mlx(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from mlx_lm.models import lfm2

    own = lfm2.MLP.__call__

    def curious(self: Any, x: mx.array) -> mx.array:
        assert self.w1.weight is not None
        return own(self, x)

    monkeypatch.setattr(lfm2.MLP, "__call__", curious)
    model = loaded(quantised(tiny_model("lfm2", tmp_path / "model")), plan())
    assert not {name for name in classes(model) if name.startswith("Kernel")}
    assert "does more with its layers than to call them" in caplog.text
