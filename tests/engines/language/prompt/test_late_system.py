"""Claude Code says something new as the system after every tool result: what was computed before stays good."""

import json
from pathlib import Path
from typing import Any

import pytest

from pippin.api.dialects.base import DecodeContext
from pippin.api.dialects.messages.dialect import MessagesDialect
from pippin.config.options.model import ModelOptions
from pippin.core.events import Finished
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.tasks import Generate, RenderTemplate
from pippin.engines.language.prompt.preparer import LanguagePreparer
from pippin.engines.language.text.tokenizer import Tokenizer
from tests.engines.language.bench import Bench
from tests.engines.tiny_models import TinyModels
from tests.output.families import Family

Json = dict[str, Any]
READ = {
    "name": "Read",
    "description": "Reads a file.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
}


def turn(number: int) -> list[Json]:
    """One call of a tool, its result, and what Claude Code adds as the system."""
    called: list[Json] = [
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": f"Thought {number}.", "signature": ""},
                {
                    "type": "tool_use",
                    "id": f"toolu_{number}",
                    "name": "Read",
                    "input": {"path": f"{number}.py"},
                },
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": f"Text {number}. " * 9}
            ],
        },
    ]
    reminder = {"role": "system", "content": f"Tokens used: {number}000 of 200000."}
    return [*called, reminder]


def request(turns: int) -> Generate:
    body = {
        "model": "small",
        "max_tokens": 8,
        "system": [{"type": "text", "text": "You are Claude Code. " * 20}],
        "messages": [
            {"role": "user", "content": "Mend the tests."},
            *(message for number in range(turns) for message in turn(number)),
        ],
        "tools": [READ],
        "temperature": 0,
    }
    [decoded] = MessagesDialect().decode(json.dumps(body).encode(), DecodeContext()).requests
    return Generate(decoded)


@pytest.fixture(scope="module")
def folder(tiny_models: TinyModels) -> Path:
    return tiny_models("llama", max_position_embeddings=16384)


@pytest.fixture(scope="module")
def preparer(folder: Path) -> LanguagePreparer:
    """Of Qwen 3.5's own template, which refuses a system message behind the first."""
    tokenizer = Tokenizer.load(folder)
    tokenizer.chat_templates = {"default": Family("Qwen3.5-4B", "qwen3_coder").source}
    info = ModelInfo(id="small", kind="language", context_window=16384)
    return LanguagePreparer(WorkerSpec(info=info), tokenizer)


def test_all_but_the_last_turn_is_cached(folder: Path, preparer: LanguagePreparer) -> None:
    bench = Bench(folder, ModelOptions(cache_block_tokens=8))
    prompts = []
    for turns in (1, 2, 3):
        job = preparer.prepare(f"turn {turns}", request(turns))
        assert not isinstance(job, tuple)
        bench.engine.submit(job)
        [done] = [event for _, event in events_of(bench) if isinstance(event, Finished)]
        if prompts:
            assert done.usage.cached_tokens > len(prompts[-1]) - 40  # but the words that open an answer
        prompts.append(job.prompt)


def events_of(bench: Bench) -> list[tuple[str, Any]]:
    found = []
    while bench.engine.busy:
        found += bench.engine.step()
    return found


def test_a_reminder_after_a_result_is_the_tail_of_that_result(preparer: LanguagePreparer) -> None:
    [rendered] = preparer.prepare("r", RenderTemplate(request(1).request))
    reminder = "<system-reminder>\nTokens used: 0000 of 200000.\n</system-reminder>\n</tool_response>"
    assert reminder in rendered.text  # type: ignore[union-attr]
    assert rendered.text.count("Tokens used") == 1  # type: ignore[union-attr]
