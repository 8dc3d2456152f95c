"""Makes the golden data of GGUF imports: token ids by llama.cpp, logits and greedy tokens by transformers on torch.

    python tests/oracles/gguf_oracle.py FILE.gguf tests/data/NAME.json

needs tests/oracles/requirements.txt (`make test-all` runs it again and compares). Each reference is used for what it
is good at: transformers' GGUF loader computes in float32 but cuts text without looking at `tokenizer.ggml.pre`, and
llama.cpp tokenizes as the file says but quantises activations.
"""

import json
import os
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

CORPUS = (
    "",
    " ",
    "Hello, world!",
    "  leading and trailing  ",
    "tabs\tand\nnew\n\nlines\r\n\r\nand\n \n  mixed \n",
    "def f(x: int) -> str:\n    return f'{x!r:>10}'  # a comment\n\n\nclass A(B):\n\tpass\n",
    "for (let i = 0; i < n; i++) { a[i] ??= b?.c ** 2; }",
    "SELECT * FROM t WHERE a<>'b' AND c>=10.5e-3;",
    "0 1 12 123 1234 12345 1234567890 3.14159 1,000,000 0xFF 1e-10 ¹²³ ٣٤٥ ½",
    "it's we're they've I'm he'll she'd IT'S WE'RE o'clock",
    "😀 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 e\u0301 é ñ ü ß ﬁ Å",
    "你好，世界！这是一个测试。日本語のテキスト、カタカナ。한국어 텍스트입니다.",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם. مرحبا بالعالم. नमस्ते दुनिया",
    "<|im_start|>user\nspecial<|im_end|>\n<|endoftext|><bos><start_of_turn>model\n<eos>",
    "<|im_start |> <|im_start|><|im_start|>x<|im_end|>y",
    "\u00a0\u2003\u200b\ufeff\u2028zero width",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "=====-----*****/////\\\\\\\\!!!!????....",
    "https://example.org/a/b?c=d&e=%20f#g user@example.com",
    '{"a": [1, 2.5, null, true], "b": {"c": "\\u00e9\\n"}}',
    "CamelCase snake_case kebab-case SCREAMING_CASE mixed123Numbers",
    "The quick brown fox jumps over the lazy dog. " * 4,
    "\x00\x01\x7f control",
    "▁ a real lower block ▁▁",
    "$\\frac{a}{b} \\leq \\sum_{i=0}^{\\infty} x_i$",
    "                                 33 spaces",
)
PROMPTS = (
    "The capital of France is",
    "Water boils at a temperature of",
    "def fibonacci(n):\n",
    "Once upon a time, there was a",
    "1, 2, 3, 4, 5,",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWrite a haiku about the sea.<|im_end|>\n<|im_start|>assistant\n",
    "The opposite of hot is",
    "import numpy as np\n\n",
    "Dear Sir or Madam,\n",
    "The largest planet in the solar system is",
    "A list of fruits:\n- apple\n- banana\n-",
    "In 1969, the first man",
    "To be, or not to be,",
    "The meaning of the word 'photosynthesis' is",
    "Roses are red,",
    "SELECT name FROM",
    "The three primary colours are",
    "日本の首都は",
    "She opened the door and",
)
NEW_TOKENS = 12
TOP = 20


def llama_cpp(path: Path) -> Callable[[str], list[int]]:
    """llama.cpp's tokenizer of the file, asked over its server on loopback."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(path)
    parameters.n_ctx, parameters.n_parallel, parameters.warmup = 256, 1, False
    server = xllamacpp.Server(parameters)

    def tokenize(text: str) -> list[int]:
        address = f"{server.listening_address}/tokenize"
        body = json.dumps({"content": text, "add_special": True, "parse_special": True}).encode()
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as reply:
            tokens: list[int] = json.load(reply)["tokens"]
        return tokens

    return tokenize


def derive(path: Path) -> dict[str, Any]:
    """Token ids of the corpus, and for each prompt the greedy continuation and the logits behind its last token."""
    import torch
    from transformers import AutoModelForCausalLM

    tokenize = llama_cpp(path)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    continuations = []
    with torch.no_grad():
        for prompt in PROMPTS:
            ids = tokenize(prompt)
            first = len(ids)
            values, top = model(torch.tensor([ids])).logits[0, -1].topk(TOP)
            for _ in range(NEW_TOKENS):
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
            continuations.append(
                {
                    "prompt": prompt,
                    "ids": ids[:first],
                    "greedy": ids[first:],
                    "top_ids": top.tolist(),
                    "top_logits": [round(value, 6) for value in values.tolist()],
                }
            )
    return {
        "corpus": [{"text": text, "ids": tokenize(text)} for text in CORPUS],
        "continuations": continuations,
    }


if __name__ == "__main__":
    golden = derive(Path(sys.argv[1]))
    Path(sys.argv[2]).write_text(json.dumps(golden, ensure_ascii=True, indent=0) + "\n")
    sys.stdout.flush()
    os._exit(0)  # llama.cpp's server has no end of its own
