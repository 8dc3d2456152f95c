"""Tools that judge and measure models, as their users start them: each a program of its own, against a server."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.agents.programs import node_folder, python_environment, run
from tests.api.scripted_server import scripted_server
from tests.running_server import running_server

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]  # the first run fetches the tools

LM_EVAL: Final = ("lm-eval[api]==0.4.13",)
PROMPTFOO: Final = ("promptfoo@0.123.1", "node@22.23.3")  # which Node 20 does not run
GUIDELLM: Final = ("guidellm==0.8.1", "torch==2.13.0")  # a newer torch brings gigabytes for CUDA
RULES: Final[tuple[dict[str, Any], ...]] = (
    {"when": {"user": "capital of France"}, "say": "Paris"},
    {"when": {"user": "."}, "say": "I do not know."},
)
ANSWERED: Final = """
task: answered
dataset_path: json
dataset_kwargs: {data_files: {test: questions.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[label]}}"
generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 32}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
CHOSEN: Final = """
task: chosen
dataset_path: json
dataset_kwargs: {data_files: {test: questions.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_target: "{{label}}"
doc_to_choice: "{{choices}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
QUESTIONS: Final = (
    {"question": "The capital of France is", "choices": ["Paris", "cheese"], "label": 0},
    {"question": "Two and two make", "choices": ["seven hundred", "four"], "label": 1},
)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with scripted_server(tmp_path, *RULES) as url:
        yield url


def evaluated(home: Path, task: str, api: str, **settings: object) -> float:
    """What lm-eval finds in a task of ours, which needs no data of a hub: a share of right answers."""
    work = home / "work"
    work.mkdir()
    (work / "answered.yaml").write_text(ANSWERED)
    (work / "chosen.yaml").write_text(CHOSEN)
    (work / "questions.jsonl").write_text("\n".join(map(json.dumps, QUESTIONS)))
    told = ",".join(f"{name}={value}" for name, value in settings.items())
    command: list[str | Path] = [python_environment("lm_eval", *LM_EVAL) / "lm_eval", "--model", api]
    command += ["--model_args", told, "--tasks", task, "--include_path", ".", "--output_path", "found"]
    if api == "local-chat-completions":
        command.append("--apply_chat_template")
    run(command, home, HF_HUB_OFFLINE="1", OPENAI_API_KEY="none")
    [found] = work.glob("found/**/results_*.json")
    results = json.loads(found.read_text())["results"][task]
    return float(results["exact_match,none" if task == "answered" else "acc,none"])


def test_lm_eval_scores_written_answers(address: str, tmp_path: Path) -> None:
    url = f"{address}/v1/chat/completions"
    found = evaluated(
        tmp_path,
        "answered",
        "local-chat-completions",
        model="scripted",
        base_url=url,
        tokenizer_backend="none",
    )
    assert found == 0.5  # the second question has no answer in the script


@pytest.mark.model
def test_lm_eval_scores_choices_of_a_real_model_by_their_probability(
    demo_model: Path, tmp_path: Path
) -> None:
    with running_server(tmp_path, str(demo_model)) as address:
        url = f"{address}/v1/completions"
        found = evaluated(
            tmp_path,
            "chosen",
            "local-completions",
            model="smollm2-135m-instruct",
            base_url=url,
            tokenizer_backend="remote",
        )
    assert found == 1.0


def test_promptfoo_asserts(address: str, tmp_path: Path) -> None:
    config = {"apiBaseUrl": f"{address}/v1", "apiKey": "none", "temperature": 0, "max_tokens": 20}
    asked = {
        "prompts": ["{{question}}"],
        "providers": [{"id": "openai:chat:scripted", "config": config}],
        "tests": [
            {
                "vars": {"question": "What is the capital of France?"},
                "assert": [{"type": "contains", "value": "Paris"}],
            }
        ],
    }
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    modules = node_folder("promptfoo", *PROMPTFOO) / "node_modules"
    command: list[str | Path] = [
        modules / "node" / "bin" / "node",
        modules / "promptfoo" / "dist" / "src" / "entrypoint.js",
    ]
    run(
        [*command, "eval", "-c", tmp_path / "asked.json", "--no-cache", "--no-write", "-o", "found.json"],
        tmp_path,
        PROMPTFOO_DISABLE_TELEMETRY="1",
        PROMPTFOO_DISABLE_UPDATE="1",
        PROMPTFOO_DISABLE_REMOTE_GENERATION="1",
    )
    found = json.loads((tmp_path / "work" / "found.json").read_text())
    assert found["results"]["stats"]["successes"] == 1


def test_guidellm_measures(address: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    asked = [{"prompt": f"Say {word}."} for word in ("one", "two", "three")]
    (work / "prompts.jsonl").write_text("\n".join(map(json.dumps, asked)))
    command: list[str | Path] = [python_environment("guidellm", *GUIDELLM) / "guidellm", "run"]
    command += ["--backend", f"kind=openai_http,target={address},model=scripted"]
    command += ["--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=3"]
    command += ["--data", "kind=json_file,path=prompts.jsonl", "--output", "kind=json,path=found.json"]
    # Each of its processes, up to ten, imports PyTorch before the first request is sent.
    run(
        [*command, "--disable-console"],
        tmp_path,
        HF_HUB_OFFLINE="1",
        GUIDELLM__MAX_WORKER_PROCESSES="1",
    )
    [benchmark] = json.loads((work / "found.json").read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"], totals["total"]) == (3, 0, 3)
    assert benchmark["metrics"]["output_token_count"]["successful"]["mean"] > 0
