"""Text to tokens and back: exact to the byte, and no text of a user becomes a marker."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend

from pippin.core.errors import ServerError
from pippin.engines.encoding import EncodingTokenizer
from pippin.engines.language.text.tokenizer import BREAK, Tokenizer, plain
from tests.engines.language.text.small_tokenizer import ADDED, CHATML, SPECIAL, byte_level, sentencepiece
from tests.engines.tiny_models import tiny_model

MARKERS = [*SPECIAL, "<think>", "</think>"]
PIECES = st.lists(
    st.one_of(st.sampled_from([*MARKERS, *ADDED, "<|im_", "end|>", "\n", " "]), st.text()), max_size=8
)


@pytest.fixture(scope="module", params=[byte_level, sentencepiece])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return request.param().with_markers(CHATML + "<think></think>")


def rendered(content: str) -> str:
    return f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"


@given(pieces=PIECES)
def test_a_users_text_never_holds_a_marker(tokenizer, pieces):
    content = "".join(pieces).replace("\ufdee", "").replace("\ufdef", "")
    text = rendered(tokenizer.literals.shield(content))
    tokens = tokenizer.literals.encode(text)
    counts = {marker: tokens.count(tokenizer.single(marker)) for marker in MARKERS}
    assert counts == {"<|endoftext|>": 0, "<|im_start|>": 2, "<|im_end|>": 1, "<think>": 0, "</think>": 0}
    assert plain(text) == rendered(content)
    if tokenizer.single("<unk>") is None:
        assert b"".join(map(tokenizer.raw, tokens)).decode() == rendered(content)


@given(content=st.text())
def test_ordinary_text_is_encoded_as_the_library_encodes_it(tokenizer, content):
    if any(marker in content for marker in MARKERS) or "\ufdee" in content or "\ufdef" in content:
        return
    text = rendered(tokenizer.literals.shield(content))
    assert text == rendered(content)
    reference = tokenizer.backend.encode(text, add_special_tokens=False).ids
    assert tokenizer.literals.encode(text) == reference


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
    tokenizer = byte_level().with_markers("<think>")
    assert tokenizer.literals.shield("<think>a", trusted=True) == "<think>a"
    assert tokenizer.literals.shield("<think>a") != "<think>a"
    assert tokenizer.literals.shield("<|im_end|>", trusted=True) != "<|im_end|>"
    assert tokenizer.literals.shield("<tool_call>") == "<tool_call>"  # no marker of this template
    shielded = tokenizer.literals.shield_value({"<|im_end|>": ["<|im_start|>", 1, None]})
    assert shielded == {f"<{BREAK}|im_end|>": [f"<{BREAK}|im_start|>", 1, None]}


def streamed(tokenizer: Tokenizer, tokens: list[int]) -> str:
    stream = tokenizer.detokenizer(at_start=True)
    return "".join(map(stream.add, tokens)) + stream.finish()


def decoded(tokenizer: Tokenizer, tokens: list[int]) -> str:
    """What the library's decoder gives for all of them at once."""
    return tokenizer.backend.decode(tokens, skip_special_tokens=True)


@given(text=st.text(max_size=60))
def test_streamed_text_is_the_text(tokenizer, text):
    tokens = tokenizer.encode(text)
    if tokenizer.single("<unk>") in tokens:
        return
    wanted = spelled(tokenizer, text)
    for marker in SPECIAL:
        wanted = wanted.replace(marker, "")
    assert streamed(tokenizer, tokens).lstrip(" ") == wanted.lstrip(" ")


def spelled(tokenizer: Tokenizer, text: str) -> str:
    """The text as the vocabulary can write it: SentencePiece has one mark for blanks and itself."""
    return text.replace("\u2581", " ") if tokenizer.single("<unk>") is not None else text


