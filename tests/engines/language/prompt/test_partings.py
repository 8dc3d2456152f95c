"""Where other prompts part from a prompt, the state of layers that cannot be cut is kept: conversations go on there."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from pippin.config.options.model import ModelOptions
from pippin.core.conversation import Message, Reasoning, Text, Tool, ToolCall, ToolResult
from pippin.core.events import Finished
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.requests import GenerationRequest, Sampling
from pippin.core.tasks import Generate
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.prefix_cache.cache import shared_length
from pippin.engines.language.prompt import rendering
from pippin.engines.language.prompt.preparer import LanguagePreparer
from pippin.engines.language.text.tokenizer import Tokenizer
from tests.engines.language.bench import PLAN, Bench
from tests.engines.tiny_models import TinyModels
from tests.output.families import Family

BLOCK = 8
SYSTEM = Message("system", (Text("You help with files. " * 6),))
READ = Tool("read", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}})


def user(words: str) -> Message:
    return Message("user", (Text(words),))


def step(number: int) -> tuple[Message, ...]:
    """A thought with a call of a tool, and its result."""
    call = ToolCall(f"call_{number}", "read", f'{{"path": "{number}.py"}}')
    said = Message("assistant", (Reasoning(f"Thought {number}."), call))
    return said, Message("tool", (ToolResult(f"call_{number}", (Text(f"Text {number}. " * 3),)),))


FIRST = (SYSTEM, user("Mend the tests."))
WORKED = (*FIRST, *step(1), *step(2), *step(3))
EMPTIED = (FIRST[0], FIRST[1], step(1)[0], Message("tool", (ToolResult("call_1", (Text("[left out]"),)),)))
SESSIONS: dict[str, tuple[tuple[Message, ...], ...]] = {
    "what a tool said is left out": (FIRST, (*FIRST, *step(1)), (*EMPTIED, *step(2))),
    "a turn of which the thought is dropped": (
        FIRST,
        (*FIRST, Message("assistant", (Reasoning("Hm."), Text("Done."))), user("And now?")),
    ),
    "a turn with tools, of which all thoughts are dropped": (
        FIRST,
        (*FIRST, *step(1)),
        WORKED,
        (*WORKED, Message("assistant", (Reasoning("Hm."), Text("Done."))), user("And now?")),
    ),
    "another conversation with the same tools": (FIRST, (SYSTEM, user("What is in these files?"))),
    "the same conversation compacted": (
        FIRST,
        WORKED,
        (SYSTEM, user("This goes on from a summary: the tests were mended.")),
    ),
    "a reminder that stands at the end alone": (
        (*FIRST, *step(1), Message("system", (Text("Used: 7 of 200. " * 4),))),
        (*FIRST, *step(1), *step(2), Message("system", (Text("Used: 14 of 200. " * 4),))),
        (*FIRST, *step(1), *step(2), Message("assistant", (Text("Done."),)), user("Thanks.")),
    ),
    "the same conversation with a tool more": (FIRST, (*FIRST, *step(1))),
    "another question after the same words": (
        (SYSTEM, Message("user", (Text("The folder is /tmp. " * 3), Text("Mend the tests.")))),
        (SYSTEM, Message("user", (Text("The folder is /tmp. " * 3), Text("What is here?")))),
    ),
}


LOOK = Tool("look", "Looks at a page. " * 4, READ.parameters)


def job_of(preparer: LanguagePreparer, messages: tuple[Message, ...], tools: tuple[Tool, ...]) -> LanguageJob:
    asked = GenerationRequest(
        model="small", messages=messages, tools=tools, max_tokens=4, sampling=Sampling(temperature=0)
    )
    job = preparer.prepare("a", Generate(asked))
    assert isinstance(job, LanguageJob)
    return job


class Conversation:
    """What is said to a tiny model, whose prefix cache has what was computed before."""

    def __init__(self, folder: Path, template: Family) -> None:
        tokenizer = Tokenizer.load(folder)
        tokenizer.chat_templates = {"default": template.source}
        info = ModelInfo(id="small", kind="language", context_window=16384)
        self.preparer = LanguagePreparer(WorkerSpec(info=info), tokenizer)
        plan = msgspec.structs.replace(PLAN, prefill_chunk=4096)
        self.bench = Bench(folder, ModelOptions(cache_block_tokens=BLOCK), plan)
        self.preparer.finds_partings = self.bench.engine.prefixes.has_snapshots
        self.earlier: list[tuple[int, ...]] = []
        self.asked: tuple[int, ...] = ()

    def judge(self) -> None:
        """The last answer, which follows from all that is reused, is what the model alone would say."""
        self.bench.judge(self.asked, list(self.earlier[-1][len(self.asked) :]))

    def lost(self, messages: tuple[Message, ...], tools: tuple[Tool, ...]) -> int:
        """How many tokens are computed that an earlier prompt began with, or its answer."""
        job, engine = job_of(self.preparer, messages, tools), self.bench.engine
        engine.submit(job)
        [[sequence]] = [live.sequences for live in engine.lifecycle.live]
        cached = [
            event.usage.cached_tokens
            for _ in iter(lambda: engine.busy, False)
            for _, event in engine.step()
            if isinstance(event, Finished)
        ]
        shared = max((shared_length(job.prompt[:-1], each) for each in self.earlier), default=0)
        self.earlier.append(tuple(sequence.tokens))
        self.asked = job.prompt
        return shared - sum(cached)


@pytest.mark.parametrize("architecture", ["qwen3_5", "gemma3_text"])
@pytest.mark.parametrize("session", SESSIONS)
def test_what_prompts_share_is_computed_once(
    tiny_models: TinyModels, session: str, architecture: str
) -> None:
    folder: Path = tiny_models(architecture, max_position_embeddings=16384)
    conversation = Conversation(folder, Family("Qwen3.5-4B", "qwen3_coder"))
    for number, messages in enumerate(SESSIONS[session]):
        tools = (READ, LOOK) if session.endswith("with a tool more") and number else (READ,)
        assert conversation.lost(messages, tools) < BLOCK
    conversation.judge()


WRITE = Tool("write", "Writes a file. " * 5, READ.parameters)
FIND = Tool("find", "Finds files. " * 5, READ.parameters)
TOOLS = (READ, LOOK, WRITE, FIND)
OTHER_TOOLS: dict[str, tuple[Tool, ...]] = {
    "the first is gone": TOOLS[1:],
    "one is gone": (READ, LOOK, FIND),
    "the last is gone": TOOLS[:-1],
    "the last two are gone": TOOLS[:-2],
    "one comes between": (READ, Tool("ask", "Asks.", READ.parameters), *TOOLS[1:]),
    "another order": (READ, FIND, WRITE, LOOK),
}


@pytest.mark.parametrize(
    ("change", "template"),
    [
        *((change, "Qwen3.5-4B") for change in OTHER_TOOLS),
        *(("one is gone", name) for name in ("openai-gpt-oss-120b", "Kimi-K2-Instruct", "Qwen3-Coder")),
    ],
)
def test_another_list_of_tools_is_read_from_where_it_differs(
    tiny_models: TinyModels, change: str, template: str
) -> None:
    """Though no two of these prompts have ever parted there."""
    folder: Path = tiny_models("qwen3_5", max_position_embeddings=16384)
    conversation = Conversation(folder, Family(template, ""))
    conversation.lost(FIRST, TOOLS)
    # The place is told by the characters of the text, so it may be a token or two early.
    assert conversation.lost((*FIRST, *step(1)), OTHER_TOOLS[change]) < BLOCK + 3
    conversation.judge()


@pytest.mark.parametrize(("template", "system_first"), [("Qwen3.5-4B", False), ("Qwen3-Coder", True)])
def test_where_tools_end_is_looked_for_once_for_prompts_that_begin_alike(
    template: str, system_first: bool, tiny_models: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer.load(tiny_models("qwen3_5", max_position_embeddings=16384))
    tokenizer.chat_templates = {"default": Family(template, "").source}
    spec = WorkerSpec(info=ModelInfo(id="small", kind="language", context_window=16384))
    looks = [0]

    def counted(text: Any, other: Any) -> int:
        looks[0] += 1
        return shared_length(text, other)

    monkeypatch.setattr(rendering, "shared_length", counted)
    used = LanguagePreparer(spec, tokenizer)
    another = (SYSTEM, user("What is in these files?"))
    other = (Message("system", (Text("Others are here. " * 20),)), *FIRST[1:])
    for messages, tools, found in (
        (FIRST, TOOLS, 1),
        (another, TOOLS, 0),
        (other, TOOLS, int(system_first)),
        (another, TOOLS, 0),
        (FIRST, TOOLS[:-1], 1),
        (another, TOOLS[:-1], 0),
    ):
        used.finds_partings = True
        fresh = LanguagePreparer(spec, tokenizer)
        fresh.finds_partings = True
        looks[0] = 0
        spares = job_of(used, messages, tools).spares
        looked, looks[0] = looks[0], 0
        assert spares == job_of(fresh, messages, tools).spares
        assert looks[0] - looked == 1 - found
        assert len(spares) >= 2 * len(tools) - 1
