"""Small tokenizers of the kinds that models have, trained in a moment."""

import json

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from pippin.engines.language.text.tokenizer import Tokenizer

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

WORDS = [
    "The quick brown fox jumps over the lazy dog, 12345 times and 67890 more.",
    "user assistant system tool\n\n  def f(x):\n    return x ** 2  # Straße naïve café 日本語 🙂",
    json.dumps({"name": "value", "items": [1, 2.5, -3, True, None], "nested": {"id": "a-b_c"}}, indent=2),
    "Hello world! What is the capital of France? Paris is. <b>bold</b> | end_of im start",
] * 3

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_level(
    size: int = 700, *, special: tuple[str, ...] = (), added: bool = True, **more: object
) -> Tokenizer:
    """As GPT-2, Llama 3 and Qwen have it; `special` are a family's own special tokens. `added`: with Qwen's markers."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[*SPECIAL, *special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(WORDS, trainer)
    return _finished(backend, added=added, **more)


def sentencepiece(size: int = 600, **more: object) -> Tokenizer:
    """As Llama 2 and Mistral have it: marks for spaces, tokens for bytes, a space before the first word."""
    backend = Backend(models.BPE(byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<unk>", *SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    backend.train_from_iterator(["Hello world what is the capital of France"] * 4, trainer)
    state = json.loads(backend.to_str())  # bytes are ordinary tokens, not added ones
    state["added_tokens"] = [
        token for token in state["added_tokens"] if not token["content"].startswith("<0x")
    ]
    return _finished(Backend.from_str(json.dumps(state)), **more)


def _finished(backend: Backend, *, added: bool = True, **more: object) -> Tokenizer:
    if added:
        backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in ADDED])
    end = backend.token_to_id("<|im_end|>")
    return Tokenizer(backend, eos=frozenset({end}), chat_templates={"default": CHATML}, **more)
