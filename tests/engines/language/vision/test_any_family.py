"""Families of mlx-vlm beside those of `test_families.py`: greedy answers equal those of mlx-vlm's own generate.

Those whose media can't be batched run in mlx-vlm's own loop, one request at a time.
"""

import importlib
import importlib.util
import inspect
import itertools
import math
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import gemma3n

from pippin.core.conversation import Image, Inline, Message, Text, Tool, ToolChoice
from pippin.core.errors import ServerError
from pippin.core.events import Progress
from pippin.core.models import WorkerSpec
from pippin.core.requests import JsonObject, Sampling, Thinking
from pippin.core.tasks import CountTokens, Generate
from pippin.engines.base import NeedsWeightsError
from pippin.engines.language.job import LanguageJob
from pippin.engines.language.library.autoregressive import AutoregressiveModel
from pippin.engines.language.library.engine import LibraryEngine
from pippin.engines.language.prompt.preparer import open_preparer
from pippin.engines.language.vision.checkpoint import load_model
from pippin.engines.language.vision.media import WholePrompt
from pippin.engines.language.vision.model import ChunkInputs
from tests.engines.language.vision.any_family import Family, shrink, write, write_tokenizer
from tests.engines.language.vision.family_settings import FAMILIES
from tests.engines.language.vision.tiny_vision_models import picture
from tests.engines.language.vision.vision_bench import VisionBench

BATCHED = {
    *(
        "dots_ocr",
        "gemma3n",
        "glm4v",
        "glm4v_moe",
        "glm5_next",
        "glm_ocr",
        "indic_ocr",
        "lfm2_vl",
        "llama4",
        "llava_onevision",
    ),
    *(
        "mage_vl",
        "mimo_v2",
        "muse_glimmer",
        "nemotron_h_nano_omni",
        "paddleocr_vl",
        "qwen3_5_moe",
        "qwen3_vl_moe",
    ),
    *("mistral_large3", "muse_spark", "prism_hadamard_qwen35"),
    *("granite_vision", "llava_next", "qwen4_exp"),
}
JOINT = {
    *(
        "aya_vision",
        "deepseek_vl_v2",
        "deepseekocr",
        "deepseekocr_2",
        "got",
        "idefics2",
        "internvl",
    ),
    *(
        "internvl_chat",
        "kimi_k25",
        "kimi_k3",
        "kimi_vl",
        "llava_bunny",
        "llmjpvl",
        "locateanything",
    ),
    *("minicpmv4_6", "molmo", "molmo2", "moondream2", "moondream3", "multi_modality", "plamo2vl"),
    *("step3p7", "youtu_vl"),
}
"""Families that run in batches, with all media of a prompt as one medium."""

ALIKE = {
    "granite_vision",
    "fastvlm",
}  # tiny random models that say the same of both pictures in mlx-vlm, too
WITHOUT_TEXT = ("nemotron_parse",)  # mlx-vlm itself raises for a prompt without a picture
NEED_TORCHVISION = ("mistral_large3", "phi4_siglip")  # whose processors are transformers' own
WITHOUT_TOKENIZER = ("moondream2", "moondream3")
QUICK = ("falcon_ocr", "internvl", "paddleocr_vl", "paligemma")
SHOWN = (picture(60, 28, 1), picture(30, 40, 2))


def import_torchvision() -> None:
    """Skips the test without torchvision (pip install torch torchvision).

    PyPI's build of it for Linux is for CUDA: beside a torch for CPUs its operators cannot be loaded. Its transforms,
    all that is used here, call none of them, but its import asks for two by name.
    """
    torch = pytest.importorskip("torch", reason="needs torch and torchvision")
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("needs torchvision")
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        operators = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        importlib.import_module("torchvision")


