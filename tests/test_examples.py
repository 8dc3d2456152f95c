"""The examples run, and print what they are there to show: on a scripted model, and on small real ones."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.language.vision.tiny_vision_models import tiny_vision_model
from tests.running_server import running_server

EXAMPLES = Path(__file__).parents[1] / "examples"
SECONDS = 100
SCRIPT = {
    "context_window": 65536,
    "rules": [
        {"when": {"tool_result": "buy milk"}, "say": "Milk."},
        {
            "when": {"tool_result": "notes.txt"},
            "calls": [{"name": "read_file", "arguments": {"name": "notes.txt"}}],
        },
        {"when": {"user": "Read the notes"}, "calls": [{"name": "list_files", "arguments": {}}]},
        {"when": {"tool_result": "rain in"}, "say": "Take an umbrella."},
        {"when": {"user": "walk on the Moon"}, "say": "1969-07-20"},
        {"when": {"user": "two times two"}, "think": "Twice two.", "say": "Four."},
    ],
}
SHOWN = {
    "agent.py": ["list_files({}) -> ", "read_file(", "Milk."],
    "batches.py": ["completed 3 of 3", "question-2"],
    "chat.py": ["What is the capital of France?", "And of Italy?", " tokens"],
    "embeddings.py": ["The cat sleeps", "first by rank: The cat sleeps on the sofa."],
    "images.py": ["lighthouse.png", "morning.png"],
    "messages.py": ["Say hello.", " tokens"],
    "ollama_chat.py": ["here: ['demo", "Say hello."],
    "reasoning.py": ["thought: Twice two.", "thought: -", "answer:  Four."],
    "responses.py": ["My name is Ada.", "What is my name?"],
    "speech.py": ["speech.wav: "],
    "structured_output.py": [" inhabitants"],
    "structured_output.ipynb": ["yes", "country=", "1969-07-20"],
    "tools.py": ["weather(", "-> rain in", "Take an umbrella."],
    "tour.ipynb": ["What is the capital of France?"],
    "transcription.py": ["text: ", "silence.wav"],
    "vision.py": ["What is on this picture?", "tokens of prompt"],
}
QUICK = ("agent.py", "embeddings.py")
"""Those that run each time; the others take seconds to import their clients, too."""
OF_LANGUAGE = ("batches.py", "chat.py", "messages.py", "ollama_chat.py", "responses.py", "structured_output.py",
               "structured_output.ipynb", "tools.py", "tour.ipynb")  # fmt: skip


def run(name: str, address: str, folder: Path, *words: str, **variables: str) -> str:
    """What an example prints; of a notebook, the cells one after the other and the value that each ends with."""
    environment = {**os.environ, "PIPPIN_URL": address, **variables}
    path = EXAMPLES / name
    if path.suffix == ".ipynb":
        cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        assert all(not cell["outputs"] for cell in cells), "clear the outputs"
        path = folder / f"{path.stem}.py"
        sources = json.dumps(["".join(cell["source"]) for cell in cells])
        path.write_text(f"for cell in {sources}:\n{RUN_CELL}")
    done = subprocess.run(
        [sys.executable, str(path), *words],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


RUN_CELL = """    import ast
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), globals())
    if last is not None:
        print(eval(compile(ast.Expression(last.value), "cell", "eval"), globals()))
"""


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("examples")
    (folder / "demo.script.json").write_text(json.dumps(SCRIPT))
    with running_server(folder, "demo.script.json") as address:
        yield address


def test_every_example_is_listed_and_tested() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    there = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    assert there == SHOWN.keys() | {"lora.py"}
    assert all(f"]({name})" in listed for name in there)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in SHOWN]
)
def test_an_example_shows_what_it_is_there_for(name: str, scripted: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("buy milk")
    words = [str(tmp_path)] if name == "agent.py" else []
    shown = run(name, scripted, tmp_path, *words, PIPPIN_MODEL="demo")
    assert all(each in shown for each in SHOWN[name]), shown


@pytest.mark.long
@pytest.mark.model
@pytest.mark.timeout(900)
def test_the_examples_of_language_models_run_on_a_real_one(demo_model: Path, tmp_path: Path) -> None:
    adapter = _idle_adapter(tmp_path / "style")
    with running_server(
        tmp_path, str(demo_model), "--adapter", f"style={adapter}", "--max-tokens", "120"
    ) as address:
        for name in OF_LANGUAGE:
            assert run(name, address, tmp_path).strip(), name
        assert "Paris" in run("chat.py", address, tmp_path)
        assert "France: " in run("structured_output.py", address, tmp_path)
        without, styled = run("lora.py", address, tmp_path).splitlines()
        assert without.removeprefix("without: ") == styled.removeprefix("style: ")


def _idle_adapter(folder: Path) -> Path:
    """An adapter that changes nothing, as one is before its training begins."""
    import mlx.core as mx

    folder.mkdir()
    name = "model.layers.0.self_attn.q_proj"
    weights = {f"{name}.lora_a": mx.random.normal((576, 4)), f"{name}.lora_b": mx.zeros((4, 576))}
    mx.save_safetensors(str(folder / "adapters.safetensors"), weights)
    parameters = {"rank": 4, "scale": 1.0, "dropout": 0.0, "keys": ["self_attn.q_proj"]}
    settings = {"fine_tune_type": "lora", "num_layers": 30, "lora_parameters": parameters}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.long
@pytest.mark.model
@pytest.mark.timeout(900)
def test_the_other_examples_run_on_small_models(minilm: Path, whisper_base: Path, tmp_path: Path) -> None:
    vision = tiny_vision_model("qwen2_vl", tmp_path / "vision")
    with running_server(tmp_path, str(vision), str(minilm), str(whisper_base)) as address:
        shown = run("embeddings.py", address, tmp_path)
        scores = {line[8:]: float(line[:6]) for line in shown.splitlines()[:3]}
        assert min(scores, key=scores.__getitem__) == "Our revenue grew in March."
        assert "text:" in run("transcription.py", address, tmp_path)
        assert "tokens of prompt" in run("vision.py", address, tmp_path)
