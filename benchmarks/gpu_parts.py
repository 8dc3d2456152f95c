"""The parts of `benchmarks.first_gpu_run`, each run in a process of its own:

    python -m benchmarks.gpu_parts PART --seconds 60 [--small]

They print lines of JSON.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from pippin.config.options.model import ModelOptions
from pippin.core.models import ModelInfo
from pippin.engines.cpu.blas import accelerate_blas

accelerate_blas(ModelOptions(), None)  # before mlx is imported, where there is no GPU

import mlx.core as mx  # noqa: E402
import mlx.nn as nn  # noqa: E402
from mlx.utils import tree_flatten  # noqa: E402
from tests.engines.language import bench  # noqa: E402
from tests.engines.tiny_models import ARCHITECTURES, tiny_model  # noqa: E402

from pippin.engines.device import DevicePlan, configure, decide, find_facts  # noqa: E402
from pippin.engines.language.kv_cache import probe  # noqa: E402
from pippin.engines.language.loading.asked import Asked  # noqa: E402
from pippin.engines.language.loading.engine import build_engine  # noqa: E402
from pippin.engines.language.model.head import Head  # noqa: E402
from pippin.engines.language.model.weights import load_weights  # noqa: E402
from pippin.engines.language.text.tokenizer import Tokenizer  # noqa: E402

Line = dict[str, Any]
Prompt = tuple[int, ...]
LARGE = (32, 4096, 32, 8, 14336, 32000)
SMALL = (4, 256, 4, 2, 512, 400)
"""Layers, hidden size, heads, heads of keys and values, inner size, vocabulary."""
TESTS = (
    "tests/engines/test_device.py",
    "tests/engines/language/sampling",
    "tests/engines/language/step/test_engine.py",
    "tests/engines/language/kv_cache/test_slot_group.py",
)
TYPES = (mx.float32, mx.float16, mx.bfloat16)
WIDTHS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)


@dataclass
class Run:
    plan: DevicePlan
    scratch: Path
    small: bool
    ends: float  # of the part at hand

    @property
    def over(self) -> bool:
        return time.monotonic() > self.ends


def facts(run: Run) -> Iterator[Line]:
    told: Line = {name: version(name) for name in ("pippin", "mlx", "mlx-lm", "mlx-vlm")}
    told |= {"python": platform.python_version(), "system": platform.platform()}
    yield told | {"device": str(mx.default_device()), "info": mx.device_info()}
    yield {"facts": msgspec.to_builtins(find_facts()), "plan": msgspec.to_builtins(run.plan)}


def operations(run: Run) -> Iterator[Line]:
    """Tries what the engine and mlx-lm's models compute with, in every type."""
    bad, tried = {}, 0
    for dtype in TYPES:
        for name, compute in (*_plain_operations(dtype), *_quantised_operations(dtype)):
            if run.over:
                break
            tried += 1
            fault = _fault(compute)
            if fault is not None:
                bad[f"{name} {dtype}"] = fault
    yield {"tried": tried, "bad": bad}


def _fault(compute: Callable[[], mx.array]) -> str | None:
    try:
        found = compute()
        mx.eval(found)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:160]
    whole = mx.issubdtype(found.dtype, mx.integer)
    return None if whole or not bool(mx.any(mx.isnan(found))) else "not a number"


