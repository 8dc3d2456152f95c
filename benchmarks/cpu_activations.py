"""What int8 activations change in a model's answers: perplexity, likeliest tokens, and greedy answers, beside float32.

python -m benchmarks.cpu_activations FOLDER [--windows 12] [--threads 2]

The text is this repository's documentation, in windows of 256 tokens that each begin anew. Answers are 64 greedy
tokens.
"""

import argparse
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pippin.config.options.model import ModelOptions
from pippin.core.models import ModelInfo

ROOT = Path(__file__).parent.parent
TEXTS = ("docs/architecture.md", "CONTRIBUTING.md", "docs/operating.md")
WINDOW = 256  # tokens
ANSWER = 64
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time, there was a",
    "The three laws of motion are",
    "To bake bread, you need",
    "Water boils at",
    "import numpy as np\n\n",
    "Dear Sir or Madam,\n\n",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--windows", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    from mlx_lm.utils import load_tokenizer

    exact, rounded = (loaded(given.folder, given.threads, name) for name in ("float32", "int8"))
    tokenizer: Any = load_tokenizer(given.folder)
    text = "\n".join((ROOT / name).read_text() for name in TEXTS)
    tokens = tokenizer.encode(text)[: given.windows * WINDOW]
    compare(exact, rounded, [tokens[start : start + WINDOW] for start in range(0, len(tokens), WINDOW)])
    alike = [
        common(answer(exact, prompt), answer(rounded, prompt)) for prompt in map(tokenizer.encode, PROMPTS)
    ]
    whole = sum(count == ANSWER for count in alike)
    print(f"greedy answers alike: {whole} of {len(alike)}; tokens in common before they part: {alike}")


def loaded(folder: Path, threads: int, activations: Literal["float32", "int8"]) -> Any:
    from pippin.engines.device import configure, decide, find_facts
    from pippin.engines.language.model.weights import load_weights

    plan = decide(find_facts(), ModelOptions(cpu_activations=activations))
    configure(plan)
    info = ModelInfo(id=folder.name, kind="language", path=str(folder))
    model, _ = load_weights(info, plan, lambda *_: None, kernel_threads=threads)
    return model


def log_probabilities(model: Any, tokens: list[int]) -> np.ndarray:
    """Of every token after each of the window's, float64 [tokens - 1, vocabulary]."""
    import mlx.core as mx

    logits = np.array(model(mx.array([tokens]))[0, :-1], np.float64)
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def compare(exact: Any, rounded: Any, windows: list[list[int]]) -> None:
    losses: list[tuple[float, float]] = []
    divergences, agreed = [], []
    for window in windows:
        right, ours = log_probabilities(exact, window), log_probabilities(rounded, window)
        places, targets = np.arange(len(window) - 1), np.array(window[1:])
        losses.extend(zip(-right[places, targets], -ours[places, targets], strict=True))
        divergences.extend((np.exp(right) * (right - ours)).sum(-1))
        agreed.extend(right.argmax(-1) == ours.argmax(-1))
    before, after = np.exp(np.mean(losses, axis=0))
    print(
        f"{len(losses)} tokens: perplexity {before:.4f} in float32, {after:.4f} in int8 ({after / before - 1:+.2%})"
    )
    print(
        f"KL divergence {np.mean(divergences):.2e} nats; the likeliest token is the same in {np.mean(agreed):.2%}"
    )


def answer(model: Any, tokens: list[int]) -> list[int]:
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    cache, found = make_prompt_cache(model), []
    given = tokens
    for _ in range(ANSWER):
        given = [int(mx.argmax(model(mx.array([given]), cache=cache)[0, -1]))]
        found += given
    return found


def common(one: list[int], other: list[int]) -> int:
    return next(
        (place for place, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]), len(one)
    )


if __name__ == "__main__":
    main()
