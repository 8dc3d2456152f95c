"""How much of what agents send again is computed again: their sessions, replayed against each kind of KV cache.

    python -m benchmarks.agents --record FOLDER     # runs Claude Code, Codex, OpenCode and pi, which npm brings
    python -m benchmarks.agents --replay FOLDER --model PATH [--template FILE] [--kinds hybrid ...]

A session is two questions to an agent whose tools are called three times, two at once among them; Claude Code also
tells of its budget in late system messages, and is told to `/compact` before a third question. The scripted model
answers, and each request is kept as Pippin understood it. `CHANGED` makes further sessions of each.

The replay gives the requests, in order, to small random models with the tokenizer at PATH and a template that leaves
earlier turns as they are, or the one in FILE. A token of a prompt can be reused if the prompt is equal to an earlier
one, or to that and its answer, up to there; the last token of a prompt never can.
"""

import argparse
import itertools
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from benchmarks.speculation import Subject
from pippin.core.conversation import Message, Part, Reasoning, Text, Tool, ToolResult
from pippin.core.events import Finished
from pippin.core.requests import GenerationRequest
from pippin.core.tasks import Generate

REQUESTS: Final = msgspec.msgpack.Decoder(list[GenerationRequest])
KINDS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "full attention": ("llama", {}),
    "sliding window": ("gemma3_text", {}),
    "hybrid": ("qwen3_next", {}),
    "quantised KV": ("llama", {"kv_bits": 8}),
    "KV in 4 bits": ("llama", {"kv_bits": 4}),
    "latent": ("deepseek_v32", {}),
}
Session = list[GenerationRequest]


def compacted(session: Session) -> Session:
    """The agent asks for a summary, and goes on from it with the same system prompt and tools."""
    last, opening = session[-1], [each for each in session[0].messages or () if each.role in SYSTEM]
    asked = Message("user", (Text("Write a summary of this conversation."),))
    summary = Message(
        "user", (Text("This goes on from a summary: notes were read. What was the first one?"),)
    )
    return [
        *session,
        replace(last, messages=(*(last.messages or ()), Message("assistant", (Text("On."),)), asked)),
        replace(last, messages=(*opening, summary)),
    ]


def other_tools(session: Session) -> Session:
    """From the middle on there is one more, which is gone again for the last request."""
    middle, new = len(session) // 2, Tool("look", "Looks at a page.", {"type": "object", "properties": {}})
    changed = [replace(each, tools=(*each.tools, new)) for each in session[middle:-1]]
    return [*session[:middle], *changed, session[-1]]


def a_tool_less(session: Session) -> Session:
    """From the middle on the second tool is gone."""
    middle = len(session) // 2
    fewer = [replace(each, tools=(*each.tools[:1], *each.tools[2:])) for each in session[middle:]]
    return [*session[:middle], *fewer]


def reordered(session: Session) -> Session:
    """From the middle on the tools stand in another order, behind the first."""
    middle = len(session) // 2
    turned = [replace(each, tools=(*each.tools[:1], *each.tools[:0:-1])) for each in session[middle:]]
    return [*session[:middle], *turned]


def left_out(session: Session) -> Session:
    """What tools said is left out when it is two requests old, as agents do with pictures and long files."""

    def emptied(part: Part) -> Part:
        gone = (Text("[left out]"),)
        return replace(part, parts=gone) if isinstance(part, ToolResult) else part

    found = []
    for number, each in enumerate(session):
        messages = each.messages or ()
        old = len(session[max(number - 2, 0)].messages or ()) if number > 1 else 0
        emptier = [replace(message, parts=tuple(map(emptied, message.parts))) for message in messages[:old]]
        found.append(replace(each, messages=(*emptier, *messages[old:])))
    return found


def with_thoughts(session: Session) -> Session:
    """Each answer begins with a thought, which many templates leave out of earlier turns."""

    def thoughtful(message: Message) -> Message:
        thought = (Reasoning("The user wants me to follow the notes."),)
        return replace(message, parts=thought + message.parts) if message.role == "assistant" else message

    return [replace(each, messages=tuple(map(thoughtful, each.messages or ()))) for each in session]


def reminded(session: Session) -> Session:
    """Each request ends with a system message that the next one lacks."""
    told = (Message("system", (Text(f"Budget: {number} of 200 used."),)) for number in itertools.count())
    return [replace(each, messages=(*(each.messages or ()), next(told))) for each in session]


SYSTEM: Final = ("system", "developer")
CHANGED: Final[dict[str, Callable[[Session], Session]]] = {
    "": list,
    "compacted": compacted,
    "other tools": other_tools,
    "thoughts": with_thoughts,
    "a tool less": a_tool_less,
    "reordered": reordered,
    "left out": left_out,
    "reminded": reminded,
}


