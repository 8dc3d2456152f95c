"""Where other prompts part from a prompt, the state of layers that cannot be cut is kept: conversations go on there."""

from pathlib import Path

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
SESSIONS: dict[str, tuple[tuple[Message, ...], ...]] = {
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


@pytest.mark.parametrize("architecture", ["qwen3_5", "gemma3_text"])
@pytest.mark.parametrize("session", SESSIONS)
def test_what_prompts_share_is_computed_once(
    tiny_models: TinyModels, session: str, architecture: str
) -> None:
    folder: Path = tiny_models(architecture, max_position_embeddings=16384)
    tokenizer = Tokenizer.load(folder)
    tokenizer.chat_templates = {"default": Family("Qwen3.5-4B", "qwen3_coder").source}
    info = ModelInfo(id="small", kind="language", context_window=16384)
    preparer = LanguagePreparer(WorkerSpec(info=info), tokenizer)
    bench = Bench(
        folder, ModelOptions(cache_block_tokens=BLOCK), msgspec.structs.replace(PLAN, prefill_chunk=4096)
    )
    preparer.finds_partings = bench.engine.prefixes.has_snapshots
    earlier: list[tuple[int, ...]] = []
    for number, messages in enumerate(SESSIONS[session]):
        tools = (READ, LOOK) if session.endswith("with a tool more") and number else (READ,)
        job = job_of(preparer, messages, tools)
        bench.engine.submit(job)
        while bench.engine.busy:
            for _, event in bench.engine.step():
                if isinstance(event, Finished):
                    shared = max((shared_length(job.prompt, each) for each in earlier), default=0)
                    assert event.usage.cached_tokens > shared - BLOCK
        earlier.append(job.prompt)
