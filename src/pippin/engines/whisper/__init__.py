"""The tokenizer of Whisper models whose folder has none. Begin with `vocabulary.py`.

The two `.merges.xz` files are OpenAI's vocabularies (github.com/openai/whisper, in whisper/assets; MIT licence,
Copyright (c) 2022 OpenAI; see LICENSE here) as the merges that make them: the 256 bytes as letters of byte-level BPE,
in the order of their ranks, then the two halves of each further piece on a line.
"""
