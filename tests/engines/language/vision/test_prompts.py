"""Pictures in prompts: several of them, in histories and results of tools, in caches, beside other features."""

import re
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pippin.core.conversation import (
    Audio,
    Document,
    Image,
    Inline,
    Message,
    Text,
    Tool,
    ToolCall,
    ToolResult,
)
from pippin.core.errors import ServerError
from pippin.core.events import Rendered
from pippin.core.requests import GenerationRequest, JsonObject, Sampling
from pippin.core.tasks import CountTokens, Generate, RenderTemplate
from pippin.engines.language.kv_cache.groups import BatchedGroup
from pippin.engines.language.loading import drafting
from pippin.engines.language.vision import processing
from pippin.engines.language.vision.media import Medium
from pippin.engines.language.vision.processing import MediaProcessor
from pippin.engines.recent import Recent
from tests.engines.attachments.pdfs import pdf
from tests.engines.language.bench import PLAN, Eager, watch
from tests.engines.language.vision.tiny_vision_models import picture, tiny_vision_model
from tests.engines.language.vision.vision_bench import VisionBench
from tests.engines.tiny_models import tiny_model

WIDE, TALL, SMALL = picture(60, 28, 1), picture(20, 52, 2), picture(17, 19, 3)
PAD, START = 261, 259
"""Tokens of Qwen's template."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vision_model("qwen3_vl", tmp_path_factory.mktemp("models") / "qwen3_vl")


@pytest.fixture(scope="module")
def bench(folder: Path) -> VisionBench:
    return VisionBench(folder)


# The last token of Qwen3-VL's answer is a tie in 16 bits.
@pytest.mark.parametrize(
    "family",
    ["qwen2_vl", pytest.param("qwen3_vl", marks=pytest.mark.float32), "gemma3", "smolvlm", "mistral3"],
)
def test_several_pictures_are_answered_as_mlx_vlm_does(family: str, tmp_path: Path) -> None:
    bench = VisionBench(tiny_vision_model(family, tmp_path / family))
    shown = [WIDE, TALL] if family != "mistral3" else [WIDE, picture(60, 28, 5)]
    job = bench.job("a", *shown, "Compare.")
    assert bench.alone(job) == bench.judged("Compare.", shown)
    turned = bench.job("b", *reversed(shown), "Compare.")
    assert bench.alone(turned) == bench.judged("Compare.", shown[::-1])


def test_a_conversation_goes_on_without_encoding_its_pictures_again(bench: VisionBench) -> None:
    engine = bench.new_engine()
    opened = (
        Message("user", (Image(Inline(WIDE)), Text("What is it?"))),
        Message("assistant", (Text("A dog."),)),
    )
    bench.run(bench.prepare("a", opened[:1]), engine=engine)
    followed = bench.prepare("b", (*opened, Message("user", (Text("Sure?"),))))
    answer, ends = bench.run(followed, engine=engine)
    assert answer["b"] == bench.alone(followed)
    assert ends["b"].usage.cached_tokens >= 40
    another = bench.prepare("c", (*opened, Message("user", (Image(Inline(TALL)), Text("And this?")))))
    answer, ends = bench.run(another, engine=engine)
    assert answer["c"] == bench.alone(another)
    assert ends["c"].usage.cached_tokens >= 40
    assert engine.vision.encoded == 2


@pytest.mark.parametrize("family", ["qwen3_5", "gemma3"])
def test_a_picture_that_is_left_out_later_costs_only_what_follows_it(family: str, tmp_path: Path) -> None:
    whole = msgspec.structs.replace(PLAN, prefill_chunk=4096)
    bench = VisionBench(tiny_vision_model(family, tmp_path / family), whole)
    bench.preparer.finds_partings = bench.engine.prefixes.has_snapshots
    assert bench.preparer.finds_partings
    words = Text("The dog of which I spoke, and the garden behind the house: ")
    asked = Message("user", (words, Image(Inline(WIDE)), Text("What is it?")))
    later = Message("assistant", (Text("A dog."),)), Message("user", (Text("Sure?"),))
    first = bench.prepare("a", (asked,))
    bench.run(first)
    begun = len(first.prompt) - len(bench.prepare("text", (Message("user", asked.parts[1:]),)).prompt)
    left_out = bench.prepare("b", (Message("user", (words, Text("[a picture] What is it?"))), *later))
    answer, ends = bench.run(left_out)
    assert answer["b"] == bench.alone(left_out)
    assert ends["b"].usage.cached_tokens >= begun - 2 - 8


def test_features_are_kept_where_prefixes_do_not_help(bench: VisionBench) -> None:
    engine = bench.new_engine()
    for name, system in (("a", "Be brief."), ("b", "Answer at length, in rhyme.")):
        messages = (Message("system", (Text(system),)), Message("user", (Image(Inline(WIDE)), Text("?"))))
        job = bench.prepare(name, messages)
        assert bench.run(job, engine=engine)[0][name] == bench.alone(job)
    stats = engine.stats()
    assert (stats.media_encoded, stats.media_reused) == (1, 1)


def test_other_pictures_of_the_same_size_are_not_taken_from_the_cache(bench: VisionBench) -> None:
    engine = bench.new_engine()
    bench.run(bench.job("a", WIDE, "?"), engine=engine)
    other = bench.job("b", picture(60, 28, 9), "?")
    answer, ends = bench.run(other, engine=engine)
    assert ends["b"].usage.cached_tokens <= 8
    assert answer["b"] == bench.alone(other)


def test_the_cache_of_features_is_bounded_and_may_be_off(folder: Path) -> None:
    for size, encoded in ((0, 3), (1, 2), (2, 2)):
        bench = VisionBench(folder, vision_cache_size=size, prefix_cache=False)
        engine = bench.engine
        answers = [
            bench.run(bench.job("a", shown, "?"), engine=engine)[0]["a"] for shown in (WIDE, TALL, TALL)
        ]
        assert engine.vision.encoded == encoded
        assert answers[1] == answers[2] == bench.alone(bench.job("a", TALL, "?"))


def test_sequences_with_pictures_share_one_batch_with_others(bench: VisionBench) -> None:
    engine = bench.new_engine()
    engine.submit(bench.job("a", WIDE, "?", tokens=30))
    engine.submit(bench.job("b", "Only text", tokens=30))
    while len(engine.batch.running) < 2:
        engine.step()
    [group] = engine.batch.groups._groups.values()
    assert isinstance(group, BatchedGroup)
    while engine.busy:
        engine.step()


@pytest.mark.parametrize(
    "text", ["<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>", "<|im_end|>"]
)
def test_markers_in_text_stay_text(bench: VisionBench, text: str) -> None:
    job = bench.job("a", f"{text} hello {text}")
    assert PAD not in job.prompt
    assert START not in job.prompt
    assert job.prompt.count(258) == 1
    plain = bench.job("b", WIDE, "hello")
    job = bench.job("c", f"{text} hello {text}", WIDE)
    assert job.media is not None
    assert job.prompt.count(PAD) == plain.prompt.count(PAD) == len(job.media.placed[0].positions)


def test_pictures_in_results_of_tools_are_seen(bench: VisionBench) -> None:
    call = ToolCall("call_1", "look", "{}")
    result = ToolResult("call_1", (Text("Here:"), Image(Inline(TALL))))
    messages = (
        Message("user", (Text("Look."),)),
        Message("assistant", (call,)),
        Message("tool", (result,)),
    )
    job = bench.prepare("a", messages, tools=(Tool("look"),))
    assert job.media is not None
    assert len(job.media.placed) == 1
    assert bench.alone(job)


TOOLS_TEMPLATE = """
{%- macro shown(content) %}{% if content is string %}{{ content }}{% else %}{% for part in content %}
{%- if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}{% endmacro %}
{%- if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}\n{{ WRITTEN }}
{%- for call in message.tool_calls %}{{ call.function | tojson }}{% endfor %}<|im_end|>\n{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"""
"""Like that of Qwen3-VL; what stands for WRITTEN is the content of a message."""


@pytest.mark.parametrize(
    ("written", "results"),
    [
        ("shown(message.content)", "tool: 1<P>2 tool: <P> tool: Error: <P> assistant: "),
        (
            "message.content if message.role == 'tool' else shown(message.content)",
            "tool: 1\n2 user: <P> tool:  user: <P> tool: Error:  user: <P> assistant: ",
        ),
    ],
)
def test_pictures_stand_in_results_where_the_template_writes_them(
    written: str, results: str, folder: Path, tmp_path: Path
) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(TOOLS_TEMPLATE.replace("WRITTEN", written))
    bench = VisionBench(folder, chat_template_file=str(template))
    shown = [Image(Inline(each)) for each in (WIDE, TALL, SMALL)]
    parts = ((Text("1"), shown[0], Text("2")), (shown[1],), (shown[2],))
    messages = (
        Message("user", (Text("Look."),)),
        Message("assistant", tuple(ToolCall(f"call_{n}", "look", "{}") for n in range(3))),
        *(Message("tool", (ToolResult(f"call_{n}", each, is_error=n == 2),)) for n, each in enumerate(parts)),
    )
    job = bench.prepare("a", messages, tools=(Tool("look"),))
    assert job.media is not None
    assert [each.medium.digest for each in job.media.placed] == [
        each.medium.digest
        for each in bench.job("b", *shown).media.placed  # type: ignore[union-attr]
    ]
    prompt = bench.preparer.tokenizer.decode(list(job.prompt))
    told = re.sub(r"<\|vision_start\|>(<\|image_pad\|>)+<\|vision_end\|>", "<P>", prompt)
    told = re.sub(r"<\|im_end\|>\n<\|im_start\|>(\w+)\n", r" \1: ", told)
    assert told.endswith(results)


def test_a_damaged_picture_in_an_earlier_turn_is_a_line(bench: VisionBench) -> None:
    messages = (
        Message("user", (Image(Inline(WIDE)), Image(Inline(WIDE[:90])))),
        Message("assistant", (Text("A dog."),)),
        Message("user", (Image(Inline(TALL)), Text("And this?"))),
    )
    job = bench.prepare("a", messages)
    assert job.media is not None
    assert len(job.media.placed) == 2
    assert job.accepted.warnings
    [shown] = bench.preparer.prepare("a", RenderTemplate(GenerationRequest(model="", messages=messages)))  # type: ignore[misc]
    assert isinstance(shown, Rendered)
    assert "it is damaged or cut off, and can't be read as a picture.]" in shown.text
    with pytest.raises(ServerError, match=r"messages\[0\]\.content\[1\]"):
        bench.prepare("a", messages[:1])


def test_the_pages_of_a_document_are_seen(bench: VisionBench) -> None:
    job = bench.job("a", Document(Inline(pdf("Wombats", "dig"))), "What do they do?")
    assert job.media is not None
    assert len(job.media.placed) == 2


def test_size_limits_and_low_detail_make_fewer_tokens(bench: VisionBench, folder: Path) -> None:
    def count(bench: VisionBench, part: Image) -> int:
        return bench.job("a", part).prompt.count(PAD)

    source = Inline(picture(60, 60))
    assert count(bench, Image(source)) == 64
    assert count(bench, Image(source, max_pixels=1024)) == 16
    assert count(bench, Image(source, resize=(32, 16))) == 8
    assert count(bench, Image(Inline(SMALL), min_pixels=2048)) > count(bench, Image(Inline(SMALL)))
    assert count(VisionBench(folder, max_pixels=1024), Image(source)) == 16
    large = Inline(picture(1200, 900))
    assert count(bench, Image(large, max_pixels=10**6)) > count(
        bench, Image(large, detail="low", max_pixels=10**6)
    )
    bounded = VisionBench(folder, max_pixels=1024, min_pixels=512)
    assert count(bounded, Image(source, max_pixels=10**7)) == 16
    for wrong in (
        Image(source, min_pixels=2048, max_pixels=1024),
        Image(source, min_pixels=10**12),
        Image(source, max_pixels=10**12),
        Image(source, max_pixels=-1),
        Image(source, resize=(10**6, 10**6)),
    ):
        with pytest.raises(ServerError, match=r"messages\[0\]\.content\[0\]"):
            bench.job("a", wrong)
    with pytest.raises(ServerError, match="at least"):
        bounded.job("a", Image(source, min_pixels=2048))


def test_media_of_one_request_are_bounded_together(
    bench: VisionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = bench.job("a", WIDE).media.placed[0].medium.bytes  # type: ignore[union-attr]
    monkeypatch.setattr(processing, "MOST_MEDIA_BYTES", 2 * size)
    assert bench.job("a", WIDE, WIDE)
    with pytest.raises(ServerError, match=r"'messages\[0\]\.content\[2\]' are too large together"):
        bench.job("a", WIDE, WIDE, WIDE)


def test_pictures_beyond_the_context_window_are_not_processed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = VisionBench(folder, context_length=20)
    media = bench.preparer.media
    assert isinstance(media, MediaProcessor)
    processed: list[str] = []

    def process(part: Any, param: str) -> Any:
        processed.append(param)
        return MediaProcessor.process(media, part, param)

    monkeypatch.setattr(media, "process", process)
    with pytest.raises(ServerError, match="maximum context length is 20 tokens"):
        bench.job("a", *(picture(60, 28, shade) for shade in range(8)), "Compare.")
    assert processed == ["messages[0].content[0]"]


def test_features_are_kept_within_their_bytes(bench: VisionBench) -> None:
    engine = bench.new_engine()
    features = engine.vision.model.encode(bench.job("a", WIDE).media.placed[0].medium)  # type: ignore[union-attr]
    cache: Recent[bytes, Any] = Recent(20, 2 * features.bytes, attrgetter("bytes"))
    for name in (b"a", b"b", b"c"):
        cache.put(name, features)
    assert cache.get(b"a") is None
    assert cache.get(b"c") is features
    cache.clear()
    cache.put(b"d", features)
    assert cache.get(b"d") is features


def test_tokens_of_pictures_are_counted(bench: VisionBench) -> None:
    request = GenerationRequest(model="tiny", messages=(Message("user", (Image(Inline(WIDE)), Text("?"))),))
    [counted] = bench.preparer.prepare("a", CountTokens(request))  # type: ignore[misc]
    assert counted.tokens == len(bench.job("b", WIDE, "?").prompt)


def test_pictures_go_with_speculation(
    folder: Path, bench: VisionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafting, "Pace", Eager)
    looking = VisionBench(folder, prompt_lookup=True)
    question = "one two one two one two one two"
    for shown in (WIDE, TALL):
        answers, ends = looking.run(looking.job("a", shown, question, tokens=24))
        assert answers["a"] == bench.alone(bench.job("a", shown, question, tokens=24))
        assert ends["a"].usage.draft_tokens > 0


@pytest.mark.float32
def test_pictures_go_with_quantised_caches(tmp_path: Path) -> None:
    rope = {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [6, 5, 5]}
    folder = tiny_vision_model("qwen3_vl", tmp_path / "qwen3_vl", head_dim=32, rope_scaling=rope)
    plain, packed = VisionBench(folder), VisionBench(folder, kv_bits=8, kv_group_size=32)
    assert packed.alone(packed.job("a", WIDE, "?")) == plain.alone(plain.job("a", WIDE, "?"))


@pytest.mark.parametrize("family", ["qwen3_vl", "gemma4"])
def test_the_disk_knows_pictures_after_a_restart(family: str, tmp_path: Path) -> None:
    folder = tiny_vision_model(family, tmp_path / family)
    first, second = (VisionBench(folder, cache_dir=str(tmp_path / "kept")) for _ in range(2))
    expected, _ = first.run(first.job("a", WIDE, "?"))
    first.engine.close()
    answers, ends = second.run(second.job("a", WIDE, "?"))
    assert answers == expected
    assert ends["a"].usage.cached_tokens >= 40
    assert second.engine.stats().media_encoded == 0
    plain, other = VisionBench(folder), picture(60, 28, 9)
    answers, ends = second.run(second.job("b", other, "?"))
    assert ends["b"].usage.cached_tokens <= 8, "its size is the same, and it is another picture"
    assert answers["b"] == plain.alone(plain.job("b", other, "?"))
    second.engine.close()


def test_choices_and_structure_go_with_pictures(bench: VisionBench) -> None:
    sampling = Sampling(temperature=1.0, seed=4)
    answers, ends = bench.run(
        bench.job("a", WIDE, "?", n=2, sampling=sampling),
        bench.job("b", TALL, "?", output_format=JsonObject()),
    )
    assert set(answers) == {"a", "b"}
    assert bytes(token for token in answers["b"] if token < 256)
    assert ends["b"].reason in ("stop", "length")


@pytest.mark.parametrize("family", ["qwen3_vl", "gemma4"])
def test_a_preempted_sequence_goes_on_as_it_would_have(family: str, tmp_path: Path) -> None:
    bench = VisionBench(tiny_vision_model(family, tmp_path / family))
    engine = bench.new_engine()
    job = bench.job("a", WIDE, "?", tokens=20)
    expected = bench.alone(job)
    watched = watch(engine)
    engine.submit(job)
    while len(watched.get(("a", 0), [])) < 9:
        engine.step()
    engine.lifecycle.suspend(engine.batch.running[0])
    engine.prefixes.clear(disk=False)
    while engine.busy:
        engine.step()
    assert watched["a", 0] == expected


def test_the_prompts_own_logprobs_go_with_pictures(bench: VisionBench) -> None:
    job = bench.job("a", WIDE, "?", tokens=1, prompt_logprobs=1)
    assert bench.run(job)[0]["a"] == bench.alone(bench.job("b", WIDE, "?", tokens=1))


def test_what_a_model_does_not_take_is_refused_by_name(bench: VisionBench, tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="takes no audio") as caught:
        bench.job("a", Audio(Inline(b"RIFF")), "?")
    assert caught.value.report.param == "messages[0].content[0]"
    with pytest.raises(ServerError, match=r"'messages\[0\]\.content\[1\]' is no picture"):
        bench.job("a", "Look:", b"no picture")
    with pytest.raises(
        ServerError,
        match=r"\[0\]' can't be prepared .*: one side is more than 200 times as long as the other; send a part",
    ):
        bench.job("a", picture(4000, 4))
    blind = VisionBench(tiny_model("qwen3", tmp_path / "qwen3"))
    with pytest.raises(ServerError, match="takes text only"):
        blind.job("a", WIDE, "?")
    assert blind.preparer.info.capabilities.images is False


def test_an_overlong_conversation_loses_its_oldest_pictures(folder: Path) -> None:
    bench = VisionBench(folder, context_length=150)
    turns = tuple(
        message
        for shown in (WIDE, TALL, SMALL)
        for message in (
            Message("user", (Image(Inline(shown)), Text("What is this, then?"))),
            Message("assistant", (Text("No idea."),)),
        )
    )
    asked = GenerationRequest(
        model="tiny", messages=(*turns, Message("user", (Text("Why?"),))), max_tokens=8, overflow="truncate"
    )
    job = bench.preparer.prepare("a", Generate(asked))
    assert not isinstance(job, tuple)
    assert job.media is not None
    assert 0 < len(job.media.placed) < 3


def test_pictures_with_a_part_of_their_digests_in_common_are_told_apart() -> None:
    def identities(digest: bytes) -> tuple[int, ...]:
        parts: dict[str, Any] = {"text": "", "tokens": (7, 7, 7), "arrays": {}}
        return Medium(modality="image", digest=digest, placeholders=(0, 1, 2), **parts).identities()

    one = bytes(range(24))
    for place in range(24):
        other = bytes(byte ^ (index == place) for index, byte in enumerate(one))
        assert identities(one) != identities(other)
    assert len({*identities(one)}) == 3


def test_pictures_stay_with_their_results_in_whichever_order_these_come(bench: VisionBench) -> None:
    calls = tuple(ToolCall(f"call_{name}", name, "{}") for name in ("left", "right"))
    shown = {"left": Image(Inline(WIDE)), "right": Image(Inline(TALL))}

    def results(*names: str) -> tuple[Message, ...]:
        return tuple(
            Message("tool", (ToolResult(f"call_{name}", (Text(name), shown[name])),)) for name in names
        )

    opening = (Message("user", (Text("Look."),)), Message("assistant", calls))
    tools = (Tool("left"), Tool("right"))
    asked, turned = (
        bench.prepare("a", (*opening, *results(*names)), tools=tools)
        for names in (("left", "right"), ("right", "left"))
    )
    assert asked.media is not None
    assert turned.media is not None
    placed = [[each.medium.digest for each in job.media.placed] for job in (asked, turned)]  # type: ignore[union-attr]
    assert turned.prompt == asked.prompt
    assert placed[0] == placed[1]