def record(folder: Path) -> None:
    from tests.agents import agents
    from tests.agents.test_strict_templates import SHELLS, reading
    from tests.api.scripted_server import scripted_server

    from pippin.api.dialects.chat.dialect import ChatDialect
    from pippin.api.dialects.messages.dialect import MessagesDialect
    from pippin.api.dialects.responses.dialect import ResponsesDialect

    seen: list[GenerationRequest] = []
    for dialect in (ChatDialect, MessagesDialect, ResponsesDialect):

        def listening(self: Any, *given: Any, decode: Callable[..., Any] = dialect.decode) -> Any:
            decoded = decode(self, *given)
            seen.extend(decoded.requests)
            return decoded

        dialect.decode = listening  # type: ignore[method-assign]
    steps = [
        {"when": {"turn": turn, "tools": [shell]}, "say": f"On. {calls(*reading(shell, *names))}"}
        for shell in SHELLS
        for turn, names in enumerate((["one"], ["other", "two"], ["three"]), 1)
    ]
    steps.append({"when": {"turn": 5}, "say": "The first note says marker-11."})
    how = {"context_window": 200_000, "capabilities": {"chat": True, "tools": True}, "tool_format": "hermes"}
    for agent in (agents.claude_code, agents.codex, agents.opencode, agents.pi):
        seen.clear()
        with tempfile.TemporaryDirectory() as name, scripted_server(Path(name), *steps, **how) as address:
            work = Path(name) / "work"
            work.mkdir()
            for note, text in zip(
                ("one", "two", "three"), ("marker-11", "marker-22", "marker-33"), strict=True
            ):
                (work / f"{note}.txt").write_text(f"{text}\n")
            (work / "other.txt").write_text("something else\n")
            more = {"reminders": True} if agent is agents.claude_code else {}
            model = "claude-sonnet-4-5" if agent is agents.claude_code else "scripted"
            agent(address, model, Path(name), "please follow the notes", **more)
            if agent is not agents.pi:
                agent(address, model, Path(name), "and what was the first note?", again=True, **more)
            if agent is agents.claude_code:
                for asked in ("/compact", "and what was the last note?"):
                    agent(address, model, Path(name), asked, again=True, **more)
        (folder / f"{agent.__name__}.session").write_bytes(msgspec.msgpack.encode(seen))
        print(f"{agent.__name__}: {len(seen)} requests")


def calls(*each: tuple[str, dict[str, str]]) -> str:
    written = (json.dumps({"name": name, "arguments": given}) for name, given in each)
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in written)


def replay(folder: Path, model: Path, template: Path | None, kinds: Sequence[str]) -> None:
    from tests.agents.wide_model import VOCABULARY, WINDOW, write_settings
    from tests.engines.tiny_models import tiny_model

    print(f"{'cache':16} {'session':24} requests   tokens reusable  reused   share")
    for kind in kinds:
        architecture, options = KINDS[kind]
        with tempfile.TemporaryDirectory() as name:
            size = {"vocab_size": VOCABULARY, "max_position_embeddings": WINDOW, "head_dim": 64}
            made = tiny_model(architecture, Path(name) / "model", **size)
            (made / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
            write_settings(made, model)
            if template is not None:
                settings = made / "tokenizer_config.json"
                known = json.loads(settings.read_text()) | {"chat_template": template.read_text()}
                settings.write_text(json.dumps(known))
            for path, change in itertools.product(sorted(folder.glob("*.session")), CHANGED):
                subject = Subject(made, kernels=False, prefix_cache=True, **options)
                requests = CHANGED[change](REQUESTS.decode(path.read_bytes()))
                total, reusable, reused = reuse(subject, requests)
                counts = f"{len(requests):8} {total:8} {reusable:8} {reused:8} {reused / reusable:7.2%}"
                print(f"{kind:16} {f'{path.stem} {change}':24} {counts}", flush=True)


def reuse(subject: Subject, requests: list[GenerationRequest]) -> tuple[int, int, int]:
    """The tokens of all prompts, those that could be reused, and those that were."""
    earlier: list[tuple[int, ...]] = []
    total = reusable = reused = 0
    for number, request in enumerate(requests):
        # As long as a call at least: what an answer leaves in a block that it does not fill is not kept.
        short = replace(request, model="bench", max_tokens=24, web_search=None)
        job = subject.preparer.prepare(str(number), Generate(short))
        assert not isinstance(job, tuple), job
        subject.engine.submit(job)
        [[sequence]] = [live.sequences for live in subject.engine.lifecycle.live]
        while subject.engine.busy:
            for _, event in subject.engine.step():
                if isinstance(event, Finished):
                    reused += event.usage.cached_tokens
        total += len(job.prompt)
        reusable += min(max((common(job.prompt, each) for each in earlier), default=0), len(job.prompt) - 1)
        earlier.append(tuple(sequence.tokens))
    return total, reusable, reused


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the beginning that both have."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--record", type=Path)
    parser.add_argument("--replay", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--template", type=Path)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    given = parser.parse_args()
    if given.record:
        given.record.mkdir(parents=True, exist_ok=True)
        record(given.record)
    if given.replay:
        replay(given.replay, given.model, given.template, given.kinds)


if __name__ == "__main__":
    main()
