"""What libraries say of a model is asked once, and kept on the disk for later processes."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from pippin.config.options.model import ModelOptions
from pippin.core.models import ModelInfo
from pippin.engines.language import kept as room
from pippin.engines.language.configuration import fields_of
from pippin.engines.language.kept import files_of, kept
from pippin.engines.language.kv_cache import probe
from pippin.engines.language.kv_cache.agreement import passed
from pippin.engines.language.loading.asked import Asked
from pippin.engines.language.loading.engine import build_engine
from pippin.engines.language.model.weights import load_weights
from pippin.engines.language.text.tokenizer import Tokenizer
from tests.engines.language.architectures.any_architecture import architectures
from tests.engines.language.bench import PLAN
from tests.engines.language.text.small_tokenizer import ADDED, CHATML, SPECIAL, byte_level, sentencepiece
from tests.engines.tiny_models import tiny_model


class Said(msgspec.Struct):
    number: int


class Asking:
    """Says another number each time."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> Said:
        self.times += 1
        return Said(self.times)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIPPIN_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_the_same_words_are_asked_once_and_others_again() -> None:
    ask = Asking()
    assert [kept(Said, ask, "a").number for _ in range(2)] == [1, 1]
    assert kept(Said, ask, "b").number == 2


def test_another_version_of_a_library_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Asking()
    kept(Said, ask)
    monkeypatch.setattr(room, "code", lambda: "newer")
    assert kept(Said, ask).number == 2


def test_what_is_damaged_is_asked_again_and_mended(home: Path) -> None:
    ask = Asking()
    kept(Said, ask)
    [path] = (home / "kept").iterdir()
    whole = path.read_bytes()
    for number, damaged in enumerate((whole[:-1], whole[:-1] + b"\x07", b""), start=2):
        path.write_bytes(damaged)
        assert [kept(Said, ask).number for _ in range(2)] == [number, number]


