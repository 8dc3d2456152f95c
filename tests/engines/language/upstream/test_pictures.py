"""What encoders of pictures are mended to compute, beside numbers of torch."""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from pippin.engines.language.upstream.mlx_vlm.idefics2 import InTheirPlaces
from pippin.engines.language.upstream.pictures import cubic, each_alone
from pippin.engines.language.upstream.reading import load_model
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
    whole, part = np.ones((4, 4), bool), np.zeros((4, 4), bool)
    part[:2, :3] = True
    found = embeddings(mx.zeros((2, 4, 4, 3)), mx.array(np.stack([whole, part])))
    assert found[0, :, 0].tolist() == [*range(16)]
    # Idefics2VisionEmbeddings: a part of two rows and three columns stands for the whole picture.
    assert found[1, :, 0].tolist() == [0, 1, 2, 0, 8, 9, 10, 0] + 8 * [0]
