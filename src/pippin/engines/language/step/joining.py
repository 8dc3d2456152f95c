"""Which chunks of several prompts are worth computing in one pass."""

from collections.abc import Sequence

MOST_PADDING = 1.5  # computed tokens, padding included, for each real one
MOST_CONTEXT = 8192  # tokens of all prompts' caches together, which a joined pass copies side by side


def fits(counts: Sequence[int], contexts: Sequence[int]) -> bool:
    """Whether chunks of `counts` tokens, after `contexts` tokens each, are worth computing in one pass."""
    width = max(counts)
    longest = max(context + count for context, count in zip(contexts, counts, strict=True))
    return width * len(counts) <= MOST_PADDING * sum(counts) and longest * len(counts) <= MOST_CONTEXT
