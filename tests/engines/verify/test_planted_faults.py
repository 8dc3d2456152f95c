"""Faults as people have met them in published folders, planted one by one in a sound folder: each is found."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors

from pippin.core.models import ModelKind
from tests.engines.verify.folders import (
    END,
    MARKS,
    SIZE,
    Arrays,
    edit,
    edit_template,
    edit_weights,
    found_in,
    report_on,
    write,
    write_sound,
    write_tokenizer,
)

Plant = Callable[[Path], object]
Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sound(tmp_path_factory.mktemp("sound") / "model")


def config(**fields: Any) -> Plant:
    return lambda folder: edit(folder, "config.json", **fields)


def template(old: str, new: str) -> Plant:
    return lambda folder: edit_template(folder, old, new)


def weights(change: Callable[[Arrays], object]) -> Plant:
    return lambda folder: edit_weights(folder, change)


def tokenizer(change: Callable[[Any], object]) -> Plant:
    return lambda folder: write_tokenizer(folder, change)


def shard(folder: Path, *, index: Callable[[dict[str, str]], None] = lambda _: None) -> None:
    """Cut the weights into two files with an index."""
    arrays = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(arrays)
    files = {name: f"model-0000{1 + (name > 'model.layers.1')}-of-00002.safetensors" for name in names}
    for file in set(files.values()):
        save_file({name: arrays[name] for name in names if files[name] == file}, folder / file)
    index(files)
    write(folder, "model.safetensors.index.json", {"weight_map": files})


def with_stray_shard(folder: Path) -> None:
    shard(folder)
    save_file({"other.weight": np.ones((2, 2), np.float32)}, folder / "model-old.safetensors")


def with_tensor_twice(folder: Path) -> None:
    shard(folder)
    save_file({Q: np.ones((64, 64), np.float32)}, folder / "model-old.safetensors")


def cut_off(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def packed_with_other_bits(folder: Path) -> None:
    def pack(arrays: Arrays) -> None:
        arrays[Q] = np.random.default_rng(3).integers(0, 2**32, (64, 8), np.uint32)
        arrays[Q.replace("weight", "scales")] = np.full((64, 2), 0.1, np.float32) * np.arange(2)
        arrays[Q.replace("weight", "biases")] = np.full((64, 2), 0.1, np.float32) * np.arange(2)

    edit_weights(folder, pack)
    edit(folder, "config.json", quantization={"bits": 8, "group_size": 32})


def without_added_token(folder: Path) -> None:
    stored = json.loads((folder / "tokenizer.json").read_text())
    stored["added_tokens"] = [each for each in stored["added_tokens"] if each["content"] != "<|im_start|>"]
    (folder / "tokenizer.json").write_text(json.dumps(stored))
    listed = json.loads((folder / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    edit(
        folder,
        "tokenizer_config.json",
        added_tokens_decoder={
            number: each for number, each in listed.items() if each["content"] != "<|im_start|>"
        },
    )


def shifted(folder: Path) -> None:
    """One token more before the marks, as after a conversion that counted the vocabulary again."""
    stored = json.loads((folder / "tokenizer.json").read_text())
    for token in stored["added_tokens"]:
        token["id"] += 1
    stored["model"]["vocab"]["<new>"] = 256
    (folder / "tokenizer.json").write_text(json.dumps(stored))
    edit(folder, "tokenizer_config.json", added_tokens_decoder=None)


def without_merges(folder: Path, lost: int = 21) -> None:
    """Some of 42 merges are lost, so that no text is cut into the pieces that they make."""
    stored = json.loads((folder / "tokenizer.json").read_text())
    pairs = [(one, other) for one in "abcdefg" for other in "hijklm"]
    for place, pair in enumerate(pairs):
        stored["model"]["vocab"]["".join(pair)] = SIZE + place
    stored["model"]["merges"] = pairs[lost:]
    write(folder, "tokenizer.json", stored)


def cut_at_spaces(folder: Path) -> None:
    """Words lose the space before them, with which the vocabulary spells them."""
    cut = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(False)])
    write_tokenizer(folder, lambda backend: setattr(backend, "pre_tokenizer", cut))
    stored = json.loads((folder / "tokenizer.json").read_text())
    pairs = [("Ġ", letter) for letter in "abcdefghij"]
    stored["model"]["vocab"] |= {"".join(pair): SIZE + place for place, pair in enumerate(pairs)}
    stored["model"]["merges"] = pairs
    write(folder, "tokenizer.json", stored)


def cut_wrongly(folder: Path) -> None:
    split = pre_tokenizers.Split(Regex(r"\p{N}{1,3}|\p{L}+"), "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    cut = pre_tokenizers.Sequence([split, level])
    write_tokenizer(folder, lambda backend: setattr(backend, "pre_tokenizer", cut))
    stored = json.loads((folder / "tokenizer.json").read_text())
    # transformers looks at large vocabularies alone.
    stored["model"]["vocab"] |= {f"<{place}>": SIZE + place for place in range(100_000)}
    write(folder, "tokenizer.json", stored)
    edit(folder, "config.json", model_type="mistral")


def doubled_bos(backend: Any) -> None:
    backend.post_processor = processors.TemplateProcessing(single="<s> <s> $A", special_tokens=[("<s>", 256)])


def stripping(backend: Any) -> None:
    backend.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])


def losing_spaces(backend: Any) -> None:
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace(" ", "")])


def nan(arrays: Arrays) -> None:
    arrays[Q][3, 5] = np.nan


def zeroed(arrays: Arrays) -> None:
    for name in arrays:
        if ".layers.1." in name:
            arrays[name] = np.zeros_like(arrays[name])


def duplicated(arrays: Arrays) -> None:
    for name in list(arrays):
        if ".layers.1." in name:
            arrays[name] = arrays[name.replace(".layers.1.", ".layers.0.")]


def zeroed_norm(arrays: Arrays) -> None:
    name = "model.layers.1.input_layernorm.weight"
    arrays[name] = np.zeros_like(arrays[name])


def zeroed_bias(arrays: Arrays) -> None:
    for layer in range(3):
        arrays[f"model.layers.{layer}.self_attn.q_proj.bias"] = np.full(64, float(layer != 1), np.float32)


def copied(arrays: Arrays) -> None:
    arrays["model.layers.1.self_attn.v_proj.weight"] = arrays["model.layers.1.self_attn.k_proj.weight"]


def ending_texts(backend: Any) -> None:
    backend.post_processor = processors.TemplateProcessing(
        single="$A <|im_end|>", special_tokens=[("<|im_end|>", END)]
    )


def with_swapped_tokens(folder: Path) -> None:
    stored = json.loads((folder / "tokenizer.json").read_text())
    first, second = (each for each in stored["added_tokens"] if each["content"] in ("<think>", "</think>"))
    first["id"], second["id"] = second["id"], first["id"]
    stored["added_tokens"].sort(key=lambda each: each["id"])
    (folder / "tokenizer.json").write_text(json.dumps(stored))


def with_adapter(arrays: Arrays) -> None:
    arrays[Q.replace("weight", "lora_A.weight")] = (
        np.random.default_rng(1).normal(size=(4, 64)).astype(np.float32)
    )


def in_fewer_bits(arrays: Arrays) -> None:
    """All numbers as they were in 16 bits, but for those of one matrix."""
    for name, array in arrays.items():
        arrays[name] = array if name == Q else (array.view(np.uint32) & 0xFFFF0000).view(np.float32)


def beside(strengths: Callable[[int], float]) -> Plant:
    """An adapter of all queries beside the weights, merged so many times by layer."""

    def plant(folder: Path) -> None:
        random, pairs = np.random.default_rng(9), {}
        arrays = load_file(folder / "model.safetensors")
        for layer in range(3):
            name = Q.replace("1", str(layer)).removesuffix(".weight")
            down, up = (random.normal(0, 0.2, (4, 64)).astype(np.float32) for _ in range(2))
            arrays[f"{name}.weight"] += strengths(layer) * 2 * up.T @ down
            pairs |= {
                f"base_model.model.{name}.lora_{half}.weight": each
                for half, each in (("A", down), ("B", up.T))
            }
        save_file(arrays, folder / "model.safetensors", {"format": "pt"})
        save_file(
            {name: np.ascontiguousarray(each) for name, each in pairs.items()},
            folder / "adapter_model.safetensors",
        )
        write(folder, "adapter_config.json", {"peft_type": "LORA", "r": 4, "lora_alpha": 8})

    return plant


def tied_to_another(folder: Path) -> None:
    edit(folder, "config.json", tie_word_embeddings=True)


def said(change: str) -> Plant:
    """A template that changes the words of each turn."""
    return template("{%- set content = message.content %}", f"{{%- set content = {change} %}}")


THINK_OFF = "<think>\\n\\n</think>"
INST = (
    "{%- for turn in messages %}{% if turn.role == 'user' %}[INST] {{ turn.content }} [/INST]"
    "{% else %}{{ turn.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
TOOL_TURNS = '{%- elif message.role == "tool" %}'
FAULTS: dict[str, tuple[Plant, str]] = {
    "wrong BOS": (config(bos_token_id=65), "bos-disagrees"),
    "doubled BOS of the tokenizer": (tokenizer(doubled_bos), "bos-twice"),
    "doubled BOS of the template": (
        template("{%- if tools %}", "{{ bos_token + bos_token }}{%- if tools %}"), "bos-twice"),
    "wrong eos in generation_config": (
        lambda folder: edit(folder, "generation_config.json", eos_token_id=[65]), "eos-is-text"),
    "other eos in generation_config": (
        lambda folder: edit(folder, "generation_config.json", eos_token_id=[256 + 3]), "eos-disagree"),
    "one more than the eos": (
        lambda folder: [
            edit(folder, file, eos_token_id=END + 3) for file in ("config.json", "generation_config.json")
        ], "eos-disagree"),
    "a space before the assistant's name": (
        template("<|im_start|>assistant", "<|im_start|> assistant"), "answer-begins"),
    "last norm zeroed": (
        weights(lambda arrays: arrays.update({"model.norm.weight": np.zeros(64, np.float32)})), "blank-tensor"),
    "end of turn that ends nothing": (
        lambda folder: (
            edit(folder, "config.json", eos_token_id=256),
            edit(folder, "generation_config.json", eos_token_id=256),
            edit(folder, "tokenizer_config.json", eos_token="<s>"),
        ), "turn-end"),
    "lost tool role": (template(TOOL_TURNS, '{%- elif message.role == "never" %}'), "tool-role-lost"),
    "lost earlier calls": (template("message.tool_calls", "message.nothing"), "tool-calls-lost"),
    "lost system": (template("messages[0].role == 'system'", "messages[0].role == 'never'"), "system-dropped"),
    "other think tag": (template("think>", "thinking>"), "think-tags"),
    "swapped think tags": (template(THINK_OFF, "</think>\\n\\n<think>"), "think-order"),
    "switch of thinking that does nothing": (
        template("enable_thinking is false", "enable_thinking is string"), "think-switch"),
    "wrong rope theta": (config(rope_parameters={"rope_type": "default", "rope_theta": 500000.0}), "rope-disagrees"),
    "wrong rope scaling": (
        config(rope_scaling={"type": "linear", "factor": 2.0}, rope_parameters={"rope_type": "linear", "factor": 4.0}),
        "rope-disagrees"),
    "wrong rope theta of windows": (
        config(rope_local_base_freq=1e4, rope_parameters={"sliding_attention": {"rope_theta": 5e4}}), "rope-disagrees"),
    "wrong rope theta of a type of layers": (
        config(rope_parameters={"full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 1e4}}),
        "rope-disagrees"),
    "other share of turned dimensions": (
        config(partial_rotary_factor=1.0, rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.5}),
        "rope-disagrees"),
    "untied head missing": (weights(lambda arrays: arrays.pop("lm_head.weight")), "head-missing"),
    "head that is ignored": (tied_to_another, "head-ignored"),
    "shifted vocabulary": (shifted, "bos-disagrees"),
    "tokenizer larger than the embedding": (
        tokenizer(lambda backend: backend.add_tokens([AddedToken("<extra>")])), "token-without-embedding"),
    "other size of the vocabulary": (config(vocab_size=SIZE + 8), "vocabulary-rows"),
    "missing added token": (without_added_token, "mark-not-token"),
    "lower case": (tokenizer(lambda backend: setattr(backend, "normalizer", normalizers.Lowercase())), "round-trip"),
    "decoder that loses spaces": (tokenizer(losing_spaces), "round-trip"),
    "one layer zeroed": (weights(zeroed), "blank-tensor"),
    "NaN": (weights(nan), "not-finite"),
    "layer twice": (weights(duplicated), "matrix-twice"),
    "adapter that is not merged": (weights(with_adapter), "adapter-left"),
    "adapter merged into one layer of three": (beside(lambda layer: float(layer == 1)), "adapter-partly"),
    "adapter merged at half its strength": (beside(lambda layer: 0.5), "adapter-partly"),
    "adapter merged twice": (beside(lambda layer: 2.0), "adapter-partly"),
    "adapter that lies beside the weights": (beside(lambda layer: 0.0), "adapter-beside"),
    "a change merged into one layer in more bits": (weights(in_fewer_bits), "partly-finer"),
    "layers that are not there": (config(num_hidden_layers=4), "layers-differ"),
    "other bits than config.json's": (packed_with_other_bits, "quantisation-differs"),
    "bits of no tensor": (config(quantization={"bits": 4, "group_size": 64}), "quantisation-absent"),
    "raw bytes": (weights(lambda arrays: arrays.update({Q: np.ones((64, 64), np.int8)})), "raw-bytes"),
    "stray shard": (with_stray_shard, "stray-shard"),
    "tensor in two files": (with_tensor_twice, "tensor-twice"),
    "damaged shard": (cut_off, "damaged-shard"),
    "index of a tensor that is not there": (
        lambda folder: shard(folder, index=lambda files: files.update({"gone": files[Q]})), "index-mismatch"),
    "index of another file": (
        lambda folder: shard(folder, index=lambda files: files.update({Q: files["lm_head.weight"]})), "index-mismatch"),
    "a norm zeroed": (weights(zeroed_norm), "blank-tensor"),
    "values that are the keys": (weights(copied), "matrix-twice"),
    "tied without saying so": (
        lambda folder: (
            edit_weights(folder, lambda arrays: arrays.pop("lm_head.weight")),
            edit(folder, "config.json", tie_word_embeddings=None),
        ), "head-missing"),
    "swapped tokens": (with_swapped_tokens, "added-token"),
    "eos behind each text": (tokenizer(ending_texts), "eos-appended"),
    "eos within answers": (
        lambda folder: edit(folder, "tokenizer_config.json", eos_token="<think>"), "eos-is-text"),
    "end of turn left out": (template("<|im_end|>", ""), "turn-open"),
    "no beginning of an answer": (template("add_generation_prompt", "never_set"), "answer-begins"),
    "answers as the user's": (
        template("message.role + '\\n' + content", "'user' + '\\n' + content"), "answer-begins"),
    "lost tools": (template("{%- if tools %}", "{%- if never %}"), "tools-lost"),
    "lost last turn": (
        template("for message in messages %}", "for message in messages[:-1] %}"), "conversation-refused"),
    "upper case": (said("message.content|upper"), "words-changed"),
    "words cut": (said("message.content[:500]"), "words-changed"),
    "words twice": (said("message.content + message.content"), "words-changed"),
    "a way of drawing that is not done": (
        lambda folder: edit(folder, "generation_config.json", num_beams=4), "generation-unread"),
    "misspelt field": (config(rope_theta=None, rope_tetha=5e5), "field-misspelt"),
    "mean and spread of pictures swapped": (
        lambda folder: write(folder, "preprocessor_config.json", {"image_mean": [0.27] * 3, "image_std": [0.46] * 3}),
        "picture-numbers"),
    "another template in the file": (
        lambda folder: (folder / "chat_template.jinja").write_text("{{ messages[-1].content }}"), "template-twice"),
    "merges missing": (without_merges, "pieces-unmet"),
    "a few merges missing": (lambda folder: without_merges(folder, 3), "pieces-unmet"),
    "words cut at their spaces": (cut_at_spaces, "pieces-unmet"),
    "pooling that is not there": (
        lambda folder: write(folder, "modules.json", [{"type": "x.Pooling", "path": "1_Pooling"}]), "module-missing"),
    "Mistral's way to cut words by mistake": (cut_wrongly, "mistral-cuts"),
    "an end that is a sign": (
        lambda folder: edit(folder, "generation_config.json", eos_token_id=[END, 2]), "eos-is-text"),
    "an end that is forbidden": (
        lambda folder: edit(folder, "generation_config.json", suppress_tokens=[END]), "eos-never"),
    "an end that is forbidden by a bias": (
        lambda folder: edit(folder, "generation_config.json", sequence_bias=[[[END], -100.0]]), "eos-never"),
    "modules that are no list": (lambda folder: write(folder, "modules.json", {}), "ended-early"),
    "a number in words": (
        lambda folder: edit(folder, "config.json", num_nextn_predict_layers="two"), "ended-early"),
    "a probability of 95": (lambda folder: edit(folder, "generation_config.json", top_p=95), "unusable"),
    "another family's template": (
        lambda folder: edit(folder, "tokenizer_config.json", chat_template=INST), "turns-unmarked"),
    "a bos that a template writes in letters": (
        template("{%- if tools %}", "{{ '<|begin|>' }}{%- if tools %}"), "mark-not-token"),
    "a template that fails for tools": (
        template("{%- if tools %}", "{%- if tools %}{{ raise_exception('none') }}"), "tools-lost"),
    "a template that cannot be compiled": (template("{%- if tools %}", "{%- if tools %"), "unusable"),
    "no bos in the vocabulary": (
        lambda folder: edit(folder, "tokenizer_config.json", bos_token="<s2>"), "token-without-embedding"),
    "an end that begins answers": (
        lambda folder: edit(folder, "tokenizer_config.json", eos_token="<|im_start|>"), "eos-is-text"),
    "a bias zeroed": (weights(zeroed_bias), "blank-tensor"),
    "answers of the user": (
        template("'<|im_start|>' + message.role + '\\n' + message.content",
                 "'<|im_start|>assistant\\n' + message.content"), "speakers-alike"),
    "a user's turn without its end": (
        template("message.content + '<|im_end|>' + '\\n'", "message.content + '\\n'"), "turns-unended"),
    "a turn ended twice": (
        template("{{- '<|im_end|>\\n' }}\n    {%- elif", "{{- '<|im_end|>' * 2 + '\\n' }}\n    {%- elif"),
        "turns-unended"),
    "no line end behind the user's name": (
        template("message.role + '\\n' + message.content", "message.role + message.content"), "turn-spacing"),
    "no line end in the prompt": (template("'<|im_start|>assistant\\n'", "'<|im_start|>assistant'"), "turn-spacing"),
    "another name of the user": (
        template("message.role + '\\n' + message", "message.role|replace('user', 'man') + '\\n' + message"),
        "speaker-unknown"),
    "system's words escaped": (
        template("messages[0].content + '<|im_end|>", "messages[0].content|e + '<|im_end|>"), "words-changed"),
    "system lost beside tools": (template("{{- messages[0].content + '\\n\\n' }}", "{{- '' }}"), "words-changed"),
    "results cut": (template("{{- message.content }}\n", "{{- message.content[:200] }}\n"), "words-changed"),
    "one tool of several": (template("{{- tool | tojson }}", "{{- tools[0] | tojson }}"), "tools-partly"),
    "calls that do not end": (template("'}\\n</tool_call>'", "'}'"), "call-marks"),
    "a name that nobody has": (
        template("message.content + '<|im_end|>' + '\\n'",
                 "message.content + message.get('name')|string + '<|im_end|>\\n'"), "none-written"),
    "a switch of thinking that does the opposite": (
        template("enable_thinking is false", "enable_thinking is true"), "think-inverted"),
    "thoughts left open": (template("<think>\\n\\n</think>\\n\\n", "<think>\\n\\n"), "think-inverted"),
    "turns before the last four lost": (
        template("{%- for message in messages %}\n    {%- if (", "{%- for message in messages[-4:] %}\n    {%- if ("),
        "conversation-refused"),
    "an end that is a space": (
        lambda folder: edit(folder, "generation_config.json", eos_token_id=[END, 220]), "eos-is-text"),
    "accents stripped": (tokenizer(stripping), "round-trip"),
    "field that is not read": (config(final_logit_softcapping=30.0), "field-unread"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "severity"), [("language", "note"), ("embeddings", "warning")])
def test_what_fills_rows_is_compared(kind: ModelKind, severity: str, sound: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(sound, folder)
    for pad, told in ((257, []), (65, [severity])):
        edit(folder, "tokenizer_config.json", pad_token="<|im_start|>")
        edit(folder, "config.json", pad_token_id=pad)
        [section] = report_on(folder, "tokens", kind=kind, architecture="llama").sections
        assert [each.severity for each in section.findings if each.code == "pad-disagrees"] == told


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str, sound: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(sound, folder)
    plant, code = FAULTS[name]
    plant(folder)
    found = found_in(report_on(folder, architecture="llama"))
    assert code in {each.code for each in found}, found


def test_a_sound_folder_has_no_fault(sound: Path, tmp_path: Path) -> None:
    assert found_in(report_on(sound, architecture="llama")) == []
    folder = tmp_path / "sharded"
    shutil.copytree(sound, folder)
    beside(lambda layer: 1.0)(folder)
    shard(folder)
    assert found_in(report_on(folder, architecture="llama")) == []


def exchanged(part: str, other: str) -> Plant:
    return weights(
        lambda arrays: arrays.update(
            {name.replace(part, other): arrays[name] for name in arrays if part in name}
            | {name.replace(other, part): arrays[name] for name in arrays if other in name}
        )
    )


def in_llamas_order(arrays: Arrays) -> None:
    """Queries with the halves of their rotary pairs interleaved, as llama.cpp stores them."""
    for name in arrays:
        if "q_proj" in name:
            rows = arrays[name].reshape(4, 2, 8, 64).swapaxes(1, 2)
            arrays[name] = np.ascontiguousarray(rows.reshape(64, 64))


def one_less(arrays: Arrays) -> None:
    for name in arrays:
        if "norm" in name:
            arrays[name] = arrays[name] - 1


def larger_head(arrays: Arrays) -> None:
    arrays["lm_head.weight"] = arrays["lm_head.weight"] * 4


@pytest.mark.parametrize(
    ("plant", "code", "told"),
    [
        (exchanged("k_proj", "v_proj"), "tensors-unlike", "of model.layers.0.self_attn.k_proj.weight: it is the"),
        (exchanged("gate_proj", "up_proj"), "tensors-unlike", "other's model.layers.0.mlp.up_proj.weight."),
        (weights(in_llamas_order), "tensors-unlike", "its rows are in another order"),
        (weights(one_less), "tensors-unlike", "7 of 30 tensors are not the other model's"),
        (weights(one_less), "tensors-unlike", "each number differs by about -1."),
        (weights(larger_head), "tensors-unlike", "the distance is 3 of its"),
        (weights(lambda arrays: arrays.update({Q: arrays[Q] + np.float32(0.01)})), "partly-changed", "1 of 3 layers"),
        (config(rope_theta=500.0), "other-config", "rope_theta = 500.0 and not 10000.0"),
        (lambda _: None, None, ""),
    ],
)  # fmt: skip
def test_what_was_done_to_weights_is_told_beside_the_original(
    plant: Plant, code: str | None, told: str, sound: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(sound, folder)
    plant(folder)
    found = found_in(report_on(folder, "files", against=sound, architecture="llama"))
    assert [each.code for each in found] == [code] * (code is not None)
    assert all(told in each.text for each in found), found


def test_why_a_model_that_hears_is_not_served_is_found(sound: Path) -> None:
    assert [each.code for each in found_in(report_on(sound, "files", kind="transcription"))] == ["unusable"]


def test_a_model_that_hears_and_never_ends_is_found(sound: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(sound, folder)
    edit(folder, "generation_config.json", suppress_tokens=[1, END])
    found = found_in(report_on(folder, "files", kind="transcription"))
    assert [each.code for each in found] == ["eos-never", "unusable"]


def test_the_files_of_the_model_before_it_was_quantised_are_compared(sound: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(sound, folder)
    write_tokenizer(folder, lambda backend: setattr(backend, "normalizer", normalizers.NFKC()))
    edit(folder, "generation_config.json", eos_token_id=[END, 256 + 7])
    edit_template(folder, "<tool_response>", "<result>")
    found = found_in(report_on(folder, "tokens", "template", against=sound, architecture="llama"))
    told = [each.text.partition(" differs")[0] for each in found if each.code == "other-writing"]
    assert told == ["How texts are cut", "What ends answers", "How conversations are written"]


def test_a_chat_model_without_a_template_is_found(sound: Path, tmp_path: Path) -> None:
    for name, codes in (
        ("tiny-7B-Instruct", ["template-missing"]),
        ("tiny-7B-it-4bit", ["template-missing"]),
        ("kitty", []),
    ):
        folder = tmp_path / name
        shutil.copytree(sound, folder)
        edit(folder, "tokenizer_config.json", chat_template=None)
        [section] = report_on(folder, "template", architecture="llama").sections
        assert section.left_out
        assert [each.code for each in section.findings] == codes


def test_findings_say_what_they_mean_and_what_helps(sound: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(sound, folder)
    edit(folder, "config.json", bos_token_id=65, eos_token_id=END, vocab_size=SIZE + len(MARKS))
    cut_off(folder)
    found = found_in(report_on(folder, architecture="llama"))
    assert len(found) >= 2
    assert all(each.meaning and each.advice for each in found)
    # Nothing says which repository has the publisher's files.
    assert {each.command for each in found} == {"pippin search --all model"}
    edit(folder, "config.json", _name_or_path="org/model")
    found = found_in(report_on(folder, architecture="llama"))
    assert {each.command for each in found} == {
        "pippin pull org/model",
        f"hf download org/model tokenizer.json tokenizer_config.json --local-dir {folder}",
    }