def _plain_operations(dtype: mx.Dtype) -> Iterator[tuple[str, Callable[[], mx.array]]]:
    attend = mx.fast.scaled_dot_product_attention
    x = mx.random.normal((4, 1, 256)).astype(dtype)
    logits = mx.random.normal((4, 50_000)).astype(dtype)
    kv = mx.random.normal((4, 2, 512, 64)).astype(dtype)
    queries = mx.random.normal((4, 8, 1, 64)).astype(dtype)
    many, wide = mx.concatenate([queries] * 40, 2), mx.zeros((4, 2, 512, 256), dtype)
    at = mx.array([3, 5, 7, 9])
    places, mask = (
        mx.broadcast_to(at[:, None, None, None], (4, 2, 1, 64)),
        mx.arange(512) < at[:, None, None, None],
    )
    experts, chosen = mx.random.normal((6, 256, 64)).astype(dtype), mx.array([[0], [1], [5], [2]])
    yield "argmax", lambda: mx.argmax(logits, -1)
    yield "argpartition", lambda: mx.argpartition(logits, 49_744, -1)
    yield "argsort", lambda: mx.argsort(-logits, -1)
    yield "sort", lambda: mx.sort(logits, -1)
    yield "cumsum", lambda: mx.cumsum(logits.astype(mx.float32), -1)
    yield "logsumexp", lambda: mx.logsumexp(logits, -1)
    yield "put_along_axis", lambda: mx.put_along_axis(kv, places, kv[:, :, :1], axis=2)
    yield "take_along_axis", lambda: mx.take_along_axis(logits, at[:, None], -1)
    yield "slice_update", lambda: mx.slice_update(kv, kv[:, :, :1], mx.array([0, 0, 9, 0]), (0, 1, 2, 3))
    yield (
        "rope of each row",
        lambda: mx.fast.rope(kv[:, :, :1], 64, traditional=False, base=1e4, scale=1.0, offset=at),
    )
    yield "attention", lambda: attend(queries, kv, kv, scale=0.1)
    yield "attention, mask", lambda: attend(queries, kv, kv, scale=0.1, mask=mask)
    yield "attention, causal", lambda: attend(many, kv, kv, scale=0.1, mask="causal")
    yield "attention, sinks", lambda: attend(queries, kv, kv, scale=0.1, sinks=mx.zeros((8,), dtype))
    yield "attention, 256", lambda: attend(wide[:, :, :1], wide, wide, scale=0.1, mask=mask)
    yield "gather_mm", lambda: mx.gather_mm(x, experts, rhs_indices=chosen)
    yield "conv1d", lambda: mx.conv1d(mx.zeros((4, 9, 32), dtype), mx.zeros((32, 4, 1), dtype), groups=32)
    yield "rms_norm", lambda: mx.fast.rms_norm(x, mx.ones((256,), dtype), 1e-5)
    yield "layer_norm", lambda: mx.fast.layer_norm(x, None, None, 1e-5)


def _quantised_operations(dtype: mx.Dtype) -> Iterator[tuple[str, Callable[[], mx.array]]]:
    chosen = mx.array([[0], [1], [5], [2]])
    for bits in WIDTHS:
        for group in GROUPS:
            form = {"group_size": group, "bits": bits}
            weight = mx.quantize(mx.random.normal((512, 256)).astype(dtype), **form)
            for rows in (1, 2, 7, 40):
                x = mx.random.normal((rows, 256)).astype(dtype)
                yield f"{form} {rows} rows", lambda x=x, w=weight, f=form: mx.quantized_matmul(x, *w, **f)
            keys = mx.quantize(mx.zeros((4, 2, 512, 128), dtype), **form)
            q, p = mx.zeros((4, 2, 1, 128), dtype), mx.zeros((4, 2, 1, 512), dtype)
            yield f"{form} keys", lambda q=q, k=keys, f=form: mx.quantized_matmul(q, *k, **f)
            yield (
                f"{form} values",
                lambda p=p, k=keys, f=form: mx.quantized_matmul(p, *k, transpose=False, **f),
            )
        experts = mx.quantize(mx.random.normal((6, 128, 256)).astype(dtype), 64, bits)
        x = mx.random.normal((4, 1, 256)).astype(dtype)
        yield (
            f"{bits} bits, experts",
            lambda x=x, e=experts, b=bits: mx.gather_qmm(x, *e, rhs_indices=chosen, group_size=64, bits=b),
        )


