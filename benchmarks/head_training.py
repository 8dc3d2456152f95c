"""How `benchmarks.draft_head` trains a head: its examples, how it begins, what it loses, and how it is written."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from math import cos, pi
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optimizers
import numpy as np
from mlx.utils import tree_flatten
from numpy.typing import NDArray

from benchmarks.head_operations import Floats, attended, distilled, gated
from benchmarks.head_texts import Said, opened, prompts, said
from pippin.engines.language.kv_cache.layout import new_prompt_cache
from pippin.engines.language.model.head import Head
from pippin.engines.language.model.states import HiddenStates
from pippin.engines.language.step.engine import LanguageEngine

HELD_OUT = 64  # texts
TOGETHER = 4  # texts in a step of training
MOST_AHEAD = 3  # drafted tokens that are learnt and tried
DEPTH_WEIGHTS = (1.0, 0.7, 0.5)  # of their losses
DEEPER = (0.75, 0.9)  # shares of the training after which the second is learnt, and the third
PEAK_RATE = 5e-4
WARM = 60  # steps, in which the rate grows to that
SEED = 3
TOLD = 50  # steps after which the head is written and tried
START_TEXTS = 200  # for the weights that a head begins with
HELD_BACK = 1e-3  # of the size of an input, by which those weights are kept small
TURNING = 5  # pairs of a head's numbers that tell its own place from others
SHARPNESS = 7.0  # what those are multiplied with
CALMED = 0.25  # times what the model's last layer multiplies: steps of a size must suit all weights
SMALL = 0.5  # times mlx's own random weights, for the rest of the attention


class Recipe(NamedTuple):
    """What `benchmarks.draft_head` was asked for."""

    model: Path
    out: Path
    texts: Path | None
    held_out_texts: Path | None
    count: int
    most: int
    words: int
    passes: int
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


class Known(NamedTuple):
    """What labels are made with."""

    index_of: NDArray[np.int32]  # by token, among the words of the head; -1 for others
    norm: Floats  # the weights of the model's last norm
    size: Floats  # `Start.size`


class Start(NamedTuple):
    """What a head begins as, computed from examples: parts of its weights by least squares."""

    states: Floats  # [hidden, 3 x hidden], from the model's states to its state at the next token
    embedding: Floats  # [hidden, hidden], what the normed embedding of that token adds
    constant: Floats  # [hidden], what gives 1 for all of the head's normed states
    size: Floats  # [3 x hidden], of the model's states, which are divided by it while a head learns


def unit(states: NDArray[Any]) -> Floats:
    """With a mean square of 1."""
    whole = states.astype(np.float32)
    found: Floats = whole / np.sqrt(np.square(whole).mean(-1, keepdims=True) + 1e-6)
    return found


def solved(inputs: Floats, outputs: Floats) -> Floats:
    """The matrix [in, out] that comes nearest to giving the outputs, held back as far as inputs are few."""
    size = np.sqrt(np.square(inputs).mean(0)) + 1e-6
    scaled = (inputs / size).astype(np.float32)
    products = scaled.T @ scaled + HELD_BACK * len(inputs) * np.eye(len(size), dtype=np.float32)
    found: Floats = np.linalg.solve(products, scaled.T @ outputs) / size.reshape(
        -1, *[1] * (outputs.ndim - 1)
    )
    return found


def start_of(learnt: list[Example], embeddings: Floats) -> Start:
    size = embeddings.shape[1]
    some = learnt[:: max(1, len(learnt) // START_TEXTS)]
    # Without the first token, whose states are far larger than all others.
    before = np.concatenate([each.states[1:-1] for each in some]).astype(np.float32)
    tokens = unit(np.concatenate([embeddings[each.tokens[2:]] for each in some]))
    after = unit(np.concatenate([each.states[2:, -size:] for each in some]))
    found = solved(np.concatenate([before, tokens], axis=1), after)
    states, embedding = np.ascontiguousarray(found[:-size].T), np.ascontiguousarray(found[-size:].T)
    constant = solved(unit(before @ states.T), np.ones(len(before), np.float32))
    return Start(states, embedding, constant, np.sqrt(np.square(before).mean(0)) + 1e-6)


def begun(model: nn.Module, config: dict[str, Any], words: NDArray[np.int64], start: Start) -> nn.Module:
    """A head that starts as the best linear guess of the model's next state. The state goes through `fc`; one of the
    heads that share keys looks at its own place only, and passes on the token's embedding, as far as its size goes."""
    from mlx_vlm.speculative.drafters.eagle3.config import Eagle3Config
    from mlx_vlm.speculative.drafters.eagle3.eagle3 import Eagle3DraftModel

    mx.random.seed(SEED)
    head = Eagle3DraftModel(Eagle3Config.from_dict(config))
    last, inner, layer = model.model.layers[-1], model.model, head.layers[0]
    head.embed_tokens.weight = inner.embed_tokens.weight
    head.fc.weight = mx.array(start.states * start.size)
    _look_at_own_place(layer.self_attn, start)
    layer.mlp.update(last.mlp.parameters())
    layer.mlp.up_proj.weight = layer.mlp.up_proj.weight * CALMED
    layer.mlp.down_proj.weight = mx.zeros(layer.mlp.down_proj.weight.shape)
    layer.post_attention_layernorm.weight = last.post_attention_layernorm.weight
    head.norm.weight = inner.norm.weight
    head.lm_head.weight = inner.embed_tokens.weight[mx.array(words)]
    head.d2t = mx.array(words - np.arange(len(words)), dtype=mx.int32)
    head.freeze(keys=["d2t"])
    head.embed_tokens.freeze()
    head.lm_head.freeze()
    return head