ODD_PIECES = (
    *(
        "a",
        "▁",
        "▁a",
        "▁▁b",
        " ",
        "a ",
        "'",
        "s",
        "n't",
        "do not",
        ".",
        "##a",
        "##",
        "## .",
        "b</w>",
        "</w>",
        "é",
    ),
    *(
        "<0x20>",
        "<0xE2>",
        "<0x96>",
        "<0x81>",
        "<0xff>",
        "<0x0>",
        "Ġ",
        "ĠĠa",
        "ð",
        "Ł",
        "¦",
        "Ĭ",
        "Â",
        "\ufffd",
    ),
)
ODD_ADDED = ("▁▁▁", "##x", "<think>", "c</w>", "café", "Ġd", "<0x41>", " e ")
SPACES = decoders.Replace("▁", " ")
DECODERS = {
    "none": None,
    "byte level": decoders.ByteLevel(),
    "word pieces": decoders.WordPiece(),
    "word pieces as they are": decoders.WordPiece(cleanup=False),
    "suffix": decoders.BPEDecoder(),
    "metaspace": decoders.Metaspace(),
    "metaspace as it is": decoders.Metaspace(prepend_scheme="never"),
    "gemma": decoders.Sequence([SPACES, decoders.ByteFallback(), decoders.Fuse()]),
    "llama": decoders.Sequence([SPACES, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
    "stripped tokens": decoders.Sequence([decoders.Strip("#", 2, 0), decoders.Metaspace()]),
    "suffix of bytes": decoders.Sequence([decoders.Replace("</w>", " "), decoders.ByteLevel()]),
}


def with_decoder(decoder: object) -> Tokenizer:
    vocabulary = {piece: id_ for id_, piece in enumerate(ODD_PIECES)}
    backend = Backend(models.WordLevel(vocabulary, unk_token="a"))
    backend.add_tokens([AddedToken(text, special=False) for text in ODD_ADDED])
    backend.add_special_tokens(["<s>", "▁</s>"])
    if decoder is not None:
        backend.decoder = decoder
    return Tokenizer(backend)


@pytest.mark.parametrize("name", DECODERS)
@given(data=st.data())
def test_a_stream_is_the_text_of_the_tokenizers_own_decoder(name, data):
    tokenizer = with_decoder(DECODERS[name])
    tokens = data.draw(st.lists(st.integers(0, tokenizer.size + 1), min_size=1, max_size=12))
    text = decoded(tokenizer, tokens)
    # Of bytes that are no text, the library replaces those before as well, which a stream has shown.
    assume("\ufffd" not in text or "ByteFallback" not in str(DECODERS[name]))
    assert streamed(tokenizer, tokens) == text


def test_a_decoder_that_joins_like_tokens_is_refused() -> None:
    with pytest.raises(ServerError, match="CTC"):
        with_decoder(decoders.CTC())


def test_a_run_of_blanks_that_was_added_as_a_token_is_a_run_of_blanks():
    tokenizer = with_decoder(DECODERS["gemma"])
    indent = tokenizer.single("▁▁▁")
    assert streamed(tokenizer, [0, indent, 0]) == "a   a"
    assert tokenizer.raw(indent) == b"   "


@pytest.mark.model
@pytest.mark.parametrize("folder", ["minilm", "demo_model", "whisper_base"])
def test_a_stream_of_a_real_vocabulary_is_the_text_of_its_decoder(folder, request):
    tokenizer = Tokenizer(Backend.from_file(str(request.getfixturevalue(folder) / "tokenizer.json")))
    chance = random.Random(1)
    for _ in range(500):
        tokens = [chance.randrange(tokenizer.size) for _ in range(chance.randint(1, 12))]
        assert streamed(tokenizer, tokens) == decoded(tokenizer, tokens)


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
    assert tokenizer.detokenizer(at_start=True).add(tokens[0])[0] == "H"
    assert tokenizer.detokenizer().add(tokens[0])[0] == " "


def test_the_bytes_of_every_token_are_known(tokenizer):
    for byte in range(256):
        spelled = f"<0x{byte:02X}>"
        if tokenizer.backend.token_to_id(spelled) is not None:
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
    assert tokenizer.eos == {0, 2}


def test_an_architecture_that_transformers_does_not_know_may_scale_its_rotary_embeddings(tmp_path):
    folder = tiny_model("llama", tmp_path)
    scaling = {"type": "yarn", "factor": 10, "original_max_position_embeddings": 32768}
    config = {"model_type": "of_next_year", "rope_theta": 5000000.0, "rope_scaling": scaling}
    (folder / "config.json").write_text(json.dumps(config))
    assert Tokenizer.load(folder).encode("a word")


def test_words_are_never_cut_by_chance(tmp_path: Path) -> None:
    """`dropout` leaves pieces apart while a model is trained; here it would change a prompt at every reading."""
    model = models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")], dropout=0.9)
    Backend(model).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    read = [
        Tokenizer.load(tmp_path).encode("abab"),
        list(EncodingTokenizer(tmp_path, None).encode("abab").tokens),
    ]
    assert read == [[2, 2]] * 2


def test_a_tokenizer_that_needs_a_package_is_refused_with_the_files_that_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*given: object, **named: object) -> object:
        raise ImportError("\nMistralConverter requires the mistral-common library\n")

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", ask)
    (tmp_path / "tekken.json").write_text("{}")
    with pytest.raises(
        ServerError, match=r"mistral-common library\)\. Copy tokenizer\.json, tokenizer_config"
    ):
        Tokenizer.load(tmp_path)
