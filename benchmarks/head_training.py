"""How `benchmarks.draft_head` trains a head: its examples, how it begins, what it loses, and how it is written."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optimizers
import numpy as np
from mlx.utils import tree_flatten
from numpy.typing import NDArray

from benchmarks.head_texts import Said, opened, prompts, said
from pippin.engines.language.kv_cache.layout import new_prompt_cache
from pippin.engines.language.model.head import Head
from pippin.engines.language.model.states import HiddenStates
from pippin.engines.language.step.engine import LanguageEngine

HELD_OUT = 32  # texts
TOGETHER = 8  # texts in a step of training
DEPTH_WEIGHTS = (1.0, 0.6)  # of the loss of the first drafted token, and of the second
PEAK_RATE = 6e-4
ONE_DEEP = 0.6  # of the time, in which only the first drafted token is learnt


class Recipe(NamedTuple):
    """What `benchmarks.draft_head` was asked for."""

    model: Path
    out: Path
    texts: Path | None
    held_out_texts: Path | None
    count: int
    most: int
    words: int
    minutes: float
    bits: int


class Example(NamedTuple):
    tokens: NDArray[np.int32]
    states: NDArray[np.float16]  # [tokens, 3 x hidden]
    prompt: int


def texts_of(folder: Path, file: Path | None, count: int, most: int, *, held_out: bool) -> list[Said]:
    """Answers from the file, where it is there, else from the model, which are then written there."""
    if file is not None and file.exists():
        return [Said(*json.loads(line)) for line in file.read_text().splitlines()][:count]
    found = list(said(folder, prompts(count, held_out=held_out), most))
    if file is not None:
        file.write_text("".join(json.dumps(each) + "\n" for each in found))
    return found


def load_target(folder: Path) -> nn.Module:
    """In float32: this is about the model's words, not its speed."""
    from mlx_lm.utils import dequantize_model, load_model

    model, _ = load_model(folder)
    model.apply(lambda each: each.astype(mx.float32) if mx.issubdtype(each.dtype, mx.floating) else each)
    return dequantize_model(model)


def examples(engine: LanguageEngine, texts: list[Said], layers: tuple[int, ...]) -> Iterator[Example]:
    """With the states after these layers of the model that the engine serves."""
    model, vocabulary = engine.model, engine.model.args.vocab_size
    head = Head(engine.model, vocabulary)
    states = HiddenStates(model, head, layers)
    for text in texts:
        with head.only([len(text.tokens) - 1]):
            mx.eval(model(mx.array([text.tokens]), cache=new_prompt_cache(model)))
        kept = states.take()[0].astype(mx.float16)
        yield Example(np.array(text.tokens, np.int32), np.array(kept), text.prompt)


def configuration(model: nn.Module, layers: tuple[int, ...], words: int) -> dict[str, Any]:
    """As speculators writes it. EAGLE-3 counts layers by what goes into them."""
    args = model.args
    return {
        "model_type": "eagle3",
        "speculators_model_type": "eagle3",
        "draft_vocab_size": words,
        "target_hidden_size": args.hidden_size,
        "tie_word_embeddings": False,
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in layers],
        "transformer_layer_config": {
            "model_type": "llama",
            "hidden_size": args.hidden_size,
            "intermediate_size": args.intermediate_size,
            "num_hidden_layers": 1,
            "num_attention_heads": args.num_attention_heads,
            "num_key_value_heads": args.num_key_value_heads,
            "head_dim": args.head_dim or args.hidden_size // args.num_attention_heads,
            "rms_norm_eps": args.rms_norm_eps,
            "vocab_size": args.vocab_size,
            "rope_theta": args.rope_theta,
            "max_position_embeddings": args.max_position_embeddings,
        },
    }


