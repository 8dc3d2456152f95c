"""Texts, pairs, and the prompt of Qwen3-Reranker (its model card), for tiny encoders to agree on."""

TEXTS = (
    "the quick brown fox jumps over the lazy dog",
    "a fox",
    "one machine serves many models at once and one model serves many people",
    "dog",
    "many people at one machine",
)
PAIRS = (
    ("quick fox", "the quick brown fox jumps over the lazy dog"),
    ("quick fox", "one machine serves many models at once"),
    ("many models", "a dog"),
)
PROMPT_WORDS = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>:",
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
)
