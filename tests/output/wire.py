"""What models of each family write on the wire, and what a reader must make of it.

`source` names the public text that the sample follows. Names and values were shortened.
"""

from dataclasses import dataclass

from pippin.core.conversation import Tool

WEATHER = Tool(
    name="get_weather",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "metric": {"type": "boolean"},
            "note": {"type": ["string", "null"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "place": {"type": "object", "properties": {"zip": {"type": "string"}}},
        },
        "required": ["city"],
    },
)
CLOCK = Tool(name="get_time", parameters={"type": "object", "properties": {}})
TOOLS = (WEATHER, CLOCK)

Part = tuple[str, ...]  # kind, text or (name, arguments)


@dataclass(frozen=True)
class Sample:
    format: str
    wire: str
    parts: tuple[Part, ...]
    source: str
    reasoning: str | None = None


def call(arguments: str, name: str = "get_weather") -> Part:
    return ("tool_call", name, arguments)


def text(content: str) -> Part:
    return ("text", content)


def thought(content: str) -> Part:
    return ("reasoning", content)


PARIS = '{"city": "Paris"}'
VLLM = "vllm-project/vllm, tests/tool_parsers"
MLX_LM = "ml-explore/mlx-lm, mlx_lm/tool_parsers"
MLX_VLM = "Blaizzy/mlx-vlm, mlx_vlm/tools/parsers"
VLLM_MLX = "waybarrios/vllm-mlx, vllm_mlx/tool_parsers"
CUBIST = "cubist38/mlx-openai-server, app/parsers"
LLAMA_CPP = "ggml-org/llama.cpp, models/templates"

