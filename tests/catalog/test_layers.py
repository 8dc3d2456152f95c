"""Which layers attend to everything, by the configuration."""

from typing import Any

import pytest

from pippin.catalog.layers import Layers, layers_of

HEADS = {"num_attention_heads": 8}


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"num_hidden_layers": 30, **HEADS}, Layers(total=30, full=30, recurrent=False)),
        ({"text_config": {"num_hidden_layers": 4, **HEADS}}, Layers(total=4, full=4, recurrent=False)),
        (
            {"num_hidden_layers": 26, "sliding_window": 512, "sliding_window_pattern": 6},
            Layers(total=26, full=4, recurrent=False),
        ),
        (
            {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
            Layers(total=2, full=1, recurrent=False),
        ),
        (
            {"num_hidden_layers": 3, "layer_types": ["conv", "conv", "full_attention"]},
            Layers(total=3, full=1, recurrent=True),
        ),
        (
            {"num_hidden_layers": 48, "full_attention_interval": 4, **HEADS},
            Layers(total=48, full=12, recurrent=True),
        ),
        ({"num_hidden_layers": 3, "full_attn_idxs": [1]}, Layers(total=3, full=1, recurrent=True)),
        (
            {"num_hidden_layers": 28, "sliding_window": 32768, "use_sliding_window": False, **HEADS},
            Layers(total=28, full=28, recurrent=False),
        ),
        ({"num_hidden_layers": 32, "sliding_window": 4096, **HEADS}, None),
        ({"num_hidden_layers": 64, "state_size": 16, **HEADS}, None),
        ({"num_hidden_layers": "many", **HEADS}, None),
        ({}, None),
    ],
)
def test_full_attention_is_told_from_the_configuration(config: dict[str, Any], found: Layers | None) -> None:
    assert layers_of(config) == found
