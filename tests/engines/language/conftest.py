"""What the tests of the language engine's parts share."""

import mlx.core as mx
import pytest
from mlx_lm.models import deepseek_v3

from pippin.engines.language.loading import drafting
from pippin.engines.language.prefix_cache import cache
from tests.engines.language.bench import Eager


@pytest.fixture(autouse=True)
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine has what an earlier one kept before its first step: tests look at what is read from the disk."""
    monkeypatch.setattr(cache, "RECALL_SECONDS", 0.0)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speculate in every step, whether it pays or not."""
    monkeypatch.setattr(drafting, "Pace", Eager)


@pytest.fixture
def few_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """mlx-lm knows DeepSeek V3's head as layer 61, whatever the model's depth; a test of that depth takes long."""
    sanitize = deepseek_v3.Model.sanitize

    def without_head(self: deepseek_v3.Model, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        head = f"model.layers.{self.args.num_hidden_layers}."
        found: dict[str, mx.array] = sanitize(
            self, {name: array for name, array in weights.items() if not name.startswith(head)}
        )
        return found

    monkeypatch.setattr(deepseek_v3.Model, "sanitize", without_head)
