"""Two hundred texts of many kinds, for embeddings to agree on."""

import random

WORDS = (
    "river mountain engine letter window garden market signal station history paper music winter travel number "
    "kitchen forest bridge captain doctor island machine picture question season table village weather".split()
)
SENTENCES = (
    "cat",
    "kitten",
    "revenue",
    "The quick brown fox jumps over the lazy dog.",
    "Der schnelle braune Fuchs springt über den faulen Hund.",
    "素早い茶色の狐がのろまな犬を飛び越える。",
    "敏捷的棕色狐狸跳过了懒狗。",
    "Быстрая коричневая лиса прыгает через ленивую собаку.",
    "السلام عليكم",
    "🦊 jumps over 🐶!!! 😀😀",
    "def add(a, b):\n    return a + b",
    "SELECT name, count(*) FROM users GROUP BY name;",
    "3.14159 26535 89793",
    "   leading and trailing   ",
    "UPPER lower MiXeD",
    "a",
    "…",
    "e-mail@example.com https://example.com/path?x=1&y=2",
    "naïve café coöperate façade",
    "one\ntwo\n\nthree\ttab",
)


def texts() -> list[str]:
    chooser = random.Random(11)
    made = [" ".join(chooser.choices(WORDS, k=length)) for length in [*range(1, 90), *range(90, 181)]]
    return [*SENTENCES, *made]
