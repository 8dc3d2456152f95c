"""Answers that repeat themselves without end, and sound ones that repeat something: made by script, always the same."""

import base64
import json
import random
from collections.abc import Callable, Iterator
from typing import Final

NOUNS: Final = (
    "river stone garden window teacher market engine letter morning bridge kitchen forest signal harbour winter candle "
    "mirror village pocket thunder carpet ladder meadow copper lantern orchard pepper saddle tunnel velvet"
).split()
VERBS: Final = "carries follows opens covers watches gathers repairs crosses answers forgets".split()
LINKS: Final = "because although while before after until since where".split()
LONG: Final = 3000  # tokens about; longer than every bound


def sentence(draw: random.Random) -> str:
    one, two, three = draw.sample(NOUNS, 3)
    return (
        f"The {one} {draw.choice(VERBS)} the {two} {draw.choice(LINKS)} a {three} {draw.choice(VERBS)} it. "
    )


def thought(draw: random.Random) -> str:
    one, two = draw.sample(NOUNS, 2)
    return f"Wait, let me check the {one} again. Actually, {sentence(draw)}Hmm, so that is {two}. "


def paragraph(draw: random.Random) -> str:
    return "".join(sentence(draw) for _ in range(draw.randint(3, 12))).strip() + "\n\n"


def lines(draw: random.Random) -> str:
    return "".join(f"- {sentence(draw).strip()}\n" for _ in range(draw.randint(2, 5)))


def item(draw: random.Random) -> str:
    names = draw.sample(NOUNS, 4)
    made = {"id": draw.randint(1, 99), **{name: draw.choice(NOUNS) for name in names}}
    return json.dumps(made) + ", "


def phrase(draw: random.Random) -> str:
    return " ".join(draw.sample(NOUNS, draw.randint(4, 6))) + ", "


def code(draw: random.Random) -> str:
    one, two, three = draw.sample(NOUNS, 3)
    verb = draw.choice(VERBS)
    return f"    {one} = {two}.{verb}({three})\n    if {one}.{verb}:\n        return {two}\n"


def call(draw: random.Random) -> str:
    named = {
        "name": draw.choice(VERBS),
        "arguments": {"path": f"/{draw.choice(NOUNS)}/{draw.choice(NOUNS)}.py"},
    }
    return f"<tool_call>\n{json.dumps(named)}\n</tool_call>\n"


def unspaced(draw: random.Random) -> str:
    return "".join(draw.sample("我认为这个问题很简单让再检查一遍所以答案是正确的然后继续思考", 14)) + "。"


def word(draw: random.Random) -> str:
    return draw.choice(NOUNS)[:5]


LOOPS: Final[tuple[tuple[int, Callable[[random.Random], str]], ...]] = (
    (30, sentence),
    (35, thought),
    (25, paragraph),
    (25, lines),
    (25, item),
    (15, phrase),
    (15, code),
    (15, call),
    (8, unspaced),
    (7, word),
)


def loops(seed: int = 1) -> Iterator[tuple[str, str]]:
    """200 answers, each as what comes first, and the period that then comes for ever."""
    draw = random.Random(seed)
    for count, make in LOOPS:
        for _ in range(count):
            yield "".join(sentence(draw) for _ in range(draw.randint(0, 6))), make(draw)


def table(draw: random.Random) -> str:
    rows = draw.randint(5, 40)
    same = draw.random() < 0.5
    cells = [f"| {draw.choice(NOUNS)} | {draw.randint(0, 9)} | yes |\n" for _ in range(1 if same else rows)]
    return "| name | count | ok |\n|---|---|---|\n" + "".join(draw.choice(cells) for _ in range(rows))


def zeros(draw: random.Random) -> str:
    width, height = draw.randint(5, 30), draw.randint(3, 20)
    row = ", ".join(draw.choice(["0", "0", "0.0", "null", "true"]).split() * width)
    return "[" + ",\n ".join(f"[{row}]" for _ in range(height)) + "]"


def rows(draw: random.Random) -> str:
    row = f"{draw.randint(1, 99)},{draw.choice(NOUNS)},{draw.randint(1, 99)}.5,{draw.choice(['', 'EUR', 'Berlin'])}\n"
    return "id,name,price,note\n" + row * draw.randint(5, 60)


def records(draw: random.Random) -> str:
    same = {"id": 1, "name": draw.choice(NOUNS), "active": True}
    return json.dumps([{**same, "id": number} for number in range(draw.randint(5, 60))], indent=1)


def poem(draw: random.Random) -> str:
    refrain = f"Oh {draw.choice(NOUNS)}, my {draw.choice(NOUNS)},\n" * draw.randint(1, 3)
    return "\n".join(sentence(draw) + "\n" + refrain for _ in range(draw.randint(3, 9)))


def song(draw: random.Random) -> str:
    return f"{draw.choice(NOUNS)} all the day long\n" * draw.randint(2, 6) + "la " * draw.randint(4, 40)


def program(draw: random.Random) -> str:
    line = f"    {draw.choice(['print()', 'total += 1', 'pass', 'ax.plot(x, y)', 'sleep(1)', 'i++;'])}\n"
    return "def run():\n" + line * draw.randint(3, 40) + code(draw) * draw.randint(1, 3)


def page(draw: random.Random) -> str:
    card = f'<div class="card"><h2>Title</h2><p>{draw.choice(NOUNS)}</p></div>\n'
    cell = "<td>Cell</td>" * draw.randint(3, 12)
    return card * draw.randint(2, 5) + "<tr>" + cell + "</tr>\n"


def listing(draw: random.Random) -> str:
    return "".join(f"{number}. {sentence(draw)}\n" for number in range(1, draw.randint(5, 40)))


def art(draw: random.Random) -> str:
    wide = draw.randint(5, 40)
    inner = "#" + " " * wide + "#\n"
    return (
        "```\n"
        + "#" * (wide + 2)
        + "\n"
        + inner * draw.randint(3, 25)
        + "*" * wide
        + "\n"
        + "=-" * wide
        + "\n```"
    )


def encoded(draw: random.Random) -> str:
    return base64.b64encode(bytes(draw.randint(20, 400)) + draw.randbytes(40)).decode()


def repeated(draw: random.Random) -> str:
    return (draw.choice(NOUNS)[:5] + " ") * 100


def prose(draw: random.Random) -> str:
    return "".join(paragraph(draw) for _ in range(draw.randint(1, 6)))


SOUND: Final = (
    table, zeros, rows, records, poem, song, program, page, listing, art, encoded, repeated, prose, code, lines,
)  # fmt: skip


def sound(seed: int = 1) -> Iterator[tuple[str, str]]:
    """500 answers that are whole, with the names of their kinds."""
    draw = random.Random(seed)
    for number in range(500):
        make = SOUND[number % len(SOUND)]
        yield make.__name__, make(draw)
