"""Conversations that an API allows, by name. Each text occurs once in its conversation."""

from msgspec.structs import replace

from pippin.core.conversation import Message, Part, Reasoning, Text, Tool, ToolCall, ToolResult

Conversation = tuple[Message, ...]
PARAMETERS = {
    "type": "object",
    "properties": {"qkey": {"type": "string", "description": "A key."}},
    "required": ["qkey"],
}
TOOLS = tuple(Tool(name, f"Does {name}.", PARAMETERS) for name in ("alpha", "beta"))


def says(role: str, *texts: str) -> Message:
    return Message(role, tuple(Text(text) for text in texts))  # type: ignore[arg-type]


def call(number: int, name: str = "alpha", id: str | None = None) -> ToolCall:
    return ToolCall(id or f"call_{number}", name, f'{{"qkey": "ARG{number}"}}')


def calls(*parts: Part) -> Message:
    return Message("assistant", parts)


def result(number: int, text: str | None = None, id: str | None = None) -> Message:
    return Message("tool", (ToolResult(id or f"call_{number}", (Text(text or f"RES{number}"),)),))


LAST = says("user", "LAST")
SYSTEM, ASKED, MORE, SAID = (
    says("system", "SYS"),
    says("user", "USR"),
    says("user", "MORE"),
    says("assistant", "SAID"),
)
THOUGHT = Reasoning("Hm.")
ONE = calls(call(1))
TWO = calls(call(1), call(2, "beta"))
STEP = (ONE, result(1))

PLAIN: dict[str, Conversation] = {
    "one turn": (ASKED,),
    "system": (SYSTEM, ASKED),
    "developer": (says("developer", "DEV"), ASKED),
    "three turns": (ASKED, SAID, MORE),
    "system and three turns": (SYSTEM, ASKED, SAID, MORE),
    "five turns": (ASKED, SAID, MORE, says("assistant", "AGAIN"), LAST),
    "two systems": (SYSTEM, says("system", "SYS2"), ASKED),
    "system and developer": (SYSTEM, says("developer", "DEV"), ASKED),
    "system alone": (SYSTEM,),
    "two systems alone": (SYSTEM, says("system", "SYS2")),
    "developer alone": (says("developer", "DEV"),),
    "late system": (SYSTEM, ASKED, SAID, says("system", "SYS2"), MORE),
    "system at the end": (SYSTEM, ASKED, SAID, MORE, says("system", "SYS2")),
    "system after an answer": (ASKED, SAID, says("system", "SYS2")),
    "system behind the user": (ASKED, says("system", "SYS2")),
    "late system without one before": (ASKED, SAID, says("system", "SYS2"), MORE),
    "assistant first": (SAID, MORE),
    "system, assistant first": (SYSTEM, SAID, MORE),
    "assistant alone": (SAID,),
    "assistant last": (ASKED, SAID),
    "user twice": (ASKED, MORE),
    "user three times": (ASKED, MORE, LAST),
    "assistant twice": (ASKED, SAID, says("assistant", "AGAIN"), MORE),
    "several texts in a turn": (says("user", "USR", "MORE"), SAID, LAST),
    "empty user": (says("user", ""), SAID, MORE),
    "empty assistant": (ASKED, says("assistant", ""), MORE),
    "assistant without parts": (ASKED, Message("assistant", ()), MORE),
    "empty system": (says("system", ""), ASKED),
    "blank user": (says("user", " \n"), SAID, MORE),
    "thought": (ASKED, calls(THOUGHT, Text("SAID")), MORE),
    "thought alone": (ASKED, calls(THOUGHT), MORE),
    "thoughts in two turns": (ASKED, calls(THOUGHT, Text("SAID")), MORE, calls(THOUGHT, Text("AGAIN")), LAST),
    "named user": (Message("user", (Text("USR"),), name="anna"), SAID, MORE),
}  # fmt: skip

