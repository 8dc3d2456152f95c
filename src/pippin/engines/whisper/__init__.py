"""The tokenizer of Whisper models whose folder has none: one for English-only models, one for all others.

The two `.merges.xz` files are OpenAI's vocabularies (github.com/openai/whisper, in whisper/assets; MIT licence,
Copyright (c) 2022 OpenAI; see LICENSE here) as the merges that make them: the 256 bytes as letters of byte-level BPE,
in the order of their ranks, then the two halves of each further piece on a line.
"""

import lzma
from importlib.resources import files
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

END = "<|endoftext|>"
LAST_TIME = 30.0
TIME_STEP = 0.02
AFTER_LANGUAGES = tuple(
    "<|translate|> <|transcribe|> <|startoflm|> <|startofprev|> <|nospeech|> <|notimestamps|>".split()
)


def whisper_tokenizer(languages: tuple[str, ...], *, multilingual: bool) -> Any:
    """The tokenizer of a Whisper model as transformers has it. `languages` are the codes in the order of their tokens.

    The ids of a model are those of its vocabulary, and after them the special tokens in OpenAI's order.
    """
    from transformers import PreTrainedTokenizerFast

    backend = _backend("multilingual" if multilingual else "gpt2")
    tokens = [END, "<|startoftranscript|>", *(f"<|{code}|>" for code in languages), *AFTER_LANGUAGES]
    tokens += (f"<|{count * TIME_STEP:.2f}|>" for count in range(round(LAST_TIME / TIME_STEP) + 1))
    backend.add_special_tokens(tokens)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=END,
        eos_token=END,
        unk_token=END,
        pad_token=END,
        clean_up_tokenization_spaces=False,
    )


def _backend(name: str) -> tokenizers.Tokenizer:
    """A byte-level BPE. Its pieces are the 256 bytes and then what each merge makes, in their order."""
    packed = files("pippin.engines.whisper").joinpath(f"{name}.merges.xz").read_bytes()
    letters, *lines = lzma.decompress(packed).decode("utf-8").split("\n")
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
    pieces = [*letters, *(left + right for left, right in merges)]
    if name == "multilingual":
        pieces.append("")  # OpenAI's vocabulary ends with a piece of no bytes
    backend = tokenizers.Tokenizer(models.BPE({piece: rank for rank, piece in enumerate(pieces)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend
