"""Models with a window that agents' prompts fit in, and that soon end their answers: a random one, the demo model."""

import json
import shutil
from pathlib import Path
from typing import Final

import mlx.core as mx

from tests.engines.tiny_models import tiny_model

WINDOW: Final = 65_536
END: Final = 2  # <|im_end|> in the demo model's vocabulary
VOCABULARY: Final = 49_152
BIAS: Final = 8.0  # of the end's logit over all others, which are near 0: it comes once in some 17 tokens

TEMPLATE: Final = (
    "{% if tools %}<|im_start|>system\n# Tools\n<tools>{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n"
    '</tools>\nCall one with <tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call>'
    "<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}\n<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def wide_model(folder: Path, demo_model: Path) -> Path:
    """With the demo model's tokenizer and a template that knows tools."""
    tiny_model(
        "llama",
        folder,
        vocab_size=VOCABULARY,
        max_position_embeddings=WINDOW,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=False,
        eos_token_id=END,
    )
    weights = dict(mx.load(str(folder / "model.safetensors")))
    # The first feature is the same large one for all tokens, and speaks for the end alone.
    embeddings, width = weights["model.embed_tokens.weight"], weights["model.embed_tokens.weight"].shape[1]
    weights["model.embed_tokens.weight"] = mx.concatenate(
        [mx.full((VOCABULARY, 1), 100.0), embeddings[:, 1:]], 1
    )
    head = 0.1 * weights["lm_head.weight"]
    head[END] = mx.zeros(width)
    head[END, 0] = BIAS / width**0.5
    weights["lm_head.weight"] = head
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    shutil.copy(demo_model / "tokenizer.json", folder)
    write_settings(folder, demo_model)
    return folder


def stretched_demo_model(folder: Path, demo_model: Path) -> Path:
    """The demo model, served beyond the window that it was trained for: it computes as ever, and says nothing there
    that means anything. So every eighth token may end an answer."""
    folder.mkdir(parents=True)
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).symlink_to(demo_model / name)
    config = json.loads((demo_model / "config.json").read_text())
    ends = list(range(END, VOCABULARY, 8))
    (folder / "config.json").write_text(
        json.dumps(config | {"max_position_embeddings": WINDOW, "eos_token_id": ends})
    )
    write_settings(folder, demo_model)
    return folder


def write_settings(folder: Path, demo_model: Path) -> None:
    """The template, and that no answer is empty: agents ask again then, with another prompt."""
    settings = json.loads((demo_model / "tokenizer_config.json").read_text())
    known = {"chat_template": TEMPLATE, "model_max_length": WINDOW}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | known))
    (folder / "generation_config.json").write_text(json.dumps({"min_new_tokens": 4}))
