"""Model families' own chat templates, which `scripts/fetch_templates.py` takes out of two source packages, and how an
assistant's turn is cut out of what they render."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import pytest
import tokenizers

from pippin.core.conversation import Message, Part, Text, Tool
from pippin.engines.language.prompt.messages import Converter
from pippin.engines.language.template.template import ChatTemplate
from pippin.engines.language.template.traits import probe
from pippin.engines.language.text.tokenizer import Literals
from pippin.output.formats import reasoning_format, tool_format
from pippin.output.tool_format import History

FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "templates"
LLAMA_CPP, VLLM = "xllamacpp-2026.10.11549", "vllm-0.33.0"


@dataclass(frozen=True)
class Family:
    """A template, and the formats that it is detected to write.

    Templates have faults. `writes` says how much of calls comes out so that it can be read at all: several in a
    turn, one, one of `plain` arguments (its strings are not escaped), or one of `simple` arguments (a string alone).
    """

    file: str
    tool: str | None
    reasoning: str | None = None
    writes: Literal["several", "one", "plain", "simple", "nothing"] = "several"
    package: str = LLAMA_CPP
    null: bool = True  # it writes arguments that are null
    text: bool = True  # it writes text before calls
    thoughts: bool = True  # it writes reasoning before calls
    admitted: bool = True  # a grammar admits what it writes (not if it breaks JSON into lines)

    @cached_property
    def source(self) -> str:
        path = FOLDER / self.package / f"{self.file}.jinja"
        if not path.is_file():
            pytest.fail(
                f"There is no {path}. Fetch it with `python scripts/fetch_templates.py`.", pytrace=False
            )
        return path.read_text(encoding="utf-8")


def of_vllm(file: str, tool: str | None, reasoning: str | None = None, **said: Any) -> Family:
    return Family(file, tool, reasoning, package=VLLM, **said)


FAMILIES = (
    # vLLM's: some are the families' own, some are written for them.
    of_vllm("deepseekr1", "deepseek", "think", thoughts=False),
    of_vllm("deepseekv3", "deepseek", text=False, admitted=False),  # blanks between its markers
    of_vllm("deepseekv31", "deepseek_v31", "think", thoughts=False, admitted=False),
    of_vllm("functiongemma", "functiongemma", text=False, admitted=False),  # every value is a string
    of_vllm("gemma3_pythonic", "llama4_pythonic", writes="simple", text=False),
    of_vllm("gemma4", "gemma4", "gemma4", text=False, admitted=False),  # arguments in alphabetical order
    of_vllm("granite", "granite", text=False, admitted=False),
    of_vllm("granite_20b_fc", None),
    of_vllm("hermes", "json_tools", text=False),
    of_vllm("hunyuan_a13b", "apriel", "think", writes="nothing"),
    of_vllm("internlm2_tool", None),
    of_vllm("llama3.1_json", "llama", writes="one", text=False),
    of_vllm("llama3.2_json", "llama", writes="one", text=False),
    of_vllm("llama3.2_pythonic", "llama4_pythonic", writes="nothing"),  # strings without quotes
    of_vllm("llama4_json", "llama", text=False, admitted=False),  # nothing between calls
    of_vllm("llama4_pythonic", "llama4_pythonic", writes="simple", text=False),
    of_vllm("mistral", "mistral", text=False, admitted=False),  # ids inside calls
    of_vllm("mistral3", "mistral", text=False, admitted=False),
    of_vllm("mistral_parallel", "mistral", text=False, admitted=False),
    of_vllm("muse_glimmer", "muse_spark", "muse_spark", text=False, admitted=False),
    of_vllm("phi4_mini", None),
    of_vllm("qwen3coder", "qwen3_coder"),
    of_vllm("toolace", "llama4_pythonic", writes="nothing"),  # strings without quotes
    of_vllm("xlam_llama", "xlam", text=False),
    of_vllm("xlam_qwen", "xlam", text=False),
    of_vllm("apertus", None),
    of_vllm("glm4", "glm47", writes="nothing"),
    # llama.cpp's collection of the families' own
    Family("Apertus-8B-Instruct", None),
    Family("Apriel-1.6-15b-Thinker-fixed", "apriel", thoughts=False),
    Family("Bielik-11B-v3.0-Instruct", "json_tools", "think"),
    Family("ByteDance-Seed-OSS", "seed_oss", "seed_oss", admitted=False),  # Python's notation for lists
    Family("Cohere2MoE", "cohere2_moe", "cohere", text=False, admitted=False),  # ids inside calls
    Family("CohereForAI-c4ai-command-r-plus-tool_use", None),
    Family(
        "CohereForAI-c4ai-command-r7b-12-2024-tool_use", "cohere2_moe", "cohere", text=False, admitted=False
    ),
    Family("GLM-4.6", "glm47", "glm4"),
    Family("GLM-4.7-Flash", "glm47", "glm4"),
    Family("GigaChat3-10B-A1.8B", None),
    Family("GigaChat3.1-10B-A1.8B", None),
    Family("HuggingFaceTB-SmolLM3-3B", None, "think"),
    Family("IFM-K2-Horizon", None),
    Family("Kimi-K2-Instruct", "kimi_k2", writes="nothing"),  # it changes lists, which sandboxes refuse
    Family("Kimi-K2-Thinking", "kimi_k2", "think", writes="nothing"),
    Family("Kimi-K3", "kimi_k3", "kimi_k3", admitted=False),
    Family("LFM2-8B-A1B", "pythonic", writes="nothing"),
    Family("LFM2.5-8B-A1B", "pythonic", "think", writes="plain", admitted=False),
    Family("LFM2.5-Instruct", None, "think"),
    Family("MiMo-VL", "json_tools"),
    Family("MiniMax-M1", "apriel", text=False, admitted=False),
    Family("MiniMax-M2", "minimax_m2", "think"),
    Family("MiniMax-M3", "minimax_m3", "minimax_m3", null=False, admitted=False),  # elements in elements
    Family("Mistral-Small-3.2-24B-Instruct-2506", "mistral", text=False, admitted=False),
    Family("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "qwen3_coder", "think"),
    Family("NVIDIA-Nemotron-Nano-v2", "nemotron_v2", "think", thoughts=False, text=False),
    Family("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "json_tools", text=False),
    Family("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "json_tools", text=False),
    Family("Qwen-QwQ-32B", "json_tools", "think", thoughts=False),
    Family("Qwen-Qwen2.5-7B-Instruct", "json_tools"),
    Family("Qwen-Qwen3-0.6B", "json_tools", "think"),
    Family("Qwen3-Coder", "qwen3_coder"),
    Family("Qwen3.5-4B", "qwen3_coder", "think"),
    Family("Reka-Edge", "json_tools", "think", thoughts=False, admitted=False),
    Family("Spark2.5", "glm47", "think"),
    Family("StepFun3.5-Flash", "qwen3_coder", "think"),
    Family(
        "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
        "deepseek",
        "think",
        writes="one",
        text=False,
        thoughts=False,
        admitted=False,  # it forgets the end of the section
    ),
    Family("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek", "think", text=False, thoughts=False),
    Family("deepseek-ai-DeepSeek-V3.1", "deepseek_v31", "think", thoughts=False),
    Family("deepseek-ai-DeepSeek-V3.2", "deepseek_v32", "think"),
    Family("deepseek-ai-DeepSeek-V4", "deepseek_v4", "think"),
    Family("deepseek-ai-DeepSeek-V4-Flash-0731", "deepseek_v4", "think"),
    Family("fireworks-ai-llama-3-firefunction-v2", None),
    Family("google-gemma-2-2b-it", None),
    Family("google-gemma-4-31B-it", "gemma4", "gemma4", text=False, admitted=False),
    Family("google-gemma-4-31B-it-interleaved", "gemma4", "gemma4", text=False, admitted=False),
    Family("google-translategemma-4b-it", None),
    Family("ibm-granite-granite-3.3-2B-Instruct", "granite", "think", writes="nothing"),
    Family("ibm-granite-granite-4.0", "json_tools"),
    Family("ibm-granite-granite-4.1", "json_tools"),
    Family("inclusionai-ling-3.0-flash", "glm47", "think"),
    Family("llama-cpp-deepseek-r1", "deepseek", "think", text=False, thoughts=False),
    Family("llama-cpp-rwkv-world", None, "think"),
    Family("llm-jp-llm-jp-4.1-8b-thinking", "harmony", "harmony", writes="one", text=False),
    Family("meetkai-functionary-medium-v3.1", "functionary_v31"),
    Family("meetkai-functionary-medium-v3.2", "functionary_v32"),
    Family("meta-llama-Llama-3.1-8B-Instruct", "llama", writes="one", text=False),
    Family("meta-llama-Llama-3.2-3B-Instruct", "llama", writes="one", text=False),
    Family("meta-llama-Llama-3.3-70B-Instruct", "llama", writes="one", text=False),
    Family("microsoft-Phi-3.5-mini-instruct", None),
    Family("mistralai-Ministral-3-14B-Reasoning-2512", "mistral", "mistral"),
    Family("mistralai-Mistral-Nemo-Instruct-2407", "mistral", text=False, admitted=False),
    Family("moonshotai-Kimi-K2", "kimi_k2"),
    Family("muse-glimmer", "muse_spark", "muse_spark", text=False, admitted=False),
    Family("openai-gpt-oss-120b", "harmony", "harmony", writes="one", text=False),
    Family("openbmb-MiniCPM5-1B", "minicpm5", "think", admitted=False),
    Family("poolside-Laguna-S-2.1", "glm47", "think"),
    Family("poolside-Laguna-XS-2.1", "glm47", "think"),
    Family("poolside-Laguna-XS.2", "glm47", "think"),
    Family("tencent-Hy3", None),
    Family("unsloth-Apriel-1.5", "apriel"),
    Family("unsloth-mistral-Devstral-Small-2507", "mistral"),
    Family("upstage-Solar-Open-100B", "solar_open", "solar_open", text=False),
)


def named(file: str, tool: str | None, reasoning: str | None) -> Family:
    """The same template with formats that no template tells, which are asked for by name."""
    (family,) = [family for family in FAMILIES if family.file == file]
    return replace(family, tool=tool, reasoning=reasoning)


BY_NAME = (
    named("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "qwen3_coder", "implicit_think"),
    named("StepFun3.5-Flash", "step3p5", "implicit_think"),
    named("Qwen-Qwen3-0.6B", "qwen", "mixed_think_tool_handoff"),
    named("muse-glimmer", "atem", "muse_spark"),
    named("Qwen-Qwen2.5-7B-Instruct", "auto", None),
    named("moonshotai-Kimi-K2", "auto", None),
    named("MiniMax-M2", "auto", "implicit_think"),
    named("deepseek-ai-DeepSeek-V4", "auto", "think"),
    named("google-gemma-4-31B-it", "auto", "gemma4"),
    named("mistralai-Mistral-Nemo-Instruct-2407", "auto", None),
    named("meta-llama-Llama-3.1-8B-Instruct", "auto", None),
    named(
        "google-gemma-2-2b-it", "gemma3", None
    ),  # the turns of Gemma 3 are the same, and know no calls either
)
LLAMA_4_TURN = "<|header_end|>\n\n"
TURN_ENDS = ("<|eom_id|>", "<|tool_response>", "<｜end▁of▁sentence｜><｜Assistant｜>", "<SPECIAL_12>")


def common(one: str, other: str) -> int:
    """How many characters both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


