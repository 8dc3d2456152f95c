"""What each family of mlx-vlm needs beyond its own defaults to be made tiny (`any_family.py`): `family_settings.yaml`,
and here what is code."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import yaml
from mlx.utils import tree_flatten

from tests.engines.language.vision.any_family import Family, Json
from tests.engines.language.vision.tiny.plain_kernels import MUSE_SPARK
from tests.engines.language.vision.tiny.python_tokenizers import write_plamo, write_sentencepiece


def small_mobilenet() -> list[list[Any]]:
    """In place of Gemma 3n's table of MobileNet blocks: one of each kind, whose last two stages have the channels that
    the adapter behind them takes together."""
    from mlx_vlm.models.gemma3n.config import (
        EdgeResidualConfig,
        MultiQueryAttentionBlockConfig,
        UniversalInvertedResidualConfig,
    )

    return [
        [EdgeResidualConfig(3, 16, 2, 1.0)],
        [UniversalInvertedResidualConfig(3, 5, 32, 2, 1.0)],
        [UniversalInvertedResidualConfig(5, 5, 640, 2, 1.0), MultiQueryAttentionBlockConfig(2, 16, 2)],
        [UniversalInvertedResidualConfig(3, 0, 1280, 2, 1.0, True)],
    ]


def write_small_frames(folder: Path) -> None:
    """The sizes of a video's frames, in the file of their own that LLaVA-OneVision has for them."""
    (folder / "video_preprocessor_config.json").write_text(json.dumps({"size": {"height": 32, "width": 32}}))


def write_audio_tokenizer(folder: Path) -> None:
    """MiMo-V2's tokenizer of sound, a model of mlx-audio in a folder of its own: recordings become its codes."""
    from mlx_audio.codec.models.mimo_audio_tokenizer import MiMoAudioTokenizer
    from mlx_audio.codec.models.mimo_audio_tokenizer.config import ModelConfig

    config: Json = {
        "d_model": 32,
        "encoder_layers": 2,
        "encoder_skip_layer_id": 1,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 48,
        "decoder_layers": 1,
        "decoder_attention_heads": 2,
        "decoder_ffn_dim": 48,
        "vocoder_dim": 16,
        "vocoder_intermediate_dim": 32,
        "vocoder_num_layers": 1,
        "vocoder_attention_heads": 2,
        "weights_format": "mlx",
    }
    model = MiMoAudioTokenizer(ModelConfig.from_dict(config))
    spread = [
        (name, array + 0.1 * mx.random.normal(array.shape))
        for name, array in tree_flatten(model.parameters())
    ]
    own = folder / "audio_tokenizer"
    own.mkdir()
    (own / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(own / "model.safetensors"), dict(spread))


CLIP = SimpleNamespace(
    model_type="phi3_v",
    hidden_size=1024,
    image_size=336,
    intermediate_size=96,
    layer_norm_eps=1e-5,
    num_attention_heads=4,
    num_channels=3,
    num_hidden_layers=2,
    patch_size=14,
)
CODE: Json = {
    "ernie4_5_moe_vl": {"vocabulary": write_sentencepiece},
    "gemma3n": {"instead": {"gemma3n.vision.gemma3n_mobilenet_def": small_mobilenet}},
    "llava_onevision": {"beside": write_small_frames},
    "mimo_v2": {"beside": write_audio_tokenizer},
    "muse_spark": {"instead": MUSE_SPARK},
    "phi3_v": {"instead": {"phi3_v.vision.VisionModel.CLIP_VIT_LARGE_PATCH14_336_CONFIG": CLIP}},
    "plamo2vl": {"vocabulary": write_plamo},
}


def family(name: str, settings: Json) -> Family:
    """Lists of `instead` are tuples, as the packages have them."""
    instead = {place: tuples(value) for place, value in settings.get("instead", {}).items()}
    tokens = tuple(settings.get("tokens", ()))
    return Family(**{**settings, "tokens": tokens, "instead": instead, **CODE.get(name, {})})


def tuples(value: Any) -> Any:
    match value:
        case list():
            return tuple(map(tuples, value))
        case dict():
            return {key: tuples(each) for key, each in value.items()}
        case _:
            return value


FAMILIES: dict[str, Family] = {
    name: family(name, settings)
    for name, settings in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8")).items()
}
