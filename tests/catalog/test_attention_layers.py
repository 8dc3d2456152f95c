"""The layers that `pippin show` says `kv_bits` packs are those that the model's own caches say."""

import importlib

import pytest
from mlx_lm.models.cache import KVCache, make_prompt_cache

from pippin.catalog.info import full_attention_layers
from tests.engines.tiny_models import ARCHITECTURES


@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name != "gpt_oss"])
def test_the_layers_are_those_of_the_models_caches(architecture: str) -> None:
    config = {"model_type": architecture, **ARCHITECTURES[architecture]}
    module = importlib.import_module(f"mlx_lm.models.{architecture}")
    caches = make_prompt_cache(module.Model(module.ModelArgs.from_dict(config)))
    found = tuple(place for place, cache in enumerate(caches) if type(cache) is KVCache)
    assert full_attention_layers(config) == (found, len(caches))


def test_attention_with_sinks_has_none() -> None:
    assert full_attention_layers({"model_type": "gpt_oss", "num_hidden_layers": 4}) == ((), 4)


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        ({"num_hidden_layers": 3}, (0, 1, 2)),
        (
            {"text_config": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}},
            (1,),
        ),
        ({"num_hidden_layers": 4, "hybrid_override_pattern": "M*-*"}, (1, 3)),
        ({"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1}, (1, 3)),
        ({}, ()),
    ],
)
def test_configurations_are_read_as_they_come(config: dict[str, object], layers: tuple[int, ...]) -> None:
    assert full_attention_layers(config)[0] == layers
