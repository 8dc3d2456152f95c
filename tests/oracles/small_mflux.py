"""Makes mflux's models small: their widths are numbers in their code, which is read here with smaller ones.

`shrink()` before the first import of mflux; `write_model` then saves a model of random weights as `mflux-save` would.
"""

import ast
import importlib
import importlib.abc
import importlib.machinery
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

WORDS = 300
IMAGE_TOKEN = 259

SIZES: dict[str, dict[int, int]] = {
    # Parts of mflux.models: numbers in their code, and what they become. Heads keep their width, there are fewer.
    "flux.model.flux_transformer": {3072: 128, 18432: 768, 12288: 512, 4096: 64, 768: 64, 24: 1},
    "flux.model.flux_text_encoder.t5_encoder": {4096: 64, 10240: 128, 32128: WORDS, 24: 2},
    "flux.model.flux_text_encoder.clip_encoder": {768: 64, 3072: 256, 49408: WORDS, 12: 1},
    "flux.model.flux_vae": {512: 64, 256: 64, 128: 32},
    "flux2.model.flux2_vae": {512: 64, 256: 64, 128: 32},
    "qwen.model.qwen_transformer": {3072: 128, 3584: 512, 24: 1, 60: 2},
    "qwen.model.qwen_text_encoder": {
        3584: 512,
        18944: 64,
        28: 4,
        1280: 128,
        32: 2,
        152064: WORDS,
        151655: IMAGE_TOKEN,
    },
    "qwen.model.qwen_vae": {384: 32, 192: 16, 96: 8},
    "fibo.model.fibo_transformer": {3072: 128, 4096: 128, 2048: 64, 1536: 64, 24: 1, 38: 2, 8: 1},
    "fibo.model.fibo_text_encoder": {2048: 64, 11008: 64, 128256: WORDS, 36: 4, 16: 4, 46: 3},
    "fibo.model.fibo_vae": {160: 16, 256: 16},
    "z_image.model.z_image_transformer": {3840: 384, 2560: 64, 30: 3},
    "z_image.model.z_image_text_encoder": {2560: 64, 9728: 64, 151936: WORDS, 36: 4, 32: 4, 8: 2, 128: 16},
    "z_image.model.z_image_vae": {512: 64, 256: 64, 128: 32},
}
FLUX2_TRANSFORMER = {
    "num_layers": 1,
    "num_single_layers": 1,
    "num_attention_heads": 2,
    "attention_head_dim": 32,
    "joint_attention_dim": 192,
    "axes_dims_rope": (8, 8, 8, 8),
}
FLUX2_TEXT = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 28,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
}


class _Smaller(ast.NodeTransformer):
    def __init__(self, sizes: dict[int, int]) -> None:
        self._sizes = sizes

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if type(node.value) is int and node.value in self._sizes:
            return ast.copy_location(ast.Constant(self._sizes[node.value]), node)
        return node


class _Loader(importlib.machinery.SourceFileLoader):
    def path_stats(self, path: Any) -> Any:
        raise OSError("what is compiled here is kept nowhere")

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> Any:
        sizes = next(made for part, made in SIZES.items() if self.name.startswith(f"mflux.models.{part}"))
        tree = ast.fix_missing_locations(_Smaller(sizes).visit(ast.parse(data)))
        return compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not any(name.startswith(f"mflux.models.{part}") for part in SIZES):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(name, spec.origin)
        return spec


def shrink() -> None:
    """Presets keep their names and their code; their sizes become tiny."""
    sys.meta_path.insert(0, _Finder())
    from mflux.models.common.config.model_config import AVAILABLE_MODELS
    from mflux.models.flux.model.flux_text_encoder.t5_encoder.t5_self_attention import T5SelfAttention

    T5SelfAttention.shape = staticmethod(_narrow_heads)
    for name in (name for name in AVAILABLE_MODELS if name.startswith("flux2-klein-")):
        AVAILABLE_MODELS[name].transformer_overrides = FLUX2_TRANSFORMER
        AVAILABLE_MODELS[name].text_encoder_overrides = FLUX2_TEXT


def _narrow_heads(states: Any) -> Any:
    """64 heads stay, for their biases are quantised in groups of 64; each is one wide."""
    return states.reshape(1, -1, 64, 1).transpose(0, 2, 1, 3)


class _NoWeights:
    """Stands in for the files of a model that is about to be written."""

    def num_transformer_blocks(self) -> int:
        return 1

    num_single_transformer_blocks = num_transformer_blocks

    def dense_component(self, name: str) -> None:
        return None


def write_model(folder: Path, build: Any, config: Any) -> None:
    """A model of class `build` with random weights, as `mflux-save` writes it."""
    import mlx.core as mx
    from mflux.models.common.weights.loading.weight_applier import WeightApplier
    from mflux.models.common.weights.loading.weight_loader import WeightLoader
    from mflux.models.flux2.variants import Flux2Klein
    from mlx.utils import tree_map

    save = getattr(
        build, "save_model", Flux2Klein.save_model
    )  # an editor has the parts of what it edits like
    _write_tokenizer(folder / "tokenizer")
    _write_unigrams(folder / "tokenizer_2")
    mx.random.seed(1)
    with (
        mock.patch.object(WeightLoader, "load", return_value=_NoWeights()),
        mock.patch.object(WeightApplier, "apply_and_quantize", return_value=None),
    ):
        model = build(model_path=str(folder), model_config=config)
    model.update(tree_map(_spread, model.parameters()))
    save(model, str(folder))


def _spread(weights: Any) -> Any:
    """No weight is left at zero, or whole branches would say nothing."""
    import mlx.core as mx

    return (weights + 0.05 * mx.random.normal(weights.shape)).astype(mx.bfloat16)


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir(parents=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|image_pad|>", "<|video_pad|>"]
    vocabulary = {token: number for number, token in enumerate([*alphabet, *special])}
    assert vocabulary["<|image_pad|>"] == IMAGE_TOKEN
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _write_unigrams(folder: Path) -> None:
    """As T5 has it."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir(parents=True)
    pieces = ["<pad>", "</s>", "<unk>", "\u2581", *map(chr, range(33, 127))]
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "T5Tokenizer", "extra_ids": 0}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
