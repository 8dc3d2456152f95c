"""What a rank keeps of a model, seen without the others: parts that send nothing."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

from pippin.core.errors import ServerError
from pippin.engines.language.kv_cache.layout import new_prompt_cache
from pippin.engines.language.ranks.split import Elsewhere, Passes, split_layers, split_within_layers
from tests.engines.tiny_models import tiny_model


class Group:
    """A rank of a group, as far as a split asks; nothing of it is computed."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size


def loaded(folder: Path, architecture: str = "llama", **changes: Any) -> Any:
    model, _ = load_model(tiny_model(architecture, folder, **changes))
    return model


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_layer_is_on_one_rank(tmp_path: Path, ranks: int) -> None:
    held = []
    for rank in range(ranks):
        model = loaded(tmp_path, num_hidden_layers=4)
        split_layers(model, Group(rank, ranks))  # type: ignore[arg-type]
        held.append([not isinstance(layer, Elsewhere) for layer in model.model.layers])
    assert [sum(layer) for layer in zip(*held, strict=True)] == [1, 1, 1, 1]
    assert all(any(each) for each in held)
    assert held[0][0]


def test_a_rank_has_no_weights_of_layers_elsewhere(tmp_path: Path) -> None:
    model = loaded(tmp_path, num_hidden_layers=4)
    split_layers(model, Group(0, 2))  # type: ignore[arg-type]
    layers = {name.split(".")[2] for name, _ in tree_flatten(model.parameters()) if ".layers." in name}
    assert layers == {"0", "1"}


@pytest.mark.parametrize("architecture", ["llama", "gpt_oss", "qwen3_5"])
def test_a_layer_elsewhere_passes_on_and_counts(tmp_path: Path, architecture: str) -> None:
    model = loaded(tmp_path, architecture)
    caches = new_prompt_cache(model)
    x = mx.ones((1, 5, 64))
    for layer, cache in zip(model.layers, caches, strict=True):
        passed = Elsewhere(layer, Passes(Group(0, 2)))(x, None, cache)  # type: ignore[arg-type]
        assert (passed == x).all()
        if hasattr(cache, "offset"):
            assert cache.offset == 5
        else:
            assert all(array.size == 1 for array in cache.cache)


def test_what_models_ask_a_layer_is_answered_for_it(tmp_path: Path) -> None:
    layers = loaded(tmp_path, "qwen3_5").layers
    there = [Elsewhere(layer, Passes(Group(0, 2))) for layer in layers]  # type: ignore[arg-type]
    assert [layer.is_linear for layer in there] == [layer.is_linear for layer in layers] == [True, False]


@pytest.mark.parametrize(
    ("architecture", "ranks", "words"),
    [
        ("llama", 3, "which 3 ranks cannot share evenly.*Take another number of --ranks"),
        ("gemma3_text", 2, "mlx-lm cannot split the layers of this architecture.*Take --split pipeline"),
    ],
)
def test_heads_that_cannot_be_shared_out_are_refused(
    tmp_path: Path, architecture: str, ranks: int, words: str
) -> None:
    with pytest.raises(ServerError, match=words):
        split_within_layers(loaded(tmp_path, architecture), Group(0, ranks))  # type: ignore[arg-type]


def test_more_ranks_than_layers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"it has 2 layers\. Take fewer --ranks"):
        split_layers(loaded(tmp_path), Group(0, 3))  # type: ignore[arg-type]


def test_layers_that_may_need_more_of_each_other_are_not_parted(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="this is gemma3_text"):
        split_layers(loaded(tmp_path, "gemma3_text"), Group(0, 2))  # type: ignore[arg-type]