def _look_at_own_place(attention: nn.Module, start: Start) -> None:
    """Rotary positions turn a constant away from itself with distance: where queries and keys are constants in pairs
    of numbers that turn fast, attention falls to nothing from one place to the next."""
    size, width, shared = len(start.constant), attention.head_dim, attention.n_kv_heads
    group = attention.n_heads // shared
    left, strengths, right = np.linalg.svd(start.embedding)
    queries, keys, values, outputs = (
        np.array(getattr(attention, name).weight) * SMALL for name in ("q_proj", "k_proj", "v_proj", "o_proj")
    )
    for number in range(shared):
        own, keyed = number * group * width, number * width
        queries[own : own + width] = 0
        for place in range(TURNING):
            queries[own + place, size:] = keys[keyed + place, size:] = SHARPNESS * start.constant
            keys[keyed + place, :size] = 0
        passed = slice(number * width, (number + 1) * width)
        values[keyed : keyed + width, :size] = right[passed]
        values[keyed : keyed + width, size:] = 0
        outputs[:, own : own + width] = left[:, passed] * strengths[passed]
    for name, found in zip(
        ("q_proj", "k_proj", "v_proj", "o_proj"), (queries, keys, values, outputs), strict=True
    ):
        getattr(attention, name).weight = mx.array(found)


class Batch(NamedTuple):
    """Texts side by side, padded on the right: a place is a state and the token that followed it."""

    tokens: NDArray[np.int32]  # [texts, places + MOST_AHEAD]: `tokens[:, t]` followed state t
    states: Floats  # [texts, places, 3 x hidden]
    after: Floats  # [texts, places + MOST_AHEAD, hidden]: the model's normed state at `tokens`
    labels: NDArray[
        np.int32
    ]  # [texts, places + MOST_AHEAD]: what followed `tokens`, among the words of the head
    answers: NDArray[np.bool_]  # of that shape: it is one of the answer's


