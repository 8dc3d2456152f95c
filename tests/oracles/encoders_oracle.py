"""Writes tiny random embedding models and rerankers as transformers saves them, and what it makes of some texts.

    python tests/oracles/encoders_oracle.py FOLDER [KIND/NAME ...]

FOLDER/KIND/NAME is one of the checkpoints of `encoders.yaml`, and has `expected.npy` beside its files: normalised
vectors [texts, size], or the logits of pairs [pairs]. What transformers cannot make has `failed.txt`. Needs torch and
transformers.
"""

import json
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from encoder_texts import PAIRS, PROMPT_WORDS, TEXTS
from text_oracle import configuration, merged, spread
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SETTINGS = yaml.safe_load(Path(__file__).with_name("encoders.yaml").read_text("utf-8"))
KINDS = ("embeddings", "rerankers")
OF_FILES = {"pooling": "mean_tokens", "single": "<s> $A </s>", "pair": "<s>:0 $A:0 </s>:0 $B:1 </s>:1"}
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
WORDS = sorted(
    {word for text in (*TEXTS, *PROMPT_WORDS, *(w for pair in PAIRS for w in pair)) for word in text.split()}
)


def write_tokenizer(folder: Path, single: str, pair: str) -> PreTrainedTokenizerFast:
    """Whole words; `single` and `pair` say where the special tokens stand."""
    words = {word: number for number, word in enumerate([*SPECIAL, *WORDS, "yes", "no"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(SPECIAL)
    tokens = [(token, words[token]) for token in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=tokens)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>")
    fast.save_pretrained(folder)
    return fast


def write_modules(folder: Path, pooling: str, size: int) -> None:
    """sentence-transformers' files."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for place, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {f"pooling_mode_{mode}": mode == pooling for mode in ("cls_token", "mean_tokens", "lasttoken")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": size, **modes}))


@torch.no_grad()
def vectors(model: Any, tokenizer: Any, pooling: str) -> np.ndarray:
    """One text at a time, so that padding can't matter."""
    found = []
    for text in TEXTS:
        inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        states = model(**inputs).last_hidden_state[0]
        row = {"cls_token": states[0], "mean_tokens": states.mean(0), "lasttoken": states[-1]}[pooling]
        found.append(torch.nn.functional.normalize(row, dim=0).numpy())
    return np.stack(found)


@torch.no_grad()
def scores(model: Any, tokenizer: Any) -> np.ndarray:
    """Of one pair at a time; segments are told where the architecture has more than one."""
    segments = getattr(model.config, "type_vocab_size", 0) > 1
    rows = [
        model(**tokenizer(*pair, return_tensors="pt", return_token_type_ids=segments)).logits[0, 0]
        for pair in PAIRS
    ]
    return torch.stack(rows).numpy()


def write(kind: str, name: str, folder: Path) -> None:
    own = merged(SETTINGS[kind][TYPES[name]], SETTINGS[kind][name])
    files = {field: own.pop(field, usual) for field, usual in OF_FILES.items()}
    config = configuration(TYPES[name], own, SETTINGS["common"])
    torch.manual_seed(5)
    if kind == "embeddings":
        model = AutoModel.from_config(config, dtype=torch.float32)
    else:
        config.num_labels = own.get("num_labels", 1)
        model = AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
    spread(model)
    model.save_pretrained(folder)
    tokenizer = write_tokenizer(folder, files["single"], files["pair"])
    # What the folder says is compared, not what was in memory.
    model = type(model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    if kind == "embeddings":
        write_modules(folder, files["pooling"], model.config.hidden_size)
        expected = vectors(model, tokenizer, files["pooling"])
    else:
        expected = scores(model, tokenizer)
    np.save(folder / "expected.npy", expected.astype(np.float32))


@torch.no_grad()
def write_by_prompt(folder: Path) -> None:
    """Qwen3-Reranker, which answers yes or no."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = write_tokenizer(folder, "$A", OF_FILES["pair"])
    own = {field: value for field, value in SETTINGS["common"].items() if field != "sliding_window"}
    torch.manual_seed(5)
    qwen = Qwen3ForCausalLM(
        Qwen3Config(**{**own, "max_position_embeddings": 256, "tie_word_embeddings": True})
    ).eval()
    spread(qwen)
    qwen.save_pretrained(folder)
    rows = []
    yes, no = tokenizer.convert_tokens_to_ids(["yes", "no"])
    for query, document in PAIRS:
        prompt = PROMPT_WORDS[0] + f" {query}\n<Document>: {document}" + PROMPT_WORDS[1]
        logits = qwen(**tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)).logits[0, -1]
        rows.append(logits[yes] - logits[no])
    np.save(folder / "expected.npy", torch.stack(rows).numpy())


TYPES = {
    name: name if name in ("xlm-roberta", "deberta-v2") else name.partition("-")[0]
    for kind in KINDS
    for name in SETTINGS[kind]
}


def main(root: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    for path in names or [f"{kind}/{name}" for kind in KINDS for name in SETTINGS[kind]]:
        folder = root / path
        folder.mkdir(parents=True, exist_ok=True)
        try:
            write(*path.split("/"), folder)
            print("wrote", path, flush=True)
        except Exception:
            (folder / "failed.txt").write_text(traceback.format_exc())
            print("failed", path, traceback.format_exc().splitlines()[-1], flush=True)
    write_by_prompt(root / "rerankers" / "qwen3-reranker")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