def trials(run: Run) -> Iterator[Line]:
    plan = msgspec.structs.replace(run.plan, kernels=False)
    if not run.small:
        plan = msgspec.structs.replace(plan, run_type="bfloat16", dequantize=False)
    for name in ARCHITECTURES:
        if run.over:
            return
        folder = tiny_model(name, run.scratch / name)
        try:
            model, _ = load_weights(
                ModelInfo(id="t", kind="language", path=str(folder)), plan, lambda *_: None
            )
            found = probe.choose_batching(model, ModelOptions())
            head = Head(model, found.vocabulary)
        except Exception as error:
            yield {"model": name, "error": f"{type(error).__name__}: {error}"[:200]}
            continue
        told = {"batch": found.shape is not None, "rewinds": found.rewinds, "head": head.works}
        yield {"model": name, **told, "agreement": found.agreement}


class Made(bench.Bench):
    """An engine around a random llama in 4 bits."""

    def __init__(self, run: Run, model: nn.Module, **changes: Any) -> None:
        folder = run.scratch / "llama"
        if not folder.exists():
            tiny_model("llama", folder)
        self.model, self.tokenizer = model, Tokenizer.load(folder)
        self.options = ModelOptions(prefix_cache=False)
        self.plan = msgspec.structs.replace(run.plan, **changes)
        self.engine = build_engine(Asked(model, self.tokenizer, self.options, self.plan))

    def timed(self, prompts: Sequence[Prompt], tokens: int) -> tuple[dict[Any, list[int]], float]:
        begun = time.perf_counter()
        named = {f"r{row}": (prompt, tokens) for row, prompt in enumerate(prompts)}
        found, _ = bench.run_all(self, named, ignore_eos=True)
        return found, time.perf_counter() - begun


def large_model(run: Run) -> nn.Module:
    from mlx_lm.models import llama

    layers, hidden, heads, kv_heads, inner, vocabulary = SMALL if run.small else LARGE
    arguments = llama.ModelArgs(
        model_type="llama",
        hidden_size=hidden,
        num_hidden_layers=layers,
        intermediate_size=inner,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        rms_norm_eps=1e-5,
        vocab_size=vocabulary,
        tie_word_embeddings=False,
        max_position_embeddings=32_768,
    )
    mx.random.seed(1)
    model = llama.Model(arguments)
    model.set_dtype(mx.float32 if run.small else mx.bfloat16)  # 16 bits take a CPU minutes
    nn.quantize(model, 64, 4)
    mx.eval(model.parameters())
    return model


def prompts_of(count: int, length: int) -> list[Prompt]:
    """Of different lengths, from `length` on."""
    return [
        tuple((7 * row + 3 * place * place + 5) % 250 + 1 for place in range(length + 13 * row))
        for row in range(count)
    ]


def greedy(run: Run) -> Iterator[Line]:
    made, prompts = Made(run, large_model(run)), prompts_of(8, 20)
    together, _ = made.timed(prompts, 32)
    firsts = []
    for row, prompt in enumerate(prompts):
        alone, _ = made.timed([prompt], 32)
        pairs = zip(together[f"r{row}", 0], alone["r0", 0], strict=True)
        firsts.append(next((place for place, (one, other) in enumerate(pairs) if one != other), None))
    yield {"of": len(firsts), "same": firsts.count(None), "first_difference": firsts}


def copies(run: Run) -> Iterator[Line]:
    model, (count, length) = large_model(run), (2, 300) if run.small else (8, 3000)
    for overlaps, early in ((True, True), (True, False), (False, True)):
        made = Made(run, model, overlaps=overlaps)
        engine = made.engine
        engine.decoding.queueing.early = early  # it tries the other way after more steps than these
        for row, prompt in enumerate(prompts_of(count, length)):
            engine.submit(made.job(f"r{row}", prompt, 64, ignore_eos=True))
        while len(engine.batch.running) < count:
            engine.step()
        mx.synchronize()
        mx.reset_peak_memory()
        base, begun = mx.get_active_memory(), time.perf_counter()
        for _ in range(20):
            engine.step()
        mx.synchronize()
        spent = time.perf_counter() - begun
        bytes_ = {"kv": engine.batch.groups.bytes, "peak_over_active": mx.get_peak_memory() - base}
        yield {"overlaps": overlaps, "early": early, "ms_per_step": round(spent / 20 * 1e3, 2), **bytes_}
        engine.close()


