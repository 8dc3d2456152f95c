"""Prompts that the operator has computed at the start: found by the first request, and kept whatever else is asked."""

import json
import time
from pathlib import Path

import httpx
import openai
import pytest

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.engines.language.prefix_cache.cache import PIECE
from pippin.engines.language.warm_prompts import read_prompts, request_of
from tests.engines.tiny_models import tiny_model
from tests.running_server import running_server

GUIDE = "You answer in verse. " * 20
STORY = "Once upon a time there was a hill. " * 12
FLOOD = 6  # prompts of 1,500 tokens, of which a cache of 1 MiB can't hold all


@pytest.mark.parametrize("architecture", ["qwen3_next", pytest.param("llama", marks=pytest.mark.long)])
def test_warm_prompts_serve_the_first_request_and_stay(tmp_path: Path, architecture: str) -> None:
    tiny_model(architecture, tmp_path / "models" / "tiny")
    file = tmp_path / "warm.json"
    file.write_text(json.dumps([STORY, [{"role": "system", "content": GUIDE}]]))
    words = ["tiny", "--model-dir", str(tmp_path / "models"), "--warm-prompts", str(file)]
    words += ["--cache-memory-mb", "1"]
    with (
        running_server(tmp_path, *words) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client,
    ):

        def cached(prompt: str) -> int:
            usage = client.completions.create(model="tiny", prompt=prompt, max_tokens=1).usage
            assert usage is not None
            assert usage.prompt_tokens_details is not None
            return usage.prompt_tokens_details.cached_tokens or 0

        def cached_in_chat(question: str) -> int:
            usage = client.chat.completions.create(
                model="tiny",
                messages=[{"role": "system", "content": GUIDE}, {"role": "user", "content": question}],
                max_tokens=1,
            ).usage
            assert usage is not None
            assert usage.prompt_tokens_details is not None
            return usage.prompt_tokens_details.cached_tokens or 0

        block = PIECE if architecture == "qwen3_next" else ModelOptions().cache_block_tokens
        # A token is a byte.
        story, guide = (len(text) // block * block for text in (STORY, f"system: {GUIDE}\n"))
        assert cached(f"{STORY}And then") == story
        assert cached_in_chat("Who are you?") == guide
        crowd = [f"{number} {number * 7} " * 220 for number in range(10, 10 + FLOOD)]
        for text in crowd:
            cached(text)
        assert cached(crowd[0]) == 0, "what nobody pinned had to go"
        assert cached(f"{STORY}But still") == story
        assert cached_in_chat("And now?") == guide
        cleared = httpx.delete(f"{address}/v1/cache/prefix", trust_env=False).json()
        assert cleared["rewarm_scheduled"] is True
        deadline = time.monotonic() + 60
        while cached(f"{STORY}Once more") != story:
            assert time.monotonic() < deadline


@pytest.mark.parametrize("content", ["no JSON", '{"prompt": "x"}', None])
def test_a_file_that_cannot_be_read_fails_the_load_by_name(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "warm.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ServerError, match="warm_prompts") as refused:
        read_prompts(file)
    assert refused.value.report.kind == "load_failed"


def test_an_item_is_a_text_or_a_conversation() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    assert request_of("m", {"prompt": "Hi"}, 0).prompt == request_of("m", "Hi", 0).prompt == "Hi"
    assert request_of("m", {"messages": messages}, 0).messages == request_of("m", messages, 0).messages
    with pytest.raises(ServerError, match=r"warm_prompts\[3\]"):
        request_of("m", 5, 3)
