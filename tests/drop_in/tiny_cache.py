"""Tiny random models in a Hugging Face cache, under the names that the documents' examples have."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_vlm.models.bert import bert
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tests.engines.language.vision.tiny_vision_models import tiny_vision_model
from tests.engines.tiny_models import EOS, tiny_model

ENDS: Final = [EOS, *range(202, 220)]
"""Tokens that end an answer: many, so that a random model which nobody gave a limit comes to an end. They are the bytes
14 to 31, which no JSON and no text has."""

BERT: Final = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 98,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}

TEMPLATE: Final = (
    "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant: "
)


class TinyCache:
    """The cache below a home. A checkpoint of each sort is made once and copied."""

    def __init__(self, home: Path) -> None:
        self._hub = home / ".cache" / "huggingface" / "hub"
        self._made: dict[str, Path] = {}

    def language(self, *repositories: str, architecture: str = "qwen3") -> None:
        for repository in repositories:
            folder = self._folder(repository, architecture)
            if folder is not None:
                tiny_model(architecture, folder, max_position_embeddings=1024)
                _say_when_to_end(folder)
                _set(folder / "tokenizer_config.json", chat_template=TEMPLATE)

    def vision(self, *repositories: str, family: str = "qwen2_5_vl") -> None:
        for repository in repositories:
            folder = self._folder(repository, family)
            if folder is not None:
                tiny_vision_model(family, folder)
                _say_when_to_end(folder)

    def encoder(self, *repositories: str, ranks: bool = False) -> None:
        """Models of BERT's architecture: vectors of texts, or with `ranks` scores of pairs."""
        for repository in repositories:
            folder = self._folder(repository, f"bert {ranks}")
            if folder is not None:
                _write_bert(folder, ranks)

    def images(self, repository: str, pipeline: str) -> None:
        """An image model that is known by its pipeline and can't be loaded: its weights are empty."""
        folder = self.place(repository)
        (folder / "transformer").mkdir(parents=True)
        (folder / "model_index.json").write_text(json.dumps({"_class_name": pipeline}))
        mx.save_safetensors(str(folder / "transformer" / "model.safetensors"), {"empty": mx.zeros((1,))})

    def copied(self, repositories: Iterable[str], source: Path) -> None:
        """A checkpoint of `source` under these names."""
        for repository in repositories:
            shutil.copytree(source, self.place(repository))

    def place(self, repository: str) -> Path:
        """The empty folder of a repository's snapshot, which is its parent's to make."""
        root = self._hub / ("models--" + repository.replace("/", "--"))
        (root / "refs").mkdir(parents=True)
        (root / "refs" / "main").write_text("main")
        (root / "snapshots").mkdir()
        return root / "snapshots" / "main"

    def _folder(self, repository: str, sort: str) -> Path | None:
        """Where to make the first of a sort; None once a copy of it was put there."""
        folder = self.place(repository)
        if sort in self._made:
            shutil.copytree(self._made[sort], folder)
            return None
        self._made[sort] = folder
        return folder


def _write_bert(folder: Path, ranks: bool) -> None:
    """Words are cut into letters: a tokenizer that knows no language."""
    made = "BertForSequenceClassification" if ranks else "BertModel"
    config = {"model_type": "bert", "architectures": [made], "num_labels": 1, **BERT}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    letters = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(chr(code) for code in range(33, 127))]
    tokenizer = Tokenizer(
        models.WordLevel({letter: n for n, letter in enumerate(letters)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", sep_token="[SEP]", cls_token="[CLS]"
    ).save_pretrained(folder)
    model = bert.Model(bert.ModelConfig.from_dict(config))
    mx.random.seed(5)
    weights = {f"bert.{name}": array for name, array in tree_flatten(model.parameters())}
    if ranks:
        for name, shape in (("bert.pooler.dense", (32, 32)), ("classifier", (1, 32))):
            weights |= {f"{name}.weight": mx.random.normal(shape), f"{name}.bias": mx.zeros(shape[:1])}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "pt"})


def _say_when_to_end(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ENDS}))


def _set(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