def begun(model: nn.Module, config: dict[str, Any], words: NDArray[np.int64]) -> nn.Module:
    """A head that starts as the model's last layer: the state after it goes in, the embedding beside it is ignored."""
    from mlx_vlm.speculative.drafters.eagle3.config import Eagle3Config
    from mlx_vlm.speculative.drafters.eagle3.eagle3 import Eagle3DraftModel

    head = Eagle3DraftModel(Eagle3Config.from_dict(config))
    last, inner = model.model.layers[-1], model.model
    size = model.args.hidden_size
    head.embed_tokens.weight = inner.embed_tokens.weight
    head.fc.weight = mx.concatenate([mx.zeros((size, 2 * size)), mx.eye(size)], axis=1)
    layer = head.layers[0]
    for name in ("q_proj", "k_proj", "v_proj"):
        weight = last.self_attn[name].weight
        layer.self_attn[name].weight = mx.concatenate([mx.zeros(weight.shape), weight], axis=1)
    layer.self_attn.o_proj.weight = last.self_attn.o_proj.weight
    layer.mlp.update(last.mlp.parameters())
    layer.hidden_norm.weight = last.input_layernorm.weight
    layer.post_attention_layernorm.weight = last.post_attention_layernorm.weight
    head.norm.weight = inner.norm.weight
    head.lm_head.weight = inner.embed_tokens.weight[mx.array(words)]
    head.d2t = mx.array(words - np.arange(len(words)), dtype=mx.int32)
    head.freeze(keys=["d2t"])
    head.embed_tokens.freeze()
    return head


class Batch(NamedTuple):
    """Texts side by side, padded on the right."""

    tokens: mx.array  # [texts, tokens]
    states: mx.array  # [texts, tokens, 3 x hidden]
    answers: mx.array  # [texts, tokens]: the token is one of the answer, and one that the head knows
    labels: mx.array  # [texts, tokens]: its index among those that the head knows


def batch_of(group: list[Example], index_of: NDArray[np.int32]) -> Batch:
    width = max(len(each.tokens) for each in group)
    tokens = np.zeros((len(group), width), np.int32)
    states = np.zeros((len(group), width, group[0].states.shape[1]), np.float32)
    answers = np.zeros((len(group), width), bool)
    for row, each in enumerate(group):
        count = len(each.tokens)
        tokens[row, :count], states[row, :count] = each.tokens, each.states
        answers[row, each.prompt : count] = True
    labels = index_of[tokens]
    known = answers & (labels >= 0)
    return Batch(mx.array(tokens), mx.array(states), mx.array(known), mx.array(np.maximum(labels, 0)))


def drafted(head: nn.Module, batch: Batch, depth: int) -> Iterator[tuple[mx.array, mx.array, mx.array]]:
    """For each token that is drafted ahead: logits, labels and where they count. From the state at place t and the
    token at t + 1, the one at t + 2 is drafted; from the head's own state there and that token the next."""
    states = batch.states
    for ahead in range(depth):
        states = states[:, :-2] if ahead == 0 else states[:, :-1]
        tokens = batch.tokens[:, ahead + 1 : ahead + 1 + states.shape[1]]
        head._cache, head._next_position = [], 1
        states = head._forward_tokens(tokens, states, mx.int32)
        place = slice(ahead + 2, ahead + 2 + states.shape[1])
        yield head._logits(states), batch.labels[:, place], batch.answers[:, place]


def loss_of(head: nn.Module, batch: Batch, depth: int) -> mx.array:
    total = mx.array(0.0)
    for weight, (logits, labels, counts) in zip(
        DEPTH_WEIGHTS[:depth], drafted(head, batch, depth), strict=True
    ):
        losses = nn.losses.cross_entropy(logits, labels) * counts
        total = total + weight * losses.sum() / counts.sum()
    return total


def hits(head: nn.Module, held: list[Example], index_of: NDArray[np.int32]) -> list[float]:
    """The share of answers' tokens that are drafted rightly, one and two ahead; unknown tokens count as wrong."""
    right, every = [0, 0], [0, 0]
    for start in range(0, len(held), TOGETHER):
        group = held[start : start + TOGETHER]
        batch = batch_of(group, index_of)
        said_by_model = sum(len(each.tokens) - each.prompt for each in group)
        for ahead, (logits, labels, counts) in enumerate(drafted(head, batch, 2)):
            right[ahead] += int(((mx.argmax(logits, axis=-1) == labels) * counts).sum())
            every[ahead] += said_by_model
    return [a / b for a, b in zip(right, every, strict=True)]


