"""The grammar of a whole answer: a client's grammar, and the markers that the model family puts around it."""

from pippin.output.grammars import Grammar, SpecialToken
from pippin.output.reasoning_formats import ReasoningFormat

BLANKS = r"/[ \t\r\n]{1,4}/"
"""Whitespace after the end of reasoning. It is bounded, because small models can get stuck writing whitespace."""


def around(reasoning: ReasoningFormat, special: SpecialToken, inner: str, *, thinks: bool) -> str:
    """Lark source around `inner`, which refers to one or more grammars. `thinks`: reasoning may come before.

    Optional markers are left out of the grammar if the vocabulary has no tokens for them, because an answer may begin
    or end with the same text.
    """
    grammar = Grammar(special)
    before = " ".join(map(grammar.mark, reasoning.before_answer))
    if not reasoning.in_grammar and not any(map(grammar.is_special, reasoning.before_answer)):
        before = ""
    after = " ".join(map(grammar.mark, reasoning.after_answer))
    if not any(map(grammar.is_special, reasoning.after_answer)):
        after = ""
    if reasoning.in_grammar:
        head = f"{reasoning.in_grammar(grammar)} {before}"
    else:
        head = (f"{grammar.rule(BLANKS)}?" if thinks else "") + (f" ({before})?" if before else "")
    return grammar.lines(f"{head} ({inner})" + (f" ({after})?" if after else ""))


def ahead_of_calls(reasoning: ReasoningFormat, special: SpecialToken, inner: str, *, thinks: bool) -> str:
    """Lark source around `inner`, which refers to a format's own grammar of calls."""
    grammar = Grammar(special)
    return grammar.lines(f"{grammar.rule(BLANKS)}? {inner}" if thinks and not reasoning.in_grammar else inner)