@cache
def renderer_of(family: Family) -> "Renderer":
    """One for all tests: to compile a template and find its traits takes longer than to render it."""
    return Renderer(family)


class Renderer:
    """Renders conversations as a server would that has detected the family's formats."""

    def __init__(self, family: Family) -> None:
        self._tool = tool_format(family.tool) if family.tool else None
        self._reasoning = reasoning_format(family.reasoning) if family.reasoning else None
        history = self._tool.history if self._tool else History()
        self.template = ChatTemplate(family.source, {"bos_token": "<s>", "eos_token": "</s>"})
        self.traits = probe(self.template, history)
        backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
        self.converter = Converter(self.traits, history, Literals(backend, ""))

    def render(self, messages: Sequence[Message], tools: tuple[Tool, ...], *, prompt: bool = False) -> str:
        variables: dict[str, Any] = {
            "add_generation_prompt": prompt,
            "enable_thinking": True,
            "thinking": True,
        }
        if self.traits.tools:
            variables["tools"] = self.converter.offer(tools)
        elif self.traits.no_tools:
            variables["tools"] = None
        return self.template.render(self.converter.convert(tuple(messages), tools), variables)

    def answer(self, parts: Sequence[Part], tools: tuple[Tool, ...]) -> str:
        """What the model writes of a turn with these parts, without what stands around every turn."""
        asked = Message("user", (Text("Q?"),))
        whole = self.render([asked, Message("assistant", tuple(parts))], tools)
        words = self.render([asked, Message("assistant", (Text("QXC"),))], tools)
        before = common(whole, words)
        after = common(whole[before:][::-1], words[before:][::-1])
        return self._with_markers(whole, before, len(whole) - after)

    def _with_markers(self, whole: str, start: int, end: int) -> str:
        """The cut, moved out of the middle of a marker, and without what begins or ends the turn where calls have it
        of their own."""
        known = [found for found in (self._tool, self._reasoning) if found]
        for marker in {*TURN_ENDS, *(marker for found in known for marker in found.markers)}:
            for found in re.finditer(re.escape(marker), whole):
                if found.start() < start < found.end():
                    start = found.start()
                if found.start() < end < found.end():
                    end = found.end()
        for begin in {begin for found in known if found.channels for begin in found.channels.begins}:
            start -= len(begin) if whole[:start].endswith(begin) else 0
        wire = whole[start:end].rpartition(LLAMA_4_TURN)[2]
        for ending in TURN_ENDS:
            wire = wire.partition(ending)[0]
        return wire