def train(
    head: nn.Module, learnt: list[Example], index_of: NDArray[np.int32], minutes: float, told: Any
) -> None:
    """Until the time is up, with a rate that falls to nothing by then. `told` is called after each pass over all."""
    start, seconds = time.monotonic(), minutes * 60
    optimizer = optimizers.AdamW(learning_rate=PEAK_RATE, betas=[0.9, 0.95], weight_decay=0.01)
    gradient = nn.value_and_grad(head, loss_of)
    order, draw, steps = list(range(len(learnt))), Random(3), 0
    while (done := (time.monotonic() - start) / seconds) < 1:
        # Texts of like length lie side by side, so that little is padded.
        draw.shuffle(order)
        order.sort(key=lambda each: len(learnt[each].tokens) // 32)
        groups = [order[at : at + TOGETHER] for at in range(0, len(order), TOGETHER)]
        draw.shuffle(groups)
        losses = []
        for group in groups:
            done = (time.monotonic() - start) / seconds
            if done >= 1:
                break
            steps += 1
            optimizer.learning_rate = PEAK_RATE * min(1.0, steps / 20) * (1 - done)
            depth = 1 if done < ONE_DEEP else 2
            loss, gradients = gradient(head, batch_of([learnt[each] for each in group], index_of), depth)
            gradients, _ = optimizers.clip_grad_norm(gradients, 1.0)
            optimizer.update(head, gradients)
            mx.eval(head.parameters(), optimizer.state, loss)
            losses.append(loss.item())
            if steps == 4:
                print(f"{(time.monotonic() - start) / steps:.1f} s a step of {TOGETHER} texts", flush=True)
        if losses:
            told(sum(losses) / len(losses), steps, time.monotonic() - start)


def write(head: nn.Module, config: dict[str, Any], folder: Path, bits: int) -> None:
    """In few bits, with the embeddings that the format has although the server shares the model's."""
    folder.mkdir(parents=True, exist_ok=True)
    copy = type(head)(head.config)
    copy.update(head.parameters())
    nn.quantize(copy, group_size=32, bits=bits)
    weights = dict(tree_flatten(copy.parameters()))
    weights = {
        name: each.astype(mx.bfloat16) if each.dtype == mx.float32 else each for name, each in weights.items()
    }
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    (folder / "config.json").write_text(
        json.dumps({**config, "quantization": {"group_size": 32, "bits": bits}}, indent=1)
    )


def make(recipe: Recipe) -> None:
    """Train a head and write it, telling how far it is."""
    texts = texts_of(recipe.model, recipe.texts, recipe.count, recipe.most, held_out=False)
    held_texts = texts_of(recipe.model, recipe.held_out_texts, HELD_OUT, recipe.most, held_out=True)
    model = load_target(recipe.model)
    depth = len(model.model.layers)
    layers = (depth // 3, 2 * depth // 3, depth - 1)
    start = time.monotonic()
    engine, _ = opened(recipe.model)
    learnt, held = list(examples(engine, texts, layers)), list(examples(engine, held_texts, layers))
    del engine
    frequent = Counter(token for each in texts for token in each.tokens[each.prompt :]).most_common(
        recipe.words
    )
    words = np.array(sorted(token for token, _ in frequent), np.int64)
    index_of = np.full(model.args.vocab_size, -1, np.int32)
    index_of[words] = np.arange(len(words))
    config = configuration(model, layers, len(words))
    head = begun(model, config, words)
    seconds, count = time.monotonic() - start, sum(len(each.tokens) for each in texts)
    print(f"{count} tokens, their states in {seconds:.0f} s, {len(words)} words known", flush=True)

    def told(loss: float, steps: int, seconds: float) -> None:
        found = ", ".join(f"{share:.1%}" for share in hits(head, held[:16], index_of))
        write(head, config, recipe.out, recipe.bits)
        print(f"{seconds:5.0f} s {steps:5} steps, loss {loss:.3f}, held out: {found}", flush=True)

    train(head, learnt, index_of, recipe.minutes, told)
    write(head, config, recipe.out, recipe.bits)
    print("held out:", ", ".join(f"{share:.1%}" for share in hits(head, held, index_of)), flush=True)
