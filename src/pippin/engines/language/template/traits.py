"""Which parts of a conversation a chat template can write, found by rendering samples when the model is opened."""

import re
from collections.abc import Iterable, Iterator
from itertools import product, takewhile
from typing import Any, Final, Literal

from msgspec import Struct

from pippin.core.models import Rewritten
from pippin.engines.language.template.template import ChatTemplate, TemplateRefusal
from pippin.engines.language.text.tokenizer import pattern_of
from pippin.output.tool_format import History

Messages = list[dict[str, Any]]
TWO_TEXTS: Final = [{"type": "text", "text": "QXE"}, {"type": "text", "text": "QXF"}]


class Traits(Struct, frozen=True, kw_only=True):
    """What a template takes, and in which form."""

    content: Literal["text", "parts"] = "text"  # a message's content: a string, or a list of parts
    lists: frozenset[str] = frozenset()  # the roles whose contents may be lists of several texts
    system: bool = True  # a system message at the start
    developer: bool = False  # the role `developer`
    repeated_roles: bool = True  # two messages of the user in a row
    tools: bool = False  # the tools on offer
    tools_in_system: bool = False  # they are written in a system message alone
    tool_calls: bool = False  # the assistant's earlier calls
    tool_results: bool = False  # messages of the role `tool`
    no_tools: bool = True  # `tools=None`; where false, the variable has to be left out
    descriptions: bool = False  # the template fails for a tool without a description
    null_types: bool = True  # a parameter whose type may be null
    arguments: Literal["object", "json"] = "object"  # arguments of calls: an object, or its JSON
    empty_content: str | None = ""  # the content of a message that is calls alone
    empty_reasoning: bool = False  # the template fails for an earlier turn without its reasoning
    reasoning_fields: tuple[str, ...] = ()  # the fields of a message whose reasoning the template reads
    thinking_parts: bool = False  # reasoning as a part of the content (Mistral's)
    turn_end: str = ""  # what the template writes after an assistant's words
    rewrites: tuple[Rewritten, ...] = ()  # what the user's next turn changes of earlier ones
    marks: re.Pattern[str] | None = None  # what the template looks for in the texts of messages
    # Words such as `/no_think` that the template acts on and takes out: as words of their own, and inside of others.
    switches: re.Pattern[str] | None = None
    quoted_switches: re.Pattern[str] | None = None


class Trial:
    """Renders samples in the form that the template was found to take."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self.thoughts: dict[str, str] = {}  # empty ones, in each turn of the assistant
        self.in_parts = False
        self.in_parts = not self.says([_user("QXA")], "QXA") and self.says([_user(_in_parts("QXA"))], "QXA")

    def text(self, words: str) -> Any:
        return _in_parts(words) if self.in_parts else words

    def render(self, messages: Messages, variables: dict[str, Any]) -> str | None:
        """What the template makes of messages; None if it refuses them."""
        samples = [{**self.thoughts, **each} if each["role"] == "assistant" else each for each in messages]
        try:
            return self._template.render(samples, {"add_generation_prompt": False, **variables})
        except TemplateRefusal:
            return None

    def says(self, messages: Messages, *words: str, **variables: Any) -> bool:
        rendered = self.render(messages, variables)
        return rendered is not None and all(word in rendered for word in words)


def probe(template: ChatTemplate, history: History) -> Traits:
    """Render samples whose texts are unlikely words (QXA and on), and look for those in the result."""
    trial = Trial(template)
    text, says = trial.text, trial.says
    user, other, assistant = _user(text("QXA")), _user(text("QXB")), _assistant(text("QXC"))
    fields = tuple(
        field
        for field in ("reasoning_content", "thinking", "reasoning")
        if re.search(rf"""\.{field}|\['{field}'\]|\["{field}"\]|get\('{field}""", template.source)
    )
    if not says([user, assistant, other], "QXC"):
        trial.thoughts = dict.fromkeys(fields, "")
        trial.thoughts = trial.thoughts if says([user, assistant, other], "QXC") else {}
    system = {"role": "system", "content": text("QXS")}
    takes_system = says([system, user], "QXS", "QXA")
    call_id = "functions.qxtool:0" if history.call_ids == "function" else "call12345"
    offer = _offer(description="QXD")
    result = {"role": "tool", "content": text("QXR"), "tool_call_id": call_id, "name": "qxtool"}
    offering = ([user], [{"role": "system", "content": text("")}, user])
    asked: Messages = next((each for each in offering if says(each, "qxtool", "QXD", tools=[offer])), [])
    tools = bool(asked)
    offers: list[dict[str, Any]] = [{"tools": [offer]}, {}] if tools else [{}]
    arguments, empty, calls = _call_style(trial, call_id, offers)
    called = _calling(empty, arguments, call_id)
    spoken = trial.render([user, assistant], {}) or ""
    opened = [system] * takes_system
    developer = {"role": "developer", "content": text("QXV")}
    conversations = ([*opened, user, assistant, other], [*opened, user, called, result], [developer, user])
    return Traits(
        content="parts" if trial.in_parts else "text",
        lists=_lists(trial, product(conversations, [{}, {"tools": [offer]}][: 1 + tools])),
        system=takes_system,
        developer="developer" in template.source and says([developer, user], "QXV"),
        repeated_roles=says([user, other], "QXA", "QXB"),
        tools=tools,
        tools_in_system=len(asked) == 2,
        tool_calls=calls,
        tool_results=calls and any(says([user, called, result], "QXR", **each) for each in offers),
        no_tools=says([user], "QXA", tools=None),
        descriptions=tools and not says(asked, "qxtool", tools=[_offer()]),
        null_types=not tools or says(asked, "qxtool", tools=[_offer(["string", "null"], description="QXD")]),
        arguments=arguments,
        empty_content=empty,
        empty_reasoning=bool(trial.thoughts),
        reasoning_fields=fields,
        thinking_parts="'thinking'" in template.source
        and says([user, _assistant(thinking_parts("QXH", "QXC"))], "QXH"),
        **_marks(template.searched_marks),
        turn_end=spoken.rpartition("QXC")[2].strip() if "QXC" in spoken else "",
        rewrites=tuple(_rewritten(trial, [user, assistant, other], fields, offer)),
    )