def batch_of(group: list[Example], known: Known) -> Batch:
    places = max(len(each.tokens) for each in group) - 1
    width, size = places + MOST_AHEAD, group[0].states.shape[1]
    found = Batch(
        np.zeros((len(group), width), np.int32),
        np.zeros((len(group), places, size), np.float32),
        np.zeros((len(group), width, size // 3), np.float32),
        np.zeros((len(group), width), np.int32),
        np.zeros((len(group), width), bool),
    )
    for row, each in enumerate(group):
        count = len(each.tokens) - 1
        found.tokens[row, :count] = each.tokens[1:]
        found.states[row, :count] = each.states[:-1] / known.size
        found.after[row, :count] = unit(each.states[1:, -(size // 3) :]) * known.norm
        found.labels[row, : count - 1] = known.index_of[each.tokens[2:]]
        found.answers[row, each.prompt - 2 : count - 1] = True
    return found


def drafted(head: nn.Module, batch: Batch, depth: int) -> Iterator[mx.array]:
    """The head's own normed states [texts, places, size] for each token that is drafted ahead of a place. The first
    comes from the model's state and reads those before it; the next from the head's own, beside what it has read."""
    hidden = head.fc(mx.array(batch.states))
    texts, places, _ = hidden.shape
    layer, attention = head.layers[0], head.layers[0].self_attn
    heads, shared = attention.n_heads, attention.n_kv_heads
    read: list[mx.array] = []
    own: list[list[mx.array]] = [[], []]
    for ahead in range(depth):
        tokens = mx.array(batch.tokens[:, ahead : ahead + places])
        both = mx.concatenate(
            [layer.input_layernorm(head.embed_tokens(tokens)), layer.hidden_norm(hidden)], axis=-1
        )
        queries, keys, values = (
            project(both).reshape(texts, places, count, -1).swapaxes(1, 2)
            for project, count in (
                (attention.q_proj, heads),
                (attention.k_proj, shared),
                (attention.v_proj, shared),
            )
        )
        queries = attention.rope(queries, offset=ahead).reshape(texts, shared, heads // shared, places, -1)
        keys = attention.rope(keys, offset=ahead)
        if ahead == 0:
            read = [keys, values]
        else:
            own[0].append(keys)
            own[1].append(values)
        none = mx.zeros((texts, shared, places, 0, keys.shape[-1]))
        drafts = (mx.stack(each, axis=3) if each else none for each in own)
        mixed = attended(queries, *read, *drafts)[0].reshape(texts, heads, places, -1)
        hidden = hidden + attention.o_proj(mixed.swapaxes(1, 2).reshape(texts, places, -1))
        normed, network = layer.post_attention_layernorm(hidden), layer.mlp
        hidden = hidden + network.down_proj(gated(network.gate_proj(normed), network.up_proj(normed)))
        yield head.norm(hidden)


def loss_of(head: nn.Module, batch: Batch, depth: int) -> mx.array:
    """A token's mean."""
    total, places = mx.array(0.0), batch.states.shape[1]
    for ahead, states in enumerate(drafted(head, batch, depth)):
        at = slice(ahead, ahead + places)
        rows = np.flatnonzero(batch.answers[:, at] & (batch.labels[:, at] >= 0))
        labels = mx.array(batch.labels[:, at].reshape(-1)[rows])
        theirs = batch.after[:, at].reshape(-1, states.shape[-1])[rows]
        chosen = states.reshape(-1, states.shape[-1])[mx.array(rows)]
        loss, _ = distilled(chosen, head.lm_head.weight, labels, mx.array(theirs))
        total = total + DEPTH_WEIGHTS[ahead] * loss / len(rows)
    return total


def hits(head: nn.Module, held: list[Example], known: Known) -> list[float]:
    """Of the tokens of answers, the share that is accepted of so many proposed at each place: of 1, of 2, of 3."""
    right, every = np.zeros(MOST_AHEAD), 0
    for start in range(0, len(held), TOGETHER):
        group = held[start : start + TOGETHER]
        batch = batch_of(group, known)
        places = batch.states.shape[1]
        so_far = batch.answers[:, :places].copy()
        every += int(so_far.sum())
        for ahead, states in enumerate(drafted(head, batch, MOST_AHEAD)):
            said = np.array(mx.argmax(head.lm_head(states), axis=-1))
            so_far &= said == batch.labels[:, ahead : ahead + places]
            right[ahead] += so_far.sum()
    return [float(right[:count].sum()) / every / count for count in range(1, MOST_AHEAD + 1)]


def train(head: nn.Module, learnt: list[Example], known: Known, recipe: Recipe, told: Any) -> None:
    """So many passes over all texts. `told` is called now and then."""
    groups_in_all = recipe.passes * -(-len(learnt) // TOGETHER)
    optimizer = optimizers.AdamW(learning_rate=PEAK_RATE, betas=[0.9, 0.95], weight_decay=0.01)
    gradient = nn.value_and_grad(head, loss_of)
    draw, start = Random(SEED), time.monotonic()
    losses: list[float] = []
    groups = chain.from_iterable(shuffled(learnt, draw) for _ in range(recipe.passes))
    for steps, group in enumerate(groups, 1):
        done = (steps - 1) / groups_in_all
        optimizer.learning_rate = PEAK_RATE * min(1.0, steps / WARM) * 0.5 * (1 + cos(pi * done))
        depth = 1 + sum(done >= share for share in DEEPER)
        loss, gradients = gradient(head, batch_of(group, known), depth)
        gradients, _ = optimizers.clip_grad_norm(gradients, 1.0)
        optimizer.update(head, gradients)
        mx.eval(head.parameters(), optimizer.state, loss)
        losses.append(loss.item())
        if steps % TOLD == 0:
            told(sum(losses) / len(losses), steps, time.monotonic() - start)
            losses = []


def shuffled(learnt: list[Example], draw: Random) -> list[list[Example]]:
    """In groups of like length, so that little is padded."""
    order = list(learnt)
    draw.shuffle(order)
    order.sort(key=lambda each: len(each.tokens) // 32)
    groups = [order[at : at + TOGETHER] for at in range(0, len(order), TOGETHER)]
    draw.shuffle(groups)
    return groups


def write(head: nn.Module, size: Floats, config: dict[str, Any], folder: Path, bits: int) -> None:
    """In few bits, with the embeddings that the format has although the server shares the model's."""
    folder.mkdir(parents=True, exist_ok=True)
    copy = type(head)(head.config)
    copy.update(head.parameters())
    copy.fc.weight = copy.fc.weight / mx.array(size)
    nn.quantize(copy, group_size=32, bits=bits)
    weights = dict(tree_flatten(copy.parameters()))
    weights = {
        name: each.astype(mx.bfloat16) if each.dtype == mx.float32 else each for name, each in weights.items()
    }
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    (folder / "config.json").write_text(
        json.dumps({**config, "quantization": {"group_size": 32, "bits": bits}}, indent=1)
    )


def words_known(texts: list[Said], count: int) -> NDArray[np.int64]:
    """The most frequent tokens of the answers. Where those are fewer, the first of the vocabulary fill up: byte-pair
    encoding numbers its tokens by how frequent they were where it was made."""
    said = Counter(token for each in texts for token in each.tokens[each.prompt :])
    words = {token for token, _ in said.most_common(count)}
    others = (token for token in range(count) if token not in words)
    words.update(islice(others, count - len(words)))
    return np.array(sorted(words), np.int64)


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
    words = words_known(texts, recipe.words)
    index_of = np.full(model.args.vocab_size, -1, np.int32)
    index_of[words] = np.arange(len(words))
    begin = start_of(learnt, np.array(model.model.embed_tokens.weight))
    known = Known(index_of, np.array(model.model.norm.weight), begin.size)
    config = configuration(model, layers, len(words))
    head = begun(model, config, words, begin)
    seconds, count = time.monotonic() - start, sum(len(each.tokens) for each in texts)
    print(f"{count} tokens, their states in {seconds:.0f} s, {len(words)} words known", flush=True)

    def told(loss: float, steps: int, seconds: float) -> None:
        write(head, known.size, config, recipe.out, recipe.bits)
        print(
            f"{seconds:5.0f} s {steps:5} steps, loss {loss:.3f}, {shares(head, held[:16], known)}", flush=True
        )

    print("at the start:", shares(head, held[:16], known), flush=True)
    train(head, learnt, known, recipe, told)
    write(head, known.size, config, recipe.out, recipe.bits)
    print("at the end:", shares(head, held, known), flush=True)


def shares(head: nn.Module, held: list[Example], known: Known) -> str:
    return "held out, accepted of 1, 2, 3: " + ", ".join(f"{share:.1%}" for share in hits(head, held, known))
