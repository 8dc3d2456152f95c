"""A sound folder as a publisher makes one, with random weights and Qwen3's own template, and what is found in it."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pippin.core.models import ModelInfo, ModelKind, WorkerSpec
from pippin.core.verification import Finding, Report, SectionName, Verification
from pippin.engines.verify.run import verify
from tests.output.families import FAMILIES

Arrays = dict[str, NDArray[Any]]
MARKS = ("<s>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>",
         "<tool_response>", "</tool_response>")  # fmt: skip
BOS, END = 256, 258
SIZE = 256 + len(MARKS)
HIDDEN, LAYERS = 64, 3
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": SIZE,
    "tie_word_embeddings": False,
    "max_position_embeddings": 4096,
    "bos_token_id": BOS,
    "eos_token_id": END,
    "torch_dtype": "float32",
    "hidden_act": "silu",
    "use_cache": True,
}


def write_sound(folder: Path) -> Path:
    """Write the folder, as sound as a random model can be."""
    folder.mkdir(parents=True)
    save_file(_weights(), folder / "model.safetensors", {"format": "pt"})
    write(folder, "config.json", CONFIG)
    write(folder, "generation_config.json", {"eos_token_id": [END], "bos_token_id": BOS})
    write_tokenizer(folder)
    return folder


def write_tokenizer(
    folder: Path,
    change: Callable[[Tokenizer], object] = lambda _: None,
    marks: Sequence[str] = MARKS,
) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(mark, special=mark.startswith(("<|", "<s"))) for mark in marks])
    change(backend)
    backend.save(str(folder / "tokenizer.json"))
    template = next(each.source for each in FAMILIES if each.file == "Qwen-Qwen3-0.6B")
    listed = {
        str(256 + place): {"content": mark, "special": mark.startswith(("<|", "<s"))}
        for place, mark in enumerate(marks)
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "<|im_end|>",
        "added_tokens_decoder": listed,
        "chat_template": template,
    }
    write(folder, "tokenizer_config.json", settings)


def _weights() -> Arrays:
    random = np.random.default_rng(7)
    head = HIDDEN // 4

    def matrix(*shape: int) -> NDArray[np.float32]:
        return random.normal(0, 0.1, shape).astype(np.float32)

    arrays: Arrays = {
        "model.embed_tokens.weight": matrix(SIZE, HIDDEN),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        "lm_head.weight": matrix(SIZE, HIDDEN),
    }
    for layer in range(LAYERS):
        shapes = {
            "self_attn.q_proj": (HIDDEN, HIDDEN),
            "self_attn.k_proj": (2 * head, HIDDEN),
            "self_attn.v_proj": (2 * head, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HIDDEN),
            "mlp.gate_proj": (96, HIDDEN),
            "mlp.up_proj": (96, HIDDEN),
            "mlp.down_proj": (HIDDEN, 96),
        }
        for name, shape in shapes.items():
            arrays[f"model.layers.{layer}.{name}.weight"] = matrix(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            arrays[f"model.layers.{layer}.{name}.weight"] = np.ones(HIDDEN, np.float32)
    return arrays


def write(folder: Path, file: str, content: Any) -> None:
    (folder / file).write_text(json.dumps(content))


def edit(folder: Path, file: str, **fields: Any) -> None:
    """Change fields of a JSON file; `None` removes one."""
    found = {**json.loads((folder / file).read_text()), **fields}
    write(folder, file, {name: value for name, value in found.items() if value is not None})


def edit_weights(folder: Path, change: Callable[[Arrays], object]) -> None:
    arrays = load_file(folder / "model.safetensors")
    change(arrays)
    save_file(arrays, folder / "model.safetensors", {"format": "pt"})


def edit_template(folder: Path, old: str, new: str) -> None:
    """Change the chat template, which has to hold `old`."""
    template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    assert old in template
    edit(folder, "tokenizer_config.json", chat_template=template.replace(old, new))


def report_on(
    folder: Path,
    *sections: SectionName,
    kind: ModelKind = "language",
    architecture: str | None = None,
    against: Path | None = None,
) -> Report:
    spec = WorkerSpec(info=ModelInfo(id=folder.name, kind=kind, path=str(folder), architecture=architecture))
    asked = Verification(
        sections=sections or ("files", "tokens", "template"),
        against=None if against is None else str(against),
    )
    return verify(spec, asked, lambda _: None)


def found_in(report: Report) -> list[Finding]:
    """The faults and warnings."""
    return [each for part in report.sections for each in part.findings if each.severity != "note"]