def _lists(trial: Trial, samples: Iterable[tuple[Messages, dict[str, Any]]]) -> frozenset[str]:
    """The roles whose contents the template writes text by text where they are lists. Some templates write such a list
    as it is, with the types of its parts."""
    written: dict[bool, set[str]] = {False: set(), True: set()}
    for turns, variables in samples:
        refused = trial.render(turns, variables) is None
        for role in {each["role"] for each in turns if each["content"] and not refused}:
            said = [each for each in turns if each["role"] == role and each["content"]]
            given = [{**each, "content": TWO_TEXTS} if each in said else each for each in turns]
            found = re.findall("QXE(.*?)QXF", trial.render(given, variables) or "", re.DOTALL)
            written[len(found) == len(said) and not any("type" in each for each in found)].add(role)
    return frozenset(written[True] - written[False])


def _rewritten(
    trial: Trial, turns: Messages, fields: tuple[str, ...], offer: dict[str, Any]
) -> Iterator[Rewritten]:
    """What a template changes of turns once the user has spoken again."""
    user, assistant, other = turns
    thoughts = dict.fromkeys(fields, "QXH") or {"content": trial.text("<think>\nQXH\n</think>\n\nQXC")}
    spoken = trial.render([user, {**assistant, **thoughts}, other], {})
    if spoken is not None and "QXH" not in spoken:
        yield "thoughts"
    offers: tuple[tuple[Rewritten, dict[str, Any]], ...] = (
        ("openings of answers", {}),
        ("tools", {"tools": [offer]}),
    )
    for name, tools in offers:
        asked, later = (
            trial.render(each, {"add_generation_prompt": True, **tools}) for each in ([user], turns)
        )
        if asked is None or later is None:
            continue
        same = takewhile(lambda pair: pair[0] == pair[1], zip(asked, later, strict=False))
        changed = asked[sum(1 for _ in same) :].strip()
        if "qxtool" in changed if tools else changed:
            yield name


def _marks(marks: tuple[str, ...]) -> dict[str, re.Pattern[str] | None]:
    """What a template looks for in texts."""
    found = {"marks": pattern_of(mark for mark in marks if not mark.startswith("/"))}
    if switches := pattern_of(mark for mark in marks if mark.startswith("/")):
        words = f"(?:{switches.pattern})"
        found["switches"] = re.compile(rf"(?<!\S){words}(?!\S)")
        found["quoted_switches"] = re.compile(rf"(?<=\S){words}|{words}(?=\S)")
    return found


def thinking_parts(thoughts: str, said: Any) -> list[dict[str, Any]]:
    """A message's content as a list of parts that begins with reasoning; `said` is a text or a list of parts."""
    parts = said if isinstance(said, list) else [{"type": "text", "text": said}] if said else []
    return [{"type": "thinking", "thinking": thoughts}, *parts]


def _offer(type: str | list[str] = "string", **description: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"qxkey": {"type": type, "description": "QXP"}}}
    return {"type": "function", "function": {"name": "qxtool", **description, "parameters": parameters}}


def _in_parts(words: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": words}]


def _user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def _calling(content: Any, style: Literal["object", "json"], id: str) -> dict[str, Any]:
    arguments = {"qxkey": "qxvalue"} if style == "object" else '{"qxkey": "qxvalue"}'
    function = {"name": "qxtool", "arguments": arguments}
    call = {"id": id, "type": "function", "function": function}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def _call_style(
    trial: Trial, call_id: str, offers: list[dict[str, Any]]
) -> tuple[Literal["object", "json"], str | None, bool]:
    """The form of arguments and of empty content with which calls are written correctly, and whether they are at
    all. Of contents the one with which less is written: some templates write a null, or an empty turn."""
    user = _user(trial.text("QXA"))
    styles: tuple[Literal["object", "json"], ...] = ("object", "json")
    for variables, style in product(offers, styles):
        written: dict[str | None, int] = {}
        for empty in ("", None):
            rendered = trial.render([user, _calling(empty, style, call_id)], variables) or ""
            said = rendered.rpartition("QXA")[2]
            twice = '\\"qxkey' in said or "{'qxkey" in said
            if "qxtool" in said and "qxkey" in said and not twice:
                written[empty] = len(said)
        if written:
            return style, min(written, key=lambda empty: written[empty]), True
    return "object", "", False
