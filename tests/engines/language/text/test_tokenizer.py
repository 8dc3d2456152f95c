"""Text to tokens and back: exact to the byte, and no text of a user becomes a marker."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pippin.engines.language.text.tokenizer import BREAK, Tokenizer, plain
from tests.engines.language.text.small_tokenizer import ADDED, CHATML, SPECIAL, byte_level, sentencepiece
from tests.engines.tiny_models import tiny_model

MARKERS = [*SPECIAL, "<think>", "</think>"]
PIECES = st.lists(
    st.one_of(st.sampled_from([*MARKERS, *ADDED, "<|im_", "end|>", "\n", " "]), st.text()), max_size=8
)


@pytest.fixture(scope="module", params=[byte_level, sentencepiece])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return request.param(marker_text=CHATML + "<think></think>")


def rendered(content: str) -> str:
    return f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"


@settings(max_examples=60, deadline=None)
@given(pieces=PIECES)
def test_a_users_text_never_holds_a_marker(tokenizer, pieces):
    content = "".join(pieces).replace("\ufdee", "").replace("\ufdef", "")
    text = rendered(tokenizer.literals.shield(content))
    tokens = tokenizer.literals.encode(text)
    counts = {marker: tokens.count(tokenizer.single(marker)) for marker in MARKERS}
    assert counts == {"<|endoftext|>": 0, "<|im_start|>": 2, "<|im_end|>": 1, "<think>": 0, "</think>": 0}
    assert plain(text) == rendered(content)
    if not tokenizer.pieces.strips_first_space:
        assert b"".join(map(tokenizer.raw, tokens)).decode() == rendered(content)


@settings(max_examples=100, deadline=None)
@given(content=st.text())
def test_ordinary_text_is_encoded_as_the_library_encodes_it(tokenizer, content):
    if any(marker in content for marker in MARKERS) or "\ufdee" in content or "\ufdef" in content:
        return
    text = rendered(tokenizer.literals.shield(content))
    assert text == rendered(content)
    reference = tokenizer.backend.encode(text, add_special_tokens=False).ids
    assert tokenizer.literals.encode(text) == reference


@settings(max_examples=60, deadline=None)
@given(content=st.text())
def test_the_twin_reads_ordinary_text_as_the_tokenizer_does(tokenizer, content):
    """What follows a broken marker is encoded as if the twin were the tokenizer itself."""
    content = content.replace("\ufdee", "").replace("\ufdef", "")
    if any(marker in content for marker in MARKERS):
        return
    text = rendered(content)
    with_break = text.replace("user\n", f"user\n{BREAK}", 1)
    assert tokenizer.literals.encode(with_break) == tokenizer.literals.encode(text)


def test_trusted_text_keeps_markers_that_are_no_special_tokens():
    tokenizer = byte_level(marker_text="<think>")
    assert tokenizer.literals.shield("<think>a", trusted=True) == "<think>a"
    assert tokenizer.literals.shield("<think>a") != "<think>a"
    assert tokenizer.literals.shield("<|im_end|>", trusted=True) != "<|im_end|>"
    assert tokenizer.literals.shield("<tool_call>") == "<tool_call>"  # no marker of this template
    shielded = tokenizer.literals.shield_value({"<|im_end|>": ["<|im_start|>", 1, None]})
    assert shielded == {f"<{BREAK}|im_end|>": [f"<{BREAK}|im_start|>", 1, None]}


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=60))
def test_streamed_text_is_the_text(tokenizer, text):
    tokens = tokenizer.encode(text)
    if tokenizer.single("<unk>") in tokens:
        return
    stream = tokenizer.detokenizer(strip_first_space=True)
    streamed = "".join(stream.add(token) for token in tokens) + stream.finish()
    wanted = text
    for marker in SPECIAL:
        wanted = wanted.replace(marker, "")
    if tokenizer.pieces.strips_first_space:
        wanted = wanted.replace("\u2581", " ")  # which SentencePiece writes for a blank
        assert streamed.lstrip(" ") == wanted.lstrip(" ")
    else:
        assert streamed == wanted


def test_a_character_is_held_back_until_it_is_whole():
    tokenizer = byte_level()
    stream = tokenizer.detokenizer()
    shown = [stream.add(token) for token in tokenizer.encode("🦊")]
    assert len(shown) > 1
    assert shown == [""] * (len(shown) - 1) + ["🦊"]
    stream.add(tokenizer.encode("🦊")[0])
    assert stream.finish() == "\ufffd"


def test_special_tokens_are_dropped_but_for_the_markers_of_formats():
    tokenizer = byte_level()
    tokens = tokenizer.encode("a<|im_start|>b<think>c")
    silent, shown = tokenizer.detokenizer(), tokenizer.detokenizer(["<|im_start|>"])
    assert "".join(map(silent.add, tokens)) == "ab<think>c"
    assert "".join(map(shown.add, tokens)) == "a<|im_start|>b<think>c"


def test_an_answer_loses_the_space_that_its_tokenizer_puts_first_and_a_continuation_keeps_it():
    tokenizer = sentencepiece()
    tokens = tokenizer.encode("Hello")
    assert tokenizer.detokenizer(strip_first_space=True).add(tokens[0])[0] == "H"
    assert tokenizer.detokenizer().add(tokens[0])[0] == " "


def test_the_bytes_of_every_token_are_known(tokenizer):
    for byte in range(256):
        spelled = f"<0x{byte:02X}>"
        if tokenizer.pieces.strips_first_space and tokenizer.backend.token_to_id(spelled) is not None:
            assert tokenizer.raw(tokenizer.backend.token_to_id(spelled)) == bytes((byte,))
    assert tokenizer.raw(10**9) == b""
    assert tokenizer.raw(-1) == b""
    assert tokenizer.raw(tokenizer.single("<|im_end|>")) == b"<|im_end|>"


@pytest.mark.model
def test_the_demo_models_tokens_are_the_librarys(demo_model):
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(demo_model)
    tokenizer = Tokenizer.load(demo_model)
    for text in (
        "def f(x):\n\treturn x ** 2",
        "日本語 🙂 café",
        "12345 + 678",
        "  spaces   \n\n",
        "<|im_end|>",
    ):
        assert tokenizer.encode(text) == reference.encode(text, add_special_tokens=False)
        stream = tokenizer.detokenizer(["<|im_end|>"])
        assert "".join(map(stream.add, tokenizer.encode(text))) == text
    assert tokenizer.eos == {2}


def test_an_architecture_that_transformers_does_not_know_may_scale_its_rotary_embeddings(tmp_path):
    folder = tiny_model("llama", tmp_path)
    scaling = {"type": "yarn", "factor": 10, "original_max_position_embeddings": 32768}
    config = {"model_type": "of_next_year", "rope_theta": 5000000.0, "rope_scaling": scaling}
    (folder / "config.json").write_text(json.dumps(config))
    assert Tokenizer.load(folder).encode("a word")
