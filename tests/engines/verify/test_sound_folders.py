"""Folders without a fault are reported without one: those of every family, real models, and templates as published.

The long tests have all architectures of mlx-lm, and all checkpoints of `tests/oracles`, as transformers saves them.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer

from pippin.core.models import ModelKind
from pippin.engines.verify import numbers
from tests.engines.language.architectures import any_architecture
from tests.engines.language.vision.tiny_vision_models import tiny_vision_model
from tests.engines.tiny_models import ARCHITECTURES, ODD_ONES, TinyModels
from tests.engines.verify.folders import edit, edit_weights, found_in, report_on, write_sound, write_tokenizer
from tests.output.families import FAMILIES, Family

ORACLES = Path(__file__).parents[2] / "oracles"
MARK = re.compile(r"<[|｜][^<>\s]{1,40}>|</?(?!thinking)[a-z_]+>|\[/?[A-Z_]+\]")
ROLES = ("<|user|>", "<|assistant|>", "<|system|>", "<|tool|>", "<|tool_call_start|>", "<|tool_call_end|>")
"""Marks that templates put together."""
THOUGHTS = ("<think>", "</think>")
LACKING = {
    "tool-format": "granite_20b_fc internlm2_tool phi4_mini apertus Apertus-8B-Instruct IFM-K2-Horizon tencent-Hy3 "
    "CohereForAI-c4ai-command-r-plus-tool_use GigaChat3-10B-A1.8B GigaChat3.1-10B-A1.8B LFM2.5-Instruct",
    "tool-calls-lost": "Kimi-K2-Instruct Kimi-K2-Thinking LFM2-8B-A1B LFM2.5-Instruct glm4 "
    "ibm-granite-granite-3.3-2B-Instruct",
    "system-dropped": "glm4",
    "turn-spacing": "functiongemma",  # a line end behind the last name alone
    "tools-lost": "llama-cpp-deepseek-r1",  # it writes a generator as JSON
    # They want variables of their own, and languages.
    "conversation-refused": "fireworks-ai-llama-3-firefunction-v2 google-translategemma-4b-it",
}
"""What published templates do lack."""
QUICK = (
    "Qwen-Qwen3-0.6B",
    "meta-llama-Llama-3.1-8B-Instruct",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "google-gemma-2-2b-it",
    "Apriel-1.6-15b-Thinker-fixed",
    "NVIDIA-Nemotron-Nano-v2",
    "openai-gpt-oss-120b",
    "LFM2-8B-A1B",
)
WITHOUT_HEAD = {"hunyuan": {"head-missing"}, "lille-130m": {"head-missing"}, "bitnet": {"blank-tensor"}}
"""What the tiny folders of tests lack: the first two say that they have a head, the last has words of zeros."""
REFUSED = ("gemma3_text-capped", "gpt_neox-serial", "llama-gelu", "nanochat-capped")
"""Checkpoints with a field that their architecture's class does not read, which are not loaded either."""
SEEING = ("gemma3", "gemma4", "gemma4_unified", "idefics3", "llava", "mistral3", "pixtral", "smolvlm")


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, *ODD_ONES])
def test_a_tiny_folder_of_each_family_has_no_fault(architecture: str, tiny_models: TinyModels) -> None:
    report = report_on(tiny_models(architecture), architecture=architecture)
    assert found_in(report) == []
    assert not any(section.left_out for section in report.sections)


@pytest.mark.parametrize("family", SEEING)
def test_a_tiny_folder_that_sees_pictures_has_no_fault(family: str, tmp_path: Path) -> None:
    report = report_on(tiny_vision_model(family, tmp_path / family), architecture=family)
    assert found_in(report) == []


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sound(tmp_path_factory.mktemp("sound") / "model")


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(each, id=each.file, marks=() if each.file in QUICK else pytest.mark.long)
        for each in FAMILIES
    ],
)
def test_a_published_template_has_no_fault_but_what_it_lacks(
    family: Family, sound: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(sound, folder)
    marks = sorted({*MARK.findall(family.source), *ROLES} - {*THOUGHTS})
    marks += [mark for mark in THOUGHTS if mark in family.source]
    write_tokenizer(
        folder,
        lambda made: made.add_tokens([AddedToken(mark, special=mark[1] in "|｜") for mark in marks]),
        (),
    )
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ends = [made.token_to_id(mark) for mark in marks if "think" not in mark]
    edit(folder, "generation_config.json", eos_token_id=ends)
    edit(folder, "tokenizer_config.json", chat_template=family.source)
    found = found_in(report_on(folder, "template"))
    assert {each.code for each in found} == {
        code for code, files in LACKING.items() if family.file in files.split()
    }, found


@pytest.mark.long
@pytest.mark.parametrize("architecture", any_architecture.architectures())
def test_a_tiny_folder_of_each_architecture_of_the_library_has_no_fault(
    architecture: str, tmp_path: Path
) -> None:
    try:
        folder = any_architecture.write(architecture, tmp_path / architecture)
    except (SystemExit, ValueError) as error:
        pytest.skip(f"cannot be made: {error}")
    found = found_in(report_on(folder, architecture=architecture))
    assert {each.code for each in found} == WITHOUT_HEAD.get(architecture, set()), found


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["language", "embeddings", "reranking"])
def test_what_transformers_saves_has_no_fault(oracle_python: Path, kind: ModelKind, tmp_path: Path) -> None:
    script = "text_oracle.py" if kind == "language" else "encoders_oracle.py"
    subprocess.run([oracle_python, ORACLES / script, tmp_path], check=True)
    where = {
        "language": tmp_path,
        "embeddings": tmp_path / "embeddings",
        "reranking": tmp_path / "rerankers",
    }[kind]
    for folder in where.iterdir():
        if folder.name not in REFUSED and (folder / "config.json").exists():
            architecture = json.loads((folder / "config.json").read_text())["model_type"]
            found = found_in(report_on(folder, "files", kind=kind, architecture=architecture))
            assert found == [], folder.name


@pytest.mark.parametrize("lost", ["encoder", "projector"])
def test_a_model_that_lost_what_sees_pictures_is_found(
    lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What it computes is tested elsewhere.
    monkeypatch.setattr(numbers, "check", lambda served, *_, **named: ([], {"loaded": served.chats}))
    folder = tiny_vision_model("gemma3", tmp_path / "gemma3")
    edit_weights(
        folder,
        lambda arrays: [
            arrays.pop(name)
            for name in [*arrays]
            if ("projector" if lost == "projector" else "vision_tower") in name
        ],
    )
    found = found_in(report_on(folder, "numbers", architecture="gemma3"))
    assert "text-only" in {each.code for each in found}, found


@pytest.mark.model
def test_a_real_chat_model_has_no_fault(demo_model: Path) -> None:
    report = report_on(demo_model, architecture="llama")
    assert found_in(report) == []
    kept = report.sections[2].figures
    assert (kept["conversations kept"], kept["changed"]) == (
        26,
        1,
    )  # results in another order than their calls


@pytest.mark.model
def test_real_models_of_other_kinds_have_no_fault(minilm: Path, whisper_base: Path) -> None:
    of_encoder = report_on(minilm, "files", "tokens", "numbers", "template", kind="embeddings")
    assert found_in(of_encoder) == []
    assert [section.left_out == "" for section in of_encoder.sections] == [True, True, True, False]
    of_whisper = report_on(whisper_base, kind="transcription")
    assert found_in(of_whisper) == []
    assert of_whisper.sections[1].left_out == "the model is of the kind transcription"
