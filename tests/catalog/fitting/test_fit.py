"""What a model takes is told as the pool and the scheduler will see it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pippin.catalog import Catalog, default_roots, footprint, read_info
from pippin.catalog.fitting import Source, measure, read_source
from pippin.catalog.footprint import KERNEL_DECODERS, context_bytes
from pippin.config.options.model import ModelOptions, shared_out
from pippin.config.options.server import ServerOptions
from tests.engines.tiny_models import ARCHITECTURES

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 100,
}
TOKEN = 3 * 2 * 2 * 16 * 4  # bytes: layers, keys and values, heads, size, float32
GB = 10**9


def source(config: dict[str, object], window: int = 65_536, **options: object) -> Source:
    return Source(
        id="m",
        here=True,
        kind="language",
        config=config,
        weights="-",
        stored=0,
        loaded=GB,
        window=window,
        options=ModelOptions(dtype="float32", prefix_cache=False, **options),  # type: ignore[arg-type]
    )


def test_full_attention_takes_bytes_for_every_token_and_client() -> None:
    fit = measure(source(LLAMA), 10_000, 3, GB + 3 * 20_480 * TOKEN)
    assert fit.context_bytes == 10_240 * TOKEN
    assert fit.longest == 20_480
    assert fit.needed == GB + 3 * 10_240 * TOKEN
    assert fit.fits
    assert not replace(fit, budget=fit.needed - 1).fits


def test_few_bits_and_windows_take_less() -> None:
    packed = measure(source({**LLAMA, "head_dim": 64}, kv_bits=4), 8192, 1, 2 * GB)
    assert packed.context_bytes is not None
    assert packed.context_bytes < 8192 * 4 * TOKEN / 4
    gemma = {
        **LLAMA,
        "model_type": "gemma3_text",
        "head_dim": 16,
        "sliding_window": 512,
        "num_hidden_layers": 6,
    }
    gemma |= {"sliding_window_pattern": 6, "query_pre_attn_scalar": 16}
    sliding = measure(source(gemma), 8192, 1, 2 * GB)
    layer = 2 * 2 * 16 * 4
    assert sliding.context_bytes == 8192 * layer + 5 * 512 * layer


def slot_bytes(config: dict[str, Any], tokens: int) -> int:
    """What a sequence takes in the model's own caches, in float32."""
    import mlx.core as mx
    from mlx_lm.utils import _get_classes

    from pippin.engines.language.configuration import spelled_out
    from pippin.engines.language.kv_cache.layout import CacheLayout, mlx_lm_twin, new_prompt_cache

    kind, arguments = _get_classes(config)
    model = kind(arguments.from_dict(spelled_out(config)))
    cache = list(map(mlx_lm_twin, new_prompt_cache(model)))
    model(mx.zeros((1, 1), dtype=mx.int32), cache=cache)
    return CacheLayout.learn(model, cache).slot_bytes(tokens)


@pytest.mark.parametrize("architecture", sorted(KERNEL_DECODERS & ARCHITECTURES.keys()))
def test_the_configuration_tells_what_the_models_own_caches_tell(architecture: str) -> None:
    config = {"model_type": architecture, **ARCHITECTURES[architecture]}
    assert context_bytes(config, 5120, 4, ModelOptions()) == slot_bytes(config, 5120)


@pytest.mark.parametrize("architecture", ["qwen3_next", "lfm2", "deepseek_v32"])
def test_each_token_takes_what_it_takes_in_a_hybrid_or_as_a_latent_vector(architecture: str) -> None:
    """The state of recurrent layers, of a constant size, comes on top."""
    config = {"model_type": architecture, **ARCHITECTURES[architecture]}
    short, long = (context_bytes(config, tokens, 4, ModelOptions()) for tokens in (512, 5120))
    assert short is not None
    assert long is not None
    assert long - short == slot_bytes(config, 5120) - slot_bytes(config, 512)


def test_a_configuration_that_does_not_tell_its_heads_is_told_without_its_context() -> None:
    fit = measure(source({"model_type": "nobody-knows"}), 1000, 1, 2 * GB)
    assert fit.context_bytes is None
    assert fit.needed == GB


def test_the_prefix_cache_has_its_share() -> None:
    assert shared_out(1000, ModelOptions(prefix_cache=False))[0] == 1000
    assert shared_out(1000, ModelOptions(cache_memory_percent=0.2))[0] == 800
    assert shared_out(1000, ModelOptions(cache_memory_percent=0.9))[0] == 500


@pytest.mark.model
def test_a_model_that_is_here_is_sized_as_the_pool_does(demo_model: Path, tmp_path: Path) -> None:
    catalog = Catalog(ServerOptions(), default_roots({"PIPPIN_HOME": str(tmp_path)}, tmp_path))
    found = read_source(catalog, str(demo_model), ModelOptions())
    assert found.here
    assert found.loaded == footprint(read_info(demo_model), ModelOptions())
    assert found.window == 8192
