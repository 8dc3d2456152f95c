"""Writes tiny encoders of several families with random weights, and what transformers makes of some texts.

    python tests/oracles/encoders_oracle.py FOLDER

Each model's folder has `expected.npy`: normalised vectors, or logits of pairs. Needs torch and transformers.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from encoder_texts import PAIRS, PROMPT_WORDS, TEXTS
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Gemma3TextConfig,
    Gemma3TextModel,
    LlamaConfig,
    LlamaForCausalLM,
    ModernBertConfig,
    ModernBertModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    XLMRobertaConfig,
    XLMRobertaModel,
)

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
}
ROWS: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": 16}
LIBRARY = "sentence_transformers.models"
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
WORDS = sorted(
    {word for text in (*TEXTS, *PROMPT_WORDS, *(w for pair in PAIRS for w in pair)) for word in text.split()}
)
VOCABULARY = len(SPECIAL) + len(WORDS) + 2


def write_tokenizer(folder: Path, single: str, pair: str | None = None) -> PreTrainedTokenizerFast:
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


def settings(folder: Path, pooling: str, *, normalize: bool = True, dense: int = 0) -> None:
    """sentence-transformers' files."""
    kinds = ["Transformer", "Pooling", *["Dense"] * dense, *["Normalize"] * normalize]
    modules = [
        {
            "idx": n,
            "name": str(n),
            "path": "" if n == 0 else f"{n}_{kind}",
            "type": f"sentence_transformers.models.{kind}",
        }
        for n, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{mode}": mode == pooling for mode in ("cls_token", "mean_tokens", "lasttoken")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **modes}))


@torch.no_grad()
def vectors(model: Any, tokenizer: Any, pooling: str, dense: tuple[torch.Tensor, ...] = ()) -> np.ndarray:
    """One text at a time, so that padding can't matter."""
    found = []
    for text in TEXTS:
        inputs = tokenizer(text, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        states = model(**inputs).last_hidden_state[0]
        row = {"cls_token": states[0], "mean_tokens": states.mean(0), "lasttoken": states[-1]}[pooling]
        for weight in dense:
            row = weight @ row
        found.append(torch.nn.functional.normalize(row, dim=0).numpy())
    return np.stack(found)


def save(folder: Path, model: Any, expected: np.ndarray) -> None:
    model.save_pretrained(folder)
    np.save(folder / "expected.npy", expected.astype(np.float32))


def encoders(root: Path) -> None:
    pads = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    for name, model, pooling in (
        (
            "xlm-roberta-embedding",
            XLMRobertaModel(
                XLMRobertaConfig(
                    vocab_size=VOCABULARY, max_position_embeddings=64, type_vocab_size=1, **SIZES, **pads
                )
            ),
            "mean_tokens",
        ),
        (
            "modernbert-embedding",
            ModernBertModel(
                ModernBertConfig(
                    vocab_size=VOCABULARY,
                    max_position_embeddings=64,
                    local_attention=8,
                    global_attn_every_n_layers=3,
                    cls_token_id=1,
                    sep_token_id=2,
                    **SIZES,
                    **pads,
                )
            ),
            "cls_token",
        ),
    ):
        folder = root / name
        tokenizer = write_tokenizer(folder, "<s> $A </s>")
        settings(folder, pooling)
        save(folder, model.eval(), vectors(model, tokenizer, pooling))


def decoders(root: Path) -> None:
    shape = {"vocab_size": VOCABULARY, "max_position_embeddings": 128, **SIZES, **ROWS}
    folder = root / "qwen3-embedding"
    tokenizer = write_tokenizer(folder, "$A </s>")
    settings(folder, "lasttoken")
    qwen = Qwen3ForCausalLM(Qwen3Config(**shape)).eval()
    save(folder, qwen, vectors(qwen.model, tokenizer, "lasttoken"))

    folder = root / "llama-language"
    tokenizer = write_tokenizer(folder, "<s> $A")
    llama = LlamaForCausalLM(LlamaConfig(tie_word_embeddings=True, **shape)).eval()
    save(folder, llama, vectors(llama.model, tokenizer, "lasttoken"))

    folder = root / "embeddinggemma"
    tokenizer = write_tokenizer(folder, "<s> $A </s>")
    settings(folder, "mean_tokens", dense=2)
    gemma = Gemma3TextModel(
        Gemma3TextConfig(
            use_bidirectional_attention=True,
            sliding_window=8,
            query_pre_attn_scalar=16,
            **{**shape, "num_hidden_layers": 6},  # five local layers, then one that sees everything
        )
    ).eval()
    dense = (torch.randn(256, 64) * 0.1, torch.randn(64, 256) * 0.1)
    for number, weight in enumerate(dense, 2):
        inner = folder / f"{number}_Dense"
        inner.mkdir()
        save_file({"linear.weight": weight}, inner / "model.safetensors")
        (inner / "config.json").write_text(
            json.dumps({"in_features": weight.shape[1], "out_features": weight.shape[0], "bias": False})
        )
    save(folder, gemma, vectors(gemma, tokenizer, "mean_tokens", dense))
    config = json.loads((folder / "config.json").read_text())
    config["sliding_window"] = 8  # as the original writes it; transformers halves it when it reads
    (folder / "config.json").write_text(json.dumps(config))


@torch.no_grad()
def rerankers(root: Path) -> None:
    folder = root / "bert-reranker"
    tokenizer = write_tokenizer(folder, "<s> $A </s>", "<s>:0 $A:0 </s>:0 $B:1 </s>:1")
    bert = BertForSequenceClassification(
        BertConfig(vocab_size=VOCABULARY, max_position_embeddings=64, num_labels=1, pad_token_id=0, **SIZES)
    ).eval()
    bert.classifier.weight.mul_(20)
    rows = []
    for query, document in PAIRS:
        encoded = tokenizer(query, document, return_tensors="pt", return_token_type_ids=True)
        rows.append(bert(**encoded).logits[0, 0])
    save(folder, bert, torch.stack(rows).numpy())

    folder = root / "qwen3-reranker"
    tokenizer = write_tokenizer(folder, "$A")
    shape = {"vocab_size": VOCABULARY, "max_position_embeddings": 256, **SIZES, **ROWS}
    qwen = Qwen3ForCausalLM(Qwen3Config(tie_word_embeddings=True, **shape)).eval()
    qwen.model.embed_tokens.weight.mul_(10)
    rows = []
    for query, document in PAIRS:
        prompt = PROMPT_WORDS[0] + f" {query}\n<Document>: {document}" + PROMPT_WORDS[1]
        logits = qwen(**tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)).logits[0, -1]
        yes, no = tokenizer.convert_tokens_to_ids(["yes", "no"])
        rows.append(logits[yes] - logits[no])
    save(folder, qwen, torch.stack(rows).numpy())


if __name__ == "__main__":
    torch.manual_seed(5)
    for write in (encoders, decoders, rerankers):
        write(Path(sys.argv[1]))
