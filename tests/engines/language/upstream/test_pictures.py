"""What encoders of pictures are mended to compute, beside numbers of torch."""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from pippin.engines.language.upstream.mends import mend
from pippin.engines.language.upstream.mlx_vlm.idefics2 import InTheirPlaces
from pippin.engines.language.upstream.mlx_vlm.muse_glimmer import Exchanged
from pippin.engines.language.upstream.pictures import cubic, each_alone
from pippin.engines.language.upstream.reading import load_model
from tests.engines.language.vision.any_family import write
from tests.engines.language.vision.family_settings import FAMILIES
from tests.engines.language.vision.tiny_vision_models import tiny_vision_model


def test_a_table_between_its_points_is_that_of_torch() -> None:
    table = mx.array([[0.0, 1.0, 4.0], [2.0, 3.0, -1.0], [5.0, 0.0, 2.0]])[..., None]
    # torch.nn.functional.interpolate(table, size=(2, 4), mode="bicubic"), which grid_sample gives too
    expected = [[0.2607, 0.9901, 2.1252, 2.8481], [4.6519, 2.0186, 0.4922, 1.1728]]
    assert np.allclose(cubic(table, 2, 4)[..., 0], expected, atol=1e-4)
    assert mx.allclose(cubic(table, 3, 3), table, atol=1e-6)


def test_each_frame_sees_itself_alone() -> None:
    class Mean(nn.Module):
        def __call__(
            self, x: mx.array, cu_seqlens: mx.array, rotary_pos_emb: mx.array | None = None
        ) -> mx.array:
            return mx.broadcast_to(x.mean(axis=0), x.shape) + rotary_pos_emb

    ends = [0, 1, 3, 4, 6]
    x, positions = mx.random.normal((6, 2)), mx.random.normal((6, 2))
    found = each_alone(Mean)()(x, mx.array(ends), positions)
    alone = [Mean()(x[a:b], mx.array([0, b - a]), positions[a:b]) for a, b in pairwise(ends)]
    assert mx.allclose(found, mx.concatenate(alone))


@pytest.mark.parametrize("family", ["gemma3", "idefics3"])
def test_the_last_norm_of_an_encoder_has_the_epsilon_of_its_configuration(
    family: str, tmp_path: Path
) -> None:
    model = load_model(tiny_vision_model(family, tmp_path / family), lazy=True)
    norms = [module for name, module in model.named_modules() if name.endswith("post_layernorm")]
    assert (
        [norm.eps for norm in norms] == [model.config.vision_config.layer_norm_eps] != [nn.LayerNorm(2).eps]
    )


def test_patches_of_idefics_2_have_the_positions_that_transformers_gives_them() -> None:
    config = SimpleNamespace(hidden_size=1, image_size=4, patch_size=1, num_channels=3)
    embeddings = InTheirPlaces(config)
    embeddings.position_embedding.weight = mx.arange(16, dtype=mx.float32)[:, None]
    embeddings.patch_embedding.weight = mx.zeros_like(embeddings.patch_embedding.weight)
    embeddings.patch_embedding.bias = mx.zeros(1)

    def places(height: int, width: int) -> list[float]:
        found: list[float] = embeddings(mx.zeros((1, height, width, 3)), mx.ones((1, height, width)))[
            0, :, 0
        ].tolist()
        return found

    assert places(4, 4) == [*range(16)]
    # Idefics2VisionEmbeddings: two rows and three columns stand for the whole picture.
    assert places(2, 3) == [0, 1, 2, 8, 9, 10]


def test_patches_of_muse_glimmer_have_the_positions_of_the_grid_turned() -> None:
    config = SimpleNamespace(hidden_size=1, patch_size=1, patch_temporal=1, pos_emb_height=3, pos_emb_width=3)
    embedder = Exchanged(config)
    embedder.position_embedding_table.weight = mx.arange(9, dtype=mx.float32)[:, None] ** 2
    # torch.nn.functional.grid_sample at torch.meshgrid(rows, columns, indexing="xy"), of one row and three columns
    assert embedder._position_embeddings([(1, 1, 3)])[:, 0].tolist() == [1.0, 16.0, 49.0]


def test_a_picture_of_idefics_2_is_seen_as_alone_beside_a_larger_one(tmp_path: Path) -> None:
    model = load_model(write("idefics2", FAMILIES["idefics2"], tmp_path / "idefics2"), lazy=True)
    mend(model)
    pixels = mx.random.normal((1, 2, 3, 32, 32))
    mask = mx.ones((1, 2, 32, 32), mx.int32)
    mask[:, 1, 24:] = mask[:, 1, :, 16:] = 0
    tokens = model.config.perceiver_config.resampler_n_latents
    ids = mx.full((1, 2 * tokens), model.config.image_token_index)
    both = model.get_input_embeddings(ids, pixels, pixel_attention_mask=mask).inputs_embeds
    alone = model.get_input_embeddings(ids[:, :tokens], pixels[:, 1:, :, :24, :16]).inputs_embeds
    assert mx.allclose(both[:, tokens:], alone, atol=1e-5)


def test_queries_and_keys_of_llama_4_are_normed_by_the_epsilon_of_their_layer(tmp_path: Path) -> None:
    model = load_model(write("llama4", FAMILIES["llama4"], tmp_path / "llama4"), lazy=True)
    epsilon = model.config.text_config.rms_norm_eps
    mend(model)
    turning, *_, plain = (layer.self_attn for layer in model.language_model.model.layers)
    # The first place is not turned; the mean of squares is as large as the epsilon.
    found = turning.rope(mx.full((1, 1, 1, 16), epsilon**0.5))
    assert epsilon != 1e-6
    assert mx.allclose(found, mx.full(found.shape, 0.5**0.5), atol=1e-5)
    assert not turning.use_qk_norm
    assert "rope" not in plain