AGENT: dict[str, Conversation] = {
    "call and result": (ASKED, *STEP),
    "system, call and result": (SYSTEM, ASKED, *STEP),
    "answer after a result": (ASKED, *STEP, SAID),
    "user after an answer after a result": (ASKED, *STEP, SAID, MORE),
    "user behind a result": (ASKED, *STEP, MORE),
    "user behind a result, in one turn": (ASKED, ONE, Message("user", (*result(1).parts, Text("MORE")))),
    "user behind a result, twice": (ASKED, *STEP, MORE, calls(call(2)), result(2), LAST),
    "system behind a result": (SYSTEM, ASKED, *STEP, says("system", "SYS2")),
    "text beside a call": (ASKED, calls(Text("SAID"), call(1)), result(1)),
    "thought beside a call": (ASKED, calls(THOUGHT, call(1)), result(1)),
    "thought and text beside a call": (ASKED, calls(THOUGHT, Text("SAID"), call(1)), result(1)),
    "thought and text beside two calls": (ASKED, calls(THOUGHT, Text("SAID"), call(1), call(2)), result(1), result(2)),
    "empty text beside a call": (ASKED, calls(Text(""), call(1)), result(1)),
    "two calls": (ASKED, TWO, result(1), result(2)),
    "two calls, results in one turn": (ASKED, TWO, Message("tool", (*result(1).parts, *result(2).parts))),
    "two calls, results the other way": (ASKED, TWO, result(2), result(1)),
    "two calls of one tool": (ASKED, calls(call(1), call(2)), result(1), result(2)),
    "three calls": (ASKED, calls(call(1), call(2, "beta"), call(3)), result(1), result(2), result(3)),
    "two calls, then one": (ASKED, TWO, result(1), result(2), calls(call(3)), result(3)),
    "two calls, then the user": (ASKED, TWO, result(1), result(2), MORE),
    "two calls and text, then the user": (ASKED, calls(Text("SAID"), *TWO.parts), result(1), result(2), MORE),
    "two turns with calls in a row": (ASKED, calls(call(1)), calls(call(2)), result(1), result(2)),
    "steps": (ASKED, *STEP, calls(call(2, "beta")), result(2), SAID),
    "steps with texts": (ASKED, calls(Text("SAID"), call(1)), result(1), calls(Text("AGAIN"), call(2)), result(2)),
    "two tasks": (ASKED, *STEP, SAID, MORE, calls(call(2)), result(2), says("assistant", "AGAIN"), LAST),
    "ids used again": (ASKED, *STEP, SAID, MORE, calls(call(2, id="call_1")), result(2, id="call_1")),
    "result without its call": (ASKED, result(9), MORE),
    "result first": (result(9), MORE),
    "result alone": (result(9),),
    "result without its call, then a step": (ASKED, result(9), *STEP),
    "call without its result": (ASKED, ONE, MORE),
    "call last": (ASKED, ONE),
    "one of two results": (ASKED, TWO, result(2), MORE),
    "empty result": (ASKED, ONE, Message("tool", (ToolResult("call_1", (Text(""),)),)), MORE),
    "result without parts": (ASKED, ONE, Message("tool", (ToolResult("call_1"),))),
    "failed result": (ASKED, ONE, Message("tool", (ToolResult("call_1", (Text("RES1"),), is_error=True),))),
    "result in several texts": (ASKED, ONE, Message("tool", (ToolResult("call_1", (Text("RES1"), Text("RES2"))),))),
    "result that is JSON": (ASKED, ONE, result(1, '{"found": "RES1"}')),
    "named result": (ASKED, ONE, Message("tool", (ToolResult("call_1", (Text("RES1"),), name="alpha"),))),
    "call without arguments": (ASKED, calls(ToolCall("call_1", "beta", "")), result(1)),
    "call first": (ONE, result(1), MORE),
    "system, call first": (SYSTEM, ONE, result(1)),
    "late system between steps": (SYSTEM, ASKED, *STEP, says("system", "SYS2"), calls(call(2)), result(2)),
    "assistant twice after a result": (ASKED, *STEP, SAID, says("assistant", "AGAIN"), MORE),
}  # fmt: skip

HISTORIES = {**PLAIN, **AGENT}

SAME = calls(call(1, id="same"), call(2, "beta", id="same"))
UNUSUAL: dict[str, Conversation] = {
    "one id for two calls": (ASKED, SAME, result(1, id="same"), result(2, id="same"), MORE),
    "empty id": (ASKED, calls(replace(call(1), id="")), Message("tool", (ToolResult("", (Text("RES1"),)),))),
    "a result twice": (ASKED, ONE, result(1), result(1, "RES2"), MORE),
    "a result behind the next question": (ASKED, ONE, MORE, result(1)),
    "a result behind an answer": (ASKED, ONE, SAID, result(1), MORE),
    "text before a result in one turn": (ASKED, ONE, Message("user", (Text("MORE"), *result(1).parts))),
    "arguments that are no JSON": (ASKED, calls(ToolCall("call_1", "alpha", "ARG1")), result(1)),
    "arguments that are a list": (ASKED, calls(ToolCall("call_1", "alpha", '["ARG1"]')), result(1)),
    "arguments that are null": (ASKED, calls(ToolCall("call_1", "alpha", "null")), result(1)),
    "nested arguments": (ASKED, calls(ToolCall("call_1", "alpha", '{"qkey": {"a": ["ARG1", null, 1.5]}}')), result(1)),
    "a call of another tool": (ASKED, calls(call(1, "gamma")), result(1)),
    "two orphans": (ASKED, result(8), result(9), MORE),
    "two orphans alone": (result(8), result(9)),
    "five calls": (ASKED, calls(*map(call, range(1, 6))), *map(result, range(1, 6)), SAID, MORE),
    "system before a result": (SYSTEM, ASKED, ONE, says("system", "SYS2"), result(1)),
    "system between results": (ASKED, TWO, result(1), says("system", "SYS2"), result(2)),
    "late developer": (SYSTEM, ASKED, SAID, says("developer", "DEV"), MORE),
    "three systems and a step": (SYSTEM, says("system", "SYS2"), says("developer", "DEV"), ASKED, *STEP, MORE),
    "two calls first": (TWO, result(1), result(2), MORE),
    "thoughts in every turn": (ASKED, calls(THOUGHT, call(1)), result(1), calls(THOUGHT, Text("SAID")), MORE),
    "a step behind an answer": (ASKED, SAID, ONE, result(1)),
    "blank texts": (says("system", " "), ASKED, says("assistant", "\n"), MORE),
    "system and empty user": (SYSTEM, says("user", "")),
}  # fmt: skip
"""Conversations that few clients make."""
