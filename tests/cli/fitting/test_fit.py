"""What a model takes is told as the pool and the scheduler will see it."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from pippin.catalog import Catalog, default_roots, footprint, read_info
from pippin.catalog.footprint import KERNEL_DECODERS
from pippin.cli.fitting.fit import Contexts, measure, sequence_memory
from pippin.cli.fitting.source import Source, read_source
from pippin.config.options.model import ModelOptions
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
    assert fit.contexts is not None
    assert fit.contexts.context_bytes == 10_240 * TOKEN
    assert fit.contexts.longest == 20_480
    assert fit.needed == GB + 3 * 10_240 * TOKEN
    assert fit.fits
    assert not replace(fit, budget=fit.needed - 1).fits


def test_few_bits_and_windows_take_less() -> None:
    packed = measure(source({**LLAMA, "head_dim": 64}, kv_bits=4), 8192, 1, 2 * GB).contexts
    assert packed is not None
    assert packed.context_bytes < 8192 * 4 * TOKEN / 4
    gemma = {
        **LLAMA,
        "model_type": "gemma3_text",
        "head_dim": 16,
        "sliding_window": 512,
        "num_hidden_layers": 6,
    }
    gemma |= {"sliding_window_pattern": 6, "query_pre_attn_scalar": 16}
    sliding = measure(source(gemma), 8192, 1, 2 * GB).contexts
    assert sliding is not None
    layer = 2 * 2 * 16 * 4
    assert sliding.context_bytes == 8192 * layer + 5 * 512 * layer


@pytest.mark.parametrize("architecture", sorted(KERNEL_DECODERS & ARCHITECTURES.keys()))
def test_the_configuration_tells_what_the_models_own_caches_tell(architecture: str) -> None:
    from pippin.engines.language.kv_cache.estimate import Question, answer

    config = {"model_type": architecture, **ARCHITECTURES[architecture]}
    fit = measure(source(config), 5000, 3, GB + 10**8)
    asked = Question(config=config, dtype="float32", context=5000, clients=3, memory=10**8, window=65_536)
    assert fit.contexts == Contexts(**msgspec.structs.asdict(answer(asked)))


def test_an_architecture_that_is_not_known_is_told_without_its_context() -> None:
    fit = measure(source({"model_type": "nobody-knows"}), 1000, 1, 2 * GB)
    assert fit.contexts is None
    assert fit.needed == GB


def test_the_prefix_cache_has_its_share() -> None:
    assert sequence_memory(1000, ModelOptions(prefix_cache=False)) == 1000
    assert sequence_memory(1000, ModelOptions(cache_memory_percent=0.2)) == 800
    assert sequence_memory(1000, ModelOptions(cache_memory_percent=0.9)) == 500


@pytest.mark.model
def test_a_model_that_is_here_is_sized_as_the_pool_does(demo_model: Path, tmp_path: Path) -> None:
    catalog = Catalog(ServerOptions(), default_roots({"PIPPIN_HOME": str(tmp_path)}, tmp_path))
    found = read_source(catalog, str(demo_model), ModelOptions())
    assert found.here
    assert found.loaded == footprint(read_info(demo_model), ModelOptions())
    assert found.window == 8192