SAMPLES = (
    Sample(
        "hermes",
        'Sure.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>',
        (text("Sure."), call(PARIS), call("{}", "get_time")),
        f"{MLX_LM}/json_tools.py",
    ),
    Sample(
        "qwen3",
        '<think>\nHm.\n</think>\n\n[Calling tool: get_weather({"city": "Paris"})] Done.',
        (thought("Hm."), call(PARIS), text("Done.")),
        f"{VLLM_MLX}/qwen_tool_parser.py",
        "qwen3",
    ),
    Sample(
        "qwen3_coder",
        "Let me see.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis <b>\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n<parameter=metric>\nTrue\n</parameter>\n"
        "<parameter=tags>\n['a', \"b\"]\n</parameter>\n<parameter=note>\nnull\n</parameter>\n"
        "</function>\n</tool_call>",
        (
            text("Let me see."),
            call('{"city": "Paris <b>", "days": 3, "metric": true, "tags": ["a", "b"], "note": null}'),
        ),
        "Qwen/Qwen3-Coder-30B-A3B-Instruct, chat_template",
    ),
    Sample(
        "nemotron",
        '<tool_call><function=get_weather>{"city": "Paris"}</function></tool_call>'
        "<tool_call><function=get_weather><parameter=city>Rome</parameter></function></tool_call>",
        (call(PARIS), call('{"city": "Rome"}')),
        f"{VLLM_MLX}/nemotron_tool_parser.py",
    ),
    Sample(
        "step3p5",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n",
        (call(PARIS),),
        f"{VLLM_MLX}/step3p5_tool_parser.py (generation stops at </tool_call>)",
    ),
    Sample(
        "glm47",
        "<think>Go.</think><tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value>"
        "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call><tool_call>get_time</tool_call>",
        (thought("Go."), call('{"city": "Paris", "days": 3}'), call("{}", "get_time")),
        f"{MLX_LM}/glm47.py",
        "glm4_moe",
    ),
    Sample(
        "poolside_v1",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>",
        (call(PARIS),),
        f"{VLLM_MLX}/poolside_v1_tool_parser.py",
    ),
    Sample(
        "longcat",
        "<longcat_tool_call>get_weather\n<longcat_arg_key>city</longcat_arg_key>\n"
        "<longcat_arg_value>Paris</longcat_arg_value>\n</longcat_tool_call>",
        (call(PARIS),),
        f"{MLX_LM}/longcat.py",
    ),
    Sample(
        "longcat",
        'Ok.\n<longcat_tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</longcat_tool_call>'
        '<longcat_tool_call>\n{"name": "get_time", "arguments": {}}\n</longcat_tool_call>',
        (text("Ok."), call(PARIS), call("{}", "get_time")),
        f"{VLLM}/test_longcat_tool_parser.py; the card of meituan-longcat/LongCat-Flash-Chat",
    ),
    Sample(
        "minimax_m2",
        'Ok.\n<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n'
        '<parameter name="days">3</parameter>\n</invoke>\n<invoke name="get_time">\n</invoke>\n'
        "</minimax:tool_call>",
        (text("Ok."), call('{"city": "Paris", "days": 3}'), call("{}", "get_time")),
        f"{MLX_LM}/minimax_m2.py",
    ),
    Sample(
        "minimax_m3",
        ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="get_weather">]<]minimax[>[<city>Paris'
        "]<]minimax[>[</city>]<]minimax[>[<tags>]<]minimax[>[<item>a]<]minimax[>[</item>]<]minimax[>["
        "<item>b]<]minimax[>[</item>]<]minimax[>[</tags>]<]minimax[>[<place>]<]minimax[>[<zip>75"
        "]<]minimax[>[</zip>]<]minimax[>[</place>]<]minimax[>[</invoke>]<]minimax[>[</tool_call>",
        (call('{"city": "Paris", "tags": ["a", "b"], "place": {"zip": "75"}}'),),
        f"{MLX_VLM}/minimax_m3.py",
    ),
    Sample(
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city": "Paris"}<|tool_call_end|><|tool_call_begin|>functions.get_time:1'
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        (call(PARIS), call("{}", "get_time")),
        f"{CUBIST}/kimi_k2.py, {MLX_LM}/kimi_k2.py",
    ),
    Sample(
        "kimi_k3",
        "Hm.<|close|>think<|sep|><|open|>response<|sep|>Ok.<|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>'
        'Paris<|close|>argument<|sep|><|open|>argument key="days" type="number"<|sep|>3<|close|>argument'
        '<|sep|><|close|>call<|sep|><|open|>call tool="get_time" index="2"<|sep|><|open|>json '
        'type="object"<|sep|>{}<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
        "<|close|>message<|sep|>",
        (thought("Hm."), text("Ok."), call('{"city": "Paris", "days": 3}'), call("{}", "get_time")),
        f"{LLAMA_CPP}/Kimi-K3.jinja",
        "kimi_k3",
    ),
    Sample(
        "mistral",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}, '
        '{"name": "get_time", "arguments": {}}]',
        (call(PARIS), call("{}", "get_time")),
        f"{VLLM_MLX}/auto_tool_parser.py, Mistral Small's chat template",
    ),
    Sample(
        "mistral",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]get_time{}',
        (call(PARIS), call("{}", "get_time")),
        f"{MLX_LM}/mistral.py",
    ),
    Sample(
        "llama",
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}; '
        '{"name": "get_time", "parameters": {}}',
        (call(PARIS), call("{}", "get_time")),
        f"{VLLM_MLX}/llama_tool_parser.py",
    ),
    Sample(
        "llama",
        '{"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}}',
        (call(PARIS),),
        f"{VLLM_MLX}/llama_tool_parser.py",
    ),
    Sample(
        "llama",
        '<function=get_weather>{"city": "Paris"}</function>',
        (call(PARIS),),
        f"{VLLM_MLX}/llama_tool_parser.py",
    ),
    Sample(
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Paris"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n'
        "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        (call(PARIS), call("{}", "get_time")),
        f"{VLLM_MLX}/deepseek_tool_parser.py",
    ),
    Sample(
        "deepseek_v31",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        '{"city": "Paris"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        (call(PARIS),),
        "DeepSeek V3.1's chat template, as quoted in public repositories",
    ),
    Sample(
        "dsml",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        (call('{"city": "Paris", "days": 3}'),),
        "ml-explore/mlx-lm, mlx_lm/chat_templates/deepseek_v32.py",
    ),
    Sample(
        "deepseek_v32",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_time">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        (call("{}", "get_time"),),
        f"{LLAMA_CPP}/deepseek-ai-DeepSeek-V3.2.jinja",
    ),
    Sample(
        "apriel",
        '\n<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris"}}, '
        '{"name": "get_time", "arguments": {}}]</tool_calls>',
        (call(PARIS), call("{}", "get_time")),
        f"{LLAMA_CPP}/unsloth-Apriel-1.5.jinja",
    ),
    Sample(
        "apriel",
        '<tool_calls>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n'
        '{"name": "get_time", "arguments": {}}\n</tool_calls>',
        (call(PARIS), call("{}", "get_time")),
        f"{LLAMA_CPP}/MiniMax-M1.jinja",
    ),
    Sample(
        "nemotron_v2",
        'Ok.\n<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</TOOLCALL>',
        (text("Ok."), call(PARIS)),
        f"{LLAMA_CPP}/NVIDIA-Nemotron-Nano-v2.jinja",
    ),
    Sample(
        "seed_oss",
        "<seed:think>Hm.</seed:think>Ok.\n<seed:tool_call>\n<function=get_weather>\n"
        "<parameter=city>Paris</parameter>\n<parameter=tags>['a']</parameter>\n</function>\n</seed:tool_call>",
        (thought("Hm."), text("Ok."), call('{"city": "Paris", "tags": ["a"]}')),
        f"{LLAMA_CPP}/ByteDance-Seed-OSS.jinja",
        "seed_oss",
    ),
    Sample(
        "functionary_v31",
        'Ok.<function=get_weather>{"city": "Paris"}</function><function=get_time>{}</function>',
        (text("Ok."), call(PARIS), call("{}", "get_time")),
        f"{LLAMA_CPP}/meetkai-functionary-medium-v3.1.jinja",
    ),
    Sample(
        "functionary_v32",
        'all\nTry this:\n>>> print(1)\n1\n>>>get_weather\n{"city": "Paris"}>>>get_time\n{}',
        (text("Try this:\n>>> print(1)\n1"), call(PARIS), call("{}", "get_time")),
        f"{LLAMA_CPP}/meetkai-functionary-medium-v3.2.jinja",
    ),
    Sample(
        "granite",
        '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]',
        (call(PARIS),),
        f"{VLLM_MLX}/granite_tool_parser.py",
    ),
    Sample(
        "xlam",
        '[{"name": "get_weather", "arguments": {"city": "Paris"}}]',
        (call(PARIS),),
        f"{VLLM_MLX}/xlam_tool_parser.py",
    ),
    Sample(
        "xlam",
        'Calling:\n```json\n[{"name": "get_weather", "arguments": {"city": "Paris"}}]\n```',
        (text("Calling:"), call(PARIS)),
        f"{VLLM_MLX}/xlam_tool_parser.py",
    ),
    Sample(
        "functionary",
        'all\n<|content|>Ok.\n<|from|>assistant\n<|recipient|>get_weather\n<|content|>{"city": "Paris"}'
        "\n<|from|>assistant\n<|recipient|>get_time\n<|content|>{}<|stop|>",
        (text("Ok."), call(PARIS), call("{}", "get_time")),
        "MeetKai/functionary, tests/prompt_test_v2.txt",
    ),
    Sample(
        "gemma4",
        '<|channel>thought\nHm.<channel|>Ok.<|tool_call>call:get_weather{city:<|"|>Paris, {x}<|"|>,days:3,'
        'metric:true,tags:[<|"|>a<|"|>],place:{zip:<|"|>7<|"|>}}<tool_call|>'
        "<|tool_call>call:get_time{}<tool_call|>",
        (
            thought("Hm."),
            text("Ok."),
            call('{"city": "Paris, {x}", "days": 3, "metric": true, "tags": ["a"], "place": {"zip": "7"}}'),
            call("{}", "get_time"),
        ),
        "Gemma 4 31B's chat template",
        "gemma4",
    ),
    Sample(
        "gemma4",
        '```tool_code\nget_weather(city="Paris")\n```',
        (call(PARIS),),
        f"{VLLM_MLX}/gemma4_tool_parser.py (issue 80)",
    ),
    Sample(
        "gemma3",
        "I will look.\n```tool_code\nprint(get_weather(city='Paris', days=3))\nget_time()\n```\nThere.",
        (text("I will look."), call('{"city": "Paris", "days": 3}'), call("{}", "get_time"), text("There.")),
        "rfc1437/MLXServer, MLXServer/Server/ToolCallParser.swift",
    ),
    Sample(
        "gemma3",
        "```tool_code\nget_weather New York\n```",
        (call('{"city": "New York"}'),),
        "rfc1437/MLXServer, MLXServer/Server/ToolCallParser.swift (shell style)",
    ),
    Sample(
        "functiongemma",
        "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:3}<end_function_call>",
        (call('{"city": "Paris", "days": 3}'),),
        f"{MLX_LM}/function_gemma.py",
    ),
    Sample(
        "pythonic",
        "<|tool_call_start|>[get_weather(city=\"Paris\", days=3, metric=True, tags=['a']), get_time()]"
        "<|tool_call_end|>There.",
        (
            call('{"city": "Paris", "days": 3, "metric": true, "tags": ["a"]}'),
            call("{}", "get_time"),
            text("There."),
        ),
        f"{MLX_LM}/pythonic.py",
    ),
    Sample(
        "llama4_pythonic",
        '<|python_start|>[get_weather(city="Paris")]<|python_end|>',
        (call(PARIS),),
        f"{VLLM}/test_llama4_pythonic_tool_parser.py",
    ),
    Sample(
        "llama4_pythonic",
        "[get_weather('Paris', days=None), get_time()]",
        (call('{"city": "Paris", "days": null}'), call("{}", "get_time")),
        f"{VLLM}/test_llama4_pythonic_tool_parser.py (the list alone)",
    ),
    Sample(
        "cohere2_moe",
        "<|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>[\n"
        '    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}}\n'
        "]<|END_ACTION|>",
        (thought("Hm."), call(PARIS)),
        f"{MLX_VLM}/cohere2_moe.py",
        "cohere",
    ),
    Sample(
        "minicpm5",
        'Ok. <function name="get_weather"><param name="city"><![CDATA[<Paris>]]></param>'
        '<param name="days">3</param></function>',
        (text("Ok."), call('{"city": "<Paris>", "days": 3}')),
        f"{MLX_LM}/minicpm5.py",
    ),
    Sample(
        "solar_open",
        "<|think|>Hm.<|end|><|begin|>assistant<|content|>Ok.<|end|><|begin|>assistant<|tool_calls|>"
        '<|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>get_weather<|tool_call:args|>{"city": "Paris"}'
        "<|tool_call:end|><|calls|>",
        (thought("Hm."), text("Ok."), call(PARIS)),
        f"{CUBIST}/solar_open.py",
        "solar_open",
    ),
    Sample(
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>Ok."
        "<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json"
        '<|message|>{"city": "Paris"}<|call|>',
        (thought("Hm."), text("Ok."), call(PARIS)),
        f"{VLLM_MLX}/harmony_tool_parser.py, gpt-oss-20b's chat template",
        "harmony",
    ),
    Sample(
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.get_weather<|channel|>"
        'commentary json<|message|>{"city": "Paris"}<|call|><|start|>assistant<|channel|>final<|message|>'
        "There.<|return|>",
        (thought("Hm."), call(PARIS), text("There.")),
        f"{VLLM_MLX}/harmony_tool_parser.py, gpt-oss-20b's chat template",
        "harmony",
    ),
    Sample(
        "atem",
        '<atem:function_calls>\n<atem:invoke name="get_weather">\n<atem:parameter name="city">Paris'
        "</atem:parameter>\n</atem:invoke>\n</atem:function_calls>",
        (call(PARIS),),
        f"{MLX_VLM}/atem.py",
    ),
    Sample(
        "muse_spark",
        "to=self<|message|>Hm.<|eom|><|start|>assistant to=get_weather<|message|><atem:function_calls>"
        '<atem:invoke name="get_weather"><atem:parameter name="city">Paris</atem:parameter></atem:invoke>'
        "</atem:function_calls><|eom|><|start|>assistant to=user<|message|>There.<|eot|>",
        (thought("Hm."), call(PARIS), text("There.")),
        "ml-explore/mlx-lm, mlx_lm/chat_templates/muse_spark.py",
        "muse_spark",
    ),
    Sample(
        "auto",
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
        '[TOOL_CALLS]get_time{}<|tool_call>call:get_weather{city:<|"|>Rome<|"|>}<tool_call|>',
        (call(PARIS), call("{}", "get_time"), call('{"city": "Rome"}')),
        f"{VLLM_MLX}/auto_tool_parser.py",
    ),
    Sample(
        "auto",
        '{"name": "get_weather", "arguments": {"city": "Paris"}}',
        (call(PARIS),),
        f"{VLLM_MLX}/auto_tool_parser.py",
    ),
)