def opened(family: str, folder: Path, patch: pytest.MonkeyPatch) -> VisionBench:
    """A tiny model of the family, written into `folder`. While `patch` lasts mlx-vlm has the sizes that it asks for."""
    made = FAMILIES[family]
    shrink(made, patch)
    if family in WITHOUT_TOKENIZER:  # the packages fetch one from another repository
        write_tokenizer(folder, Family(template=None), [])
        patch.setattr(f"mlx_vlm.models.{family}.processing_{family}.TOKENIZER_REPO", str(folder))
    return VisionBench(write(family, made, folder / family), trust_remote_code=made.trusted)


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in FAMILIES]
)
def test_pictures_are_answered_as_by_mlx_vlm(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if family in NEED_TORCHVISION:
        import_torchvision()
    bench = opened(family, tmp_path, monkeypatch)
    assert bench.preparer.info.capabilities.images
    assert isinstance(bench.model, AutoregressiveModel) == (family not in BATCHED | JOINT)
    answers = [bench.run(bench.job("a", shown, "What?"))[0]["a"] for shown in SHOWN]
    assert answers == [bench.judged("What?", [shown]) for shown in SHOWN]
    assert (answers[0] != answers[1]) == (family not in ALIKE)
    # One after the other, with a text between them: nothing of a prompt is left for the next.
    if family in WITHOUT_TEXT:
        with pytest.raises(ServerError, match="takes no request without one"):
            bench.engine.submit(bench.job("text", "No picture."))
    jobs = [
        bench.job("first", SHOWN[0], "What?"),
        *([] if family in WITHOUT_TEXT else [bench.job("text", "No picture.")]),
        bench.job("second", SHOWN[1], "What?"),
    ]
    found, _ = bench.run(*jobs)
    assert [found["first"], found["second"]] == answers
    assert family in WITHOUT_TEXT or found["text"] == bench.judged("No picture.", [])


@pytest.mark.parametrize("family", NEED_TORCHVISION)
def test_a_missing_torchvision_is_named_when_the_model_is_loaded(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec("torchvision") is not None:
        pytest.skip("torchvision is installed")
    with pytest.raises(ServerError, match="pip install torch torchvision") as caught:
        VisionBench(write(family, FAMILIES[family], tmp_path / family))
    assert caught.value.report.kind == "load_failed"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> VisionBench:
    folder = tmp_path_factory.mktemp("models") / "paligemma"
    return VisionBench(write("paligemma", FAMILIES["paligemma"], folder))


def test_gemma_3n_computes_prompts_as_mlx_lm_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mlx-vlm does not: it leaves a factor out of their embeddings, and shared layers rotate queries too far."""
    shrink(FAMILIES["gemma3n"], monkeypatch)
    model, _ = load_model(write("gemma3n", FAMILIES["gemma3n"], tmp_path / "gemma3n"))
    text = model.inner.config.text_config
    fields = inspect.signature(gemma3n.TextConfig).parameters
    settings = {name: getattr(text, name) for name in fields if hasattr(text, name)}
    oracle = gemma3n.Model(gemma3n.ModelArgs("gemma3n", {**settings, "model_type": "gemma3n"}))
    weights = tree_flatten(model.inner.language_model.parameters())
    oracle.load_weights([(f"model.language_{name}", array) for name, array in weights])
    tokens, cache, found = mx.arange(1, 49)[None], model.make_cache(), []
    for start in range(0, 48, 10):
        chunk = tokens[:, start : start + 10]
        given = model.inner.get_input_embeddings(chunk)
        inputs = ChunkInputs(
            embeddings=given.inputs_embeds,
            positions=None,
            extra={"per_layer_inputs": given.per_layer_inputs},
        )
        found.append(model(chunk, cache, inputs=inputs))
    assert mx.allclose(mx.concatenate(found, axis=1), oracle(tokens, oracle.make_cache()), atol=1e-4)


def test_text_that_spells_a_placeholder_stays_text(whole: VisionBench) -> None:
    plain = whole.job("a", SHOWN[0], "What?")
    spelled = whole.job("b", SHOWN[0], "What is <image> in HTML?")
    image = whole.preparer.tokenizer.single("<image>")
    assert plain.prompt.count(image or 0) == spelled.prompt.count(image or 0) > 0
    assert whole.run(spelled)[0]["b"]


CITY = Tool("weather", "Of a city.", {"type": "object", "properties": {"city": {"type": "string"}}})
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("response_format", {"output_format": JsonObject()}),
    ("tool_choice", {"tools": (CITY,), "tool_choice": ToolChoice("required")}),
    ("tools", {"tools": (msgspec.structs.replace(CITY, strict=True),)}),
    ("logprobs", {"logprobs": 0}),
    ("prompt_logprobs", {"prompt_logprobs": 0}),
    ("min_tokens", {"min_tokens": 2}),
    ("thinking_budget", {"thinking": Thinking(budget=3)}),
    ("adapter_path", {"adapter": "mine"}),
    ("logit_bias", {"sampling": Sampling(logit_bias={5: 1.0})}),
    ("repetition_penalty", {"sampling": Sampling(repetition_penalty=1.2)}),
    ("xtc_probability", {"sampling": Sampling(xtc_probability=0.5)}),
]


@pytest.mark.parametrize(("field", "asked"), REFUSED, ids=[field for field, _ in REFUSED])
def test_what_mlx_vlm_s_loop_cannot_honour_is_refused_by_name(
    whole: VisionBench, field: str, asked: dict[str, Any]
) -> None:
    with pytest.raises(ServerError, match=field) as caught:
        whole.engine.submit(whole.job("a", SHOWN[0], "What?", **asked))
    assert (caught.value.report.kind, caught.value.report.param) == ("unsupported", field)
    assert not whole.engine.busy


@pytest.mark.parametrize(
    "option", [{"kv_bits": 4}, {"prompt_lookup": True}, {"adapter_path": "/a"}, {"warm_prompts": "/b"}]
)
def test_options_that_mlx_vlm_s_loop_does_not_follow_are_refused_at_the_load(
    whole: VisionBench, option: dict[str, Any]
) -> None:
    options = msgspec.structs.replace(whole.options, **option)
    with pytest.raises(ServerError, match=next(iter(option))) as caught:
        LibraryEngine(whole.model, whole.preparer, options, whole.plan)
    assert caught.value.report.kind == "load_failed"


def test_a_drawn_answer_is_mlx_vlm_s_with_the_same_seed(whole: VisionBench) -> None:
    drawn = {"temperature": 0.9, "top_p": 0.8, "seed": 5}
    found, _ = whole.run(whole.job("a", SHOWN[0], "What?", sampling=Sampling(**drawn)))
    assert found["a"] == whole.judged("What?", [SHOWN[0]], **drawn)


def test_a_stop_text_and_a_limit_end_an_answer(whole: VisionBench) -> None:
    said, ends = whole.run(whole.job("a", SHOWN[0], "What?"))
    assert (len(said["a"]), ends["a"].reason) == (12, "length")
    text = whole.preparer.tokenizer.decode(tuple(said["a"]))
    stop = text[5:7]
    _, ends = whole.run(whole.job("a", SHOWN[0], "What?", stop=(stop,)))
    assert (ends["a"].reason, ends["a"].stop_sequence) == ("stop", stop)


def test_choices_are_written_one_after_the_other(whole: VisionBench) -> None:
    seen = whole.engine.stats().media_encoded
    said, ends = whole.run(whole.job("a", SHOWN[0], "What?", n=2))
    assert said["a"][:12] == said["a"][12:] == whole.judged("What?", [SHOWN[0]])
    assert ends["a"].choice == 1
    assert whole.engine.stats().media_encoded == seen + 1


def test_a_request_is_cancelled_between_two_tokens(whole: VisionBench) -> None:
    whole.engine.submit(whole.job("long", SHOWN[0], "What?", tokens=2000))
    while not any(isinstance(event, Progress) for _, event in whole.engine.step()):
        pass
    whole.engine.cancel("long")
    found, _ = whole.run(whole.job("a", SHOWN[0], "What?"))
    assert list(found) == ["a"]
    assert found["a"] == whole.judged("What?", [SHOWN[0]])


def test_two_pictures_in_a_message_are_refused_where_the_architecture_takes_one(whole: VisionBench) -> None:
    with pytest.raises(ServerError, match=r"can't take together; send one in each message") as caught:
        whole.job("a", *SHOWN, "Which?")
    assert (caught.value.report.kind, caught.value.report.param) == ("invalid_request", "messages")


def test_what_cannot_be_read_is_refused_by_its_field(whole: VisionBench) -> None:
    with pytest.raises(ServerError) as caught:
        whole.job("a", b"no picture", "What?")
    assert caught.value.report.param == "messages[0].content[0]"
    assert caught.value.report.kind == "invalid_request"


def test_a_picture_waits_for_the_weights_and_text_does_not(whole: VisionBench) -> None:
    """Only the loaded model shows how its media are prepared."""
    spec = WorkerSpec(info=whole.preparer.info, options=msgspec.to_builtins(whole.options))
    preparer = open_preparer(spec)
    pictured, text = whole.job("a", SHOWN[0], "What?"), whole.job("b", "What?")
    for task in (Generate(pictured.request), CountTokens(pictured.request)):
        with pytest.raises(NeedsWeightsError):
            preparer.prepare("a", task)
    early = preparer.prepare("b", Generate(text.request))
    assert isinstance(early, LanguageJob)
    assert early.prompt == text.prompt
    preparer.loaded(whole.preparer.media)
    late = preparer.prepare("a", Generate(pictured.request))
    assert isinstance(late, LanguageJob)
    assert late.prompt == pictured.prompt


def test_messages_wait_for_the_template_that_comes_with_the_media(tmp_path: Path) -> None:
    bench = VisionBench(write("deepseek_v4", FAMILIES["deepseek_v4"], tmp_path / "deepseek_v4"))
    spec = WorkerSpec(info=bench.preparer.info, options=msgspec.to_builtins(bench.options))
    with pytest.raises(NeedsWeightsError):
        open_preparer(spec).prepare("a", Generate(bench.job("a", "What?").request))


def test_ernie_keeps_more_than_three_pictures_apart(tmp_path: Path) -> None:
    """mlx-vlm does not: all from the third on see each other."""
    folder = write("ernie4_5_moe_vl", FAMILIES["ernie4_5_moe_vl"], tmp_path / "ernie4_5_moe_vl")
    tower = load_model(folder)[0].inner.vision_tower
    grids = mx.array([[1, 2, 2], [1, 4, 2], [1, 2, 4], [1, 4, 4]])
    sizes = [math.prod(grid) for grid in grids.tolist()]
    shown = mx.random.normal((sum(sizes), 3 * 14 * 14), key=mx.random.key(1))
    pictures = mx.split(shown, np.cumsum(sizes)[:-1].tolist())
    alone = [tower(each, grids[n : n + 1]) for n, each in enumerate(pictures)]
    assert mx.allclose(tower(shown, grids), mx.concatenate(alone), atol=1e-5)


@pytest.mark.parametrize("family", ["phi3_v", "phi4mm"])
def test_pictures_are_numbered_throughout_a_conversation(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = opened(family, tmp_path, monkeypatch)
    first, second = (Image(Inline(each)) for each in SHOWN)
    said = ((first, Text("A")), (Text("B"),), (second, Text("C")))
    roles = ("user", "assistant", "user")
    job = bench.prepare("a", tuple(map(Message, roles, said)))
    assert isinstance(job.media, WholePrompt)
    marks = [mark for mark, _ in itertools.groupby(job.media.ids[0].tolist()) if mark < 0]
    assert marks == ([-1, -2] if family == "phi3_v" else [-200, -200])
    assert len(bench.alone(job)) == 12
    if family == "phi4mm":  # whose tokenizer does not know the mark, so that it can't be told from text
        with pytest.raises(ServerError, match="can't be prepared"):
            bench.job("b", SHOWN[0], "What is <|image_1|>?")
