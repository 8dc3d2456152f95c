"""Time to the first token of a long prompt, with SpecPrefill and without, and what the answer makes of it.

    python -m benchmarks.specprefill --model FOLDER --layers 6 --tokens 2048 4096

The draft model is made of the first `--layers` layers of the model itself, which any model has: a real one of the same
family scores better. The prompt is filler with one sentence that the question at its end asks for, at three depths. In
turns, each prompt new to the server: the whole prompt, and `--keep` of it. Seconds to the first token, of the clock and
of the CPU, the ratios, and how many of the answers name what was asked for.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from pippin.config.options.model import ModelOptions
from pippin.core.conversation import Message, Text
from pippin.core.events import Finished, PartDelta, Progress
from pippin.core.models import ModelInfo, WorkerSpec
from pippin.core.requests import AskedSpecPrefill, GenerationRequest, Sampling
from pippin.core.tasks import Generate
from pippin.engines.cpu.blas import accelerate_blas

FILLER = (
    "The road went on over the hills, and the sheep looked up from the grass as the cart passed.",
    "In the evening there was soup, and somebody told of the harbour and of ships that came late.",
    "Rain fell for an hour; then the wind turned, and the roofs of the village shone in the sun.",
    "She counted the steps to the mill, as she had done each morning since the spring began.",
)
DEPTHS = (0.2, 0.5, 0.8)
WORDS = ("walnut", "copper", "violet", "falcon", "marble", "ginger")


def first_layers(folder: Path, count: int, target: Path) -> Path:
    """A model of the first layers of another, with its head and tokenizer."""
    import mlx.core as mx

    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.safetensors*"))
    config = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"num_hidden_layers": count}))
    weights: dict[str, Any] = {}
    for file in sorted(folder.glob("model*.safetensors")):
        weights |= mx.load(str(file))
    kept = {
        name: array
        for name, array in weights.items()
        if ".layers." not in name or int(name.split(".layers.")[1].split(".")[0]) < count
    }
    mx.save_safetensors(str(target / "model.safetensors"), kept, {"format": "mlx"})
    return target


def prompt(preparer: Any, tokens: int, depth: float, word: str, turn: int) -> str:
    """About so many tokens, none of them like those of another turn from the first on."""
    each = len(preparer.tokenizer.encode(" ".join(FILLER))) // len(FILLER)
    lines = [f"{turn}.{number} {FILLER[number % len(FILLER)]}" for number in range(tokens // (each + 4))]
    lines.insert(int(depth * len(lines)), f"The secret password of the castle is {word}.")
    return " ".join(lines) + " What is the secret password of the castle? The secret password is"


def ask(engine: Any, preparer: Any, text: str, keep: float | None) -> tuple[float, float, str]:
    """Seconds to the first token, of the clock and of the CPU, and the answer."""
    asked = AskedSpecPrefill(enabled=keep is not None, keep=keep)
    request = GenerationRequest(
        model="bench",
        messages=(Message("user", (Text(text),)),),
        sampling=Sampling(temperature=0.0),
        max_tokens=16,
        specprefill=asked,
    )
    job = preparer.prepare(f"{time.monotonic_ns()}", Generate(request))
    assert not isinstance(job, tuple)
    started, began, first, worked, answer = time.perf_counter(), time.process_time(), 0.0, 0.0, ""
    engine.submit(job)
    while engine.busy:
        for _, event in engine.step():
            if isinstance(event, PartDelta):
                answer += event.text
            if not first and not isinstance(event, Progress):
                first, worked = time.perf_counter() - started, time.process_time() - began
            assert not isinstance(event, Finished) or event.reason in ("stop", "length"), event
    return first, worked, answer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--draft", type=Path, help="a draft model; else the model's first layers")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 4096])
    parser.add_argument("--keep", type=float, nargs="+", default=[0.3])
    parser.add_argument("--depths", type=float, nargs="+", default=list(DEPTHS))
    given = parser.parse_args()
    accelerate_blas(ModelOptions(), threads=None)
    from pippin.engines.language import open_engine, open_preparer

    with tempfile.TemporaryDirectory() as scratch:
        draft = given.draft or first_layers(given.model, given.layers, Path(scratch) / "draft")
        options = ModelOptions(specprefill=True, specprefill_draft_model=str(draft), prefix_cache=False)
        info = ModelInfo(id="bench", kind="language", path=str(given.model), context_window=16384)
        spec = WorkerSpec(info=info, options=msgspec.to_builtins(options))
        preparer: Any = open_preparer(spec)
        engine: Any = open_engine(spec, preparer, lambda *_: None)
        ask(engine, preparer, prompt(preparer, 300, 0.5, "walnut", 0), 0.3)  # what is slow once
        turn = 0
        for tokens in given.tokens:
            clock: dict[float | None, list[float]] = {}
            cpu: dict[float | None, list[float]] = {}
            right: dict[float | None, int] = {}
            for depth in given.depths:
                for keep in (None, *given.keep):
                    turn += 1
                    word = WORDS[turn % len(WORDS)]
                    text = prompt(preparer, tokens, depth, word, turn)
                    seconds, worked, answer = ask(engine, preparer, text, keep)
                    clock.setdefault(keep, []).append(seconds)
                    cpu.setdefault(keep, []).append(worked)
                    right[keep] = right.get(keep, 0) + (word in answer.lower())
            for keep in clock:
                took, worked = statistics.median(clock[keep]), statistics.median(cpu[keep])
                name = "whole prompt" if keep is None else f"keep {keep:g}"
                print(
                    f"{tokens:6} tokens, {name:12}: {took:6.2f} s, {took / statistics.median(clock[None]):.2f} of the "
                    f"whole; CPU {worked:6.2f} s, {worked / statistics.median(cpu[None]):.2f}; "
                    f"right {right[keep]} of {len(given.depths)}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