def test_a_full_disk_keeps_no_beginnings(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        with path.open("wb") as file:
            file.write(data[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert kept(Said, Asking()).number == 1
    assert not [*(home / "kept").iterdir()]


def test_a_home_that_can_not_be_written_costs_nothing_but_time(home: Path) -> None:
    home.write_text("a file")
    ask = Asking()
    assert [kept(Said, ask).number for _ in range(2)] == [1, 2]


def test_the_oldest_leave_where_too_much_is_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MOST", 57)
    ask = Asking()
    for number in range(4):
        kept(Said, ask, str(number))
        for path in (home / "kept").iterdir():
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 10))
    sizes = [path.stat().st_size for path in (home / "kept").iterdir()]
    assert sum(sizes) <= 57 < sum(sizes) + sizes[0]
    assert kept(Said, ask, "3").number == 4
    assert kept(Said, ask, "0").number == 5


def test_a_folder_is_another_when_a_file_of_it_changes_and_not_with_its_weights(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    before = files_of(tmp_path)
    (tmp_path / "model.safetensors").write_text("")
    assert files_of(tmp_path) == before
    (tmp_path / "tokenizer.json").write_text("[]")
    os.utime(tmp_path / "tokenizer.json", ns=(1, 1))
    assert files_of(tmp_path) != before


def test_trials_that_passed_are_left_out_at_the_next_start_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def noting(what: str, attempt: Any, named: str | None) -> Any:
        def noted(number: int) -> Any:
            tried.append(what)
            return attempt(number)

        return passed(what, noted, named)

    monkeypatch.setattr(probe, "passed", noting)

    def start(folder: Path, **options: Any) -> str:
        tried.clear()
        given = ModelOptions(**options)
        model = load_weights(ModelInfo(id="a", kind="language", path=str(folder)), PLAN, lambda *_: None)[0]
        engine = build_engine(Asked(model, Tokenizer.load(folder), given, PLAN, folder))
        return engine.counters.agreement

    folder = tiny_model("llama", tmp_path / "model", head_dim=32)
    first = start(folder)
    assert tried == ["prompts in slots", "taking tokens back"]
    assert start(folder) == first
    assert not tried
    start(folder, kv_bits=8, kv_group_size=32)
    assert "quantised keys and values" in tried
    os.utime(folder / "model.safetensors", ns=(1, 1))
    start(folder)
    assert tried
    monkeypatch.setattr(probe, "_off_after_rewinding", lambda *_: 1.0)
    os.utime(folder / "model.safetensors", ns=(2, 2))
    for _ in range(2):  # what did not pass is tried again
        start(folder)
        assert "taking tokens back" in tried


TEXTS = st.lists(
    st.one_of(st.text(max_size=12), st.sampled_from([*SPECIAL, *ADDED, " ", "  x", "\n\n", "1234", "Straße"]))
).map("".join)


def folder_of(made: Tokenizer, kind: str, folder: Path) -> Path:
    """As it is published under a class of transformers, which may make another tokenizer of the same file."""
    folder.mkdir()
    made.backend.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": kind,
        "eos_token": SPECIAL[2],
        "bos_token": SPECIAL[0],
        "chat_template": CHATML,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


@pytest.fixture(scope="module", params=["GPT2Tokenizer", "Qwen2Tokenizer", "LlamaTokenizer", "any", "bert"])
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "bert":
        found: Path = request.getfixturevalue("minilm")
        return found
    kind = "PreTrainedTokenizerFast" if request.param == "any" else request.param
    made = sentencepiece() if kind == "LlamaTokenizer" else byte_level()
    return folder_of(made, kind, tmp_path_factory.mktemp("published") / "model")


def test_a_tokenizer_from_the_disk_is_transformers_but_cuts_texts_as_its_file_says(published: Path) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(published)
    reference.backend_tokenizer.no_padding()
    reference.backend_tokenizer.no_truncation()
    stored = json.loads((published / "tokenizer.json").read_text())
    ways = {way: stored[way] for way in ("normalizer", "pre_tokenizer", "model", "decoder")}
    expected = json.loads(reference.backend_tokenizer.to_str()) | ways
    backend = Backend.from_str(json.dumps(expected))
    for found in (Tokenizer.load(published), Tokenizer.load(published)):
        assert json.loads(found.backend.to_str()) == expected
        assert reference.eos_token_id is None or reference.eos_token_id in found.eos
        assert found.bos == reference.bos_token_id
        assert found.special_names == reference.special_tokens_map
        assert found.chat_templates.get("default") == reference.chat_template
        added = found.backend.get_added_tokens_decoder()
        assert {number: str(each) for number, each in added.items()} == {
            number: str(each) for number, each in reference.added_tokens_decoder.items()
        }

    @given(text=TEXTS, whole=st.booleans())
    def same(text: str, whole: bool) -> None:
        tokens = found.encode(text, add_special_tokens=whole)
        assert tokens == backend.encode(text, add_special_tokens=whole).ids
        assert found.decode(tokens) == backend.decode(tokens, skip_special_tokens=False)

    same()


def test_special_tokens_that_are_cut_as_text_stay_so(tmp_path: Path) -> None:
    folder = folder_of(byte_level(), "PreTrainedTokenizerFast", tmp_path / "model")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"split_special_tokens": True}))
    for _ in range(2):
        assert len(Tokenizer.load(folder).encode(SPECIAL[2])) > 1


def test_the_fields_of_architectures_are_transformers() -> None:
    from transformers import CONFIG_MAPPING

    for kind in sorted({*architectures()} & {*CONFIG_MAPPING}):
        found = fields_of({"model_type": kind})
        own = {name: field.default for name, field in CONFIG_MAPPING[kind].__dataclass_fields__.items()}
        assert found.names == CONFIG_MAPPING[kind].attribute_map
        assert all(own[name] == value for name, value in found.defaults.items())
    assert not fields_of({"model_type": "of_next_year"}).defaults


def test_mlx_lm_is_whole_for_who_asks_for_more_than_its_modules(tmp_path: Path) -> None:
    program = (
        "import sys, pippin.engines.language.upstream.library as library\n"
        "assert not {'transformers', 'huggingface_hub', 'mlx_lm.generate'} & {*sys.modules}\n"
        "import mlx_lm, mlx_lm.utils, pathlib\n"
        "assert library.load_model is mlx_lm.utils.load_model\n"
        "assert mlx_lm.generate.__module__ == 'mlx_lm.generate'\n"
        "from mlx_lm import convert, load\n"
        "assert callable(convert) and callable(load)\n"
        "assert not hasattr(mlx_lm, 'nothing')\n"
        "assert mlx_lm.utils.load_tokenizer(pathlib.Path(sys.argv[1])).encode('a b')\n"
    )
    folder = folder_of(byte_level(), "PreTrainedTokenizerFast", tmp_path / "model")
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True, timeout=120)