def speed(run: Run) -> Iterator[Line]:
    model, length, tokens = large_model(run), 50 if run.small else 512, 16 if run.small else 64
    yield {"weights": sum(array.nbytes for _, array in tree_flatten(model.parameters()))}
    for count in (1, 8) if run.small else (1, 8, 32):
        if run.over:
            return
        prompts = prompts_of(count, length)
        yield {"server": "pippin", "sequences": count, **_rates(run, model, prompts, tokens)}
        yield {"server": "mlx-lm", "sequences": count, "tokens_per_s": _beside(model, prompts, tokens)}


def exact(run: Run) -> Iterator[Line]:
    """What `--exact` costs."""
    model, length, tokens = large_model(run), 50 if run.small else 512, 16 if run.small else 64
    for dtype in (mx.float32 if run.small else mx.bfloat16, mx.float32):
        model.set_dtype(dtype)
        for count in (1, 8):
            if run.over:
                return
            rates = _rates(run, model, prompts_of(count, length), tokens)
            yield {"dtype": str(dtype), "sequences": count, **rates}


def _rates(run: Run, model: nn.Module, prompts: Sequence[Prompt], tokens: int) -> Line:
    made = Made(run, model)
    made.timed(prompts, 8)  # warms up
    _, few = made.timed(prompts, 8)
    _, more = made.timed(prompts, 8 + tokens)
    # Beside other programs, more tokens may come sooner: then their time is not known.
    written = round(len(prompts) * tokens / (more - few), 1) if more > few else None
    return {"tokens_per_s": written, "prompt_tokens_per_s": round(sum(map(len, prompts)) / few)}


def _beside(model: nn.Module, prompts: Sequence[Prompt], tokens: int) -> float | str:
    """mlx-lm's tokens a second from when all sequences decode."""
    from mlx_lm.generate import BatchGenerator

    try:
        generator = BatchGenerator(
            model, max_tokens=tokens * 2, completion_batch_size=len(prompts), stop_tokens=[]
        )
        generator.insert([list(prompt) for prompt in prompts])
        answers: list[Any] = []
        while len(answers) < len(prompts):
            answers = generator.next()[1]
        begun, count = time.perf_counter(), 0
        while count < len(prompts) * tokens:
            count += len(generator.next()[1])
        generator.close()
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:160]
    return round(count / (time.perf_counter() - begun), 1)


def tests(run: Run) -> Iterator[Line]:
    command = [sys.executable, "-m", "pytest", "-q", "--maxfail=15", "-p", "no:cacheprovider", *TESTS]
    left = max(run.ends - time.monotonic(), 1)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=left, check=False)
    except subprocess.TimeoutExpired as error:
        yield {"ended": "time", "output": (error.stdout or b"").decode(errors="replace")[-2000:]}
        return
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    yield {"rc": done.returncode, "failed": failed, "output": done.stdout[-400:]}


PARTS: dict[str, Callable[[Run], Iterator[Line]]] = {
    each.__name__: each for each in (facts, operations, trials, greedy, copies, speed, exact, tests)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--small", action="store_true")
    asked = parser.parse_args()
    plan = decide(find_facts(), ModelOptions())
    configure(plan)
    with tempfile.TemporaryDirectory() as scratch:
        run = Run(plan, Path(scratch), asked.small, time.monotonic() + asked.seconds)
        try:
            for line in PARTS[asked.part](run):
                print(json.dumps(line, default=str), flush=True)
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"[:300]}), flush=True)


if __name__ == "__main__":
    main()
