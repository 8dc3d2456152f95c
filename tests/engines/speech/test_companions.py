"""What the table of companions says of mlx-audio: which repositories its code asks the Hub for, and whether a load
fails without them. No checkpoint is needed: the code that asks is run with an empty cache and no network."""

import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub._snapshot_download
import huggingface_hub.constants
import huggingface_hub.file_download
import pytest
from msgspec import structs

from pippin.catalog.companions import companions_of
from pippin.core.errors import ServerError
from pippin.core.models import Companion, ModelInfo
from pippin.engines.speech.speaking import load_speaker
from tests.engines.speech.tiny_hearing import write_tokenizer

Asked = set[str]


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The repositories that are looked for in a cache that holds none."""
    (tmp_path / "hub").mkdir()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    found: Asked = set()
    for module in (huggingface_hub._snapshot_download, huggingface_hub.file_download):
        original = module.repo_folder_name

        def recording(*, repo_id: str, repo_type: str, of: Callable[..., str] = original) -> str:
            found.add(repo_id)
            return of(repo_id=repo_id, repo_type=repo_type)

        monkeypatch.setattr(module, "repo_folder_name", recording)
    return found


def module_of(family: str, name: str | None = None) -> Any:
    return importlib.import_module(f"mlx_audio.tts.models.{family}.{name or family}")


def hook(family: str, **attributes: Any) -> Callable[[Path], Any]:
    """What mlx-audio does after it has loaded the weights of a model, with no more of the model than is looked at."""
    package = f"mlx_audio.tts.models.{family}"
    return lambda folder: importlib.import_module(package).Model.post_load_hook(
        SimpleNamespace(**attributes), folder
    )


def vocabulary(size: int) -> Any:
    return SimpleNamespace(decoder_config=SimpleNamespace(vocab_size=size))


FAILING: dict[str, tuple[dict[str, Any], Callable[[Path], Any]]] = {
    "llama": ({"tokenizer_name": "/a/path"}, lambda _: module_of("llama")),
    "qwen3": ({}, lambda _: module_of("qwen3")),
    "chatterbox": ({}, hook("chatterbox", _init_text_tokenizers=lambda _: None)),
    "vibevoice": ({}, hook("vibevoice", tokenizer=None, is_non_streaming=False)),
    "vibevoice_streaming": ({}, hook("vibevoice", tokenizer=None, is_non_streaming=False)),
    "kugelaudio": ({"decoder_config": {"vocab_size": 152064}}, hook("kugelaudio", config=vocabulary(152064))),
    "higgs_audio": ({}, hook("higgs_audio")),
    "sesame": ({"use_default_voice_prompt": False}, lambda _: sesame_loads()),
    "indextts": ({"tokenizer_name": "org/words"}, lambda _: indextts_loads("org/words")),
}
"""For each family a configuration, and the part of its load that fails."""

AT_IMPORT = ("llama", "qwen3")
"""Families whose module fetches the codec when it is imported."""


def sesame_loads() -> None:
    from mlx_audio.codec.models.mimi import Mimi

    sesame = module_of("sesame")
    with pytest.raises(OSError):
        sesame.load_llama3_tokenizer(sesame.TOKENIZER_REPO)
    Mimi.from_pretrained(sesame.MIMI_REPO)


def indextts_loads(tokenizer: str) -> None:
    gpt = SimpleNamespace(use_mel_codes_as_input=True, condition_type="conformer_perceiver")
    module_of("indextts").Model(SimpleNamespace(gpt=gpt, sample_rate=24000, tokenizer_name=tokenizer))


def tokenizes(family: str, **config: Any) -> Callable[[Path], Any]:
    return lambda _: next(
        module_of(family).Model.generate(SimpleNamespace(config=SimpleNamespace(**config)), "a")
    )


def codec_of_moss(family: str, repository: str | None) -> Callable[[Path], Any]:
    config = SimpleNamespace(model_path=None, audio_tokenizer_pretrained_name_or_path=repository)
    model = SimpleNamespace(audio_tokenizer=None, config=config)
    return lambda _: module_of(family).Model._ensure_audio_tokenizer(model)


def irodori_speaks(folder: Path) -> None:
    config = {"dacvae_repo": "org/codec", "dit": SimpleNamespace(text_encoder_revision=None)}
    model = SimpleNamespace(config=SimpleNamespace(**config), _model_path=None)
    irodori = module_of("irodori_tts").Model
    with pytest.warns(UserWarning, match="Could not load DACVAE"):
        irodori.post_load_hook(model, folder)
    irodori._load_tokenizer(model, "org/words")


def tada_loads(folder: Path) -> None:
    tada = module_of("tada").Model
    model = SimpleNamespace()
    model._load_decoder = lambda codec: tada._load_decoder(model, codec)
    model._load_encoder = lambda codec: tada._load_encoder(model, codec)
    tada.post_load_hook(model, folder)


LATE: dict[str, tuple[dict[str, Any], Callable[[Path], Any]]] = {
    "tada": ({}, tada_loads),
    "chatterbox_turbo": ({}, hook("chatterbox_turbo", _s3tokenizer=None)),
    "echo_tts": (
        {"fish_codec_repo": "org/fish"},
        hook("echo_tts", config=SimpleNamespace(pca_filename="none", fish_codec_repo="org/fish")),
    ),
    "irodori_tts": (
        {"dacvae_repo": "org/codec", "dit": {"text_tokenizer_repo": "org/words"}},
        irodori_speaks,
    ),
    "melotts": ({}, lambda _: module_of("melotts", "text")._get_tokenizer()),
    "zonos2": (
        {"dac_model_id": "org/dac"},
        lambda _: module_of("zonos2", "model").Model._load_dac(
            SimpleNamespace(_dac=None, config=SimpleNamespace(dac_model_id="org/dac"))
        ),
    ),
    "rumik_oss": (
        {"mimi_repo": "org/mimi"},
        lambda _: module_of("rumik_oss").Model.mimi.fget(
            SimpleNamespace(_mimi=None, config=SimpleNamespace(mimi_repo="org/mimi"))
        ),
    ),
    "moss_tts": ({}, codec_of_moss("moss_tts", None)),
    "moss_tts_nano": (
        {"audio_tokenizer_pretrained_name_or_path": "org/nano"},
        codec_of_moss("moss_tts_nano", "org/nano"),
    ),
    "dramabox": (
        {"text_encoder": "org/gemma"},
        lambda _: module_of("dramabox", "gemma").load_text_encoder("org/gemma"),
    ),
    "longcat_audiodit": (
        {},
        tokenizes(
            "longcat_audiodit",
            sampling_rate=1,
            latent_hop=1,
            max_wav_duration=1,
            repa_dit_layer=1,
            text_encoder_model="google/umt5-base",
        ),
    ),
    "outetts": (
        {"tokenizer_name": "/a/path"},
        lambda _: module_of("outetts", "dac_interface").DacInterface(),
    ),
    "bark": (
        {},
        lambda _: module_of("bark", "pipeline").Pipeline(
            None, None, SimpleNamespace(codec_path="mlx-community/encodec-24khz-float32")
        ),
    ),
}
"""For each family a configuration, and what asks the Hub at a load that passes or at the first request."""


def needed(folder: Path, family: str, config: dict[str, Any]) -> tuple[Companion, ...]:
    (folder / "preprocessor_config.json").write_text("{}")
    found = companions_of(folder, family, {"model_type": family, **config})
    return tuple(each for each in found if each.needed)


@pytest.mark.parametrize("family", FAILING)
def test_a_load_fails_without_what_the_table_says(
    family: str, tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    if family in AT_IMPORT:
        monkeypatch.delitem(sys.modules, f"mlx_audio.tts.models.{family}.{family}", raising=False)
    if family == "higgs_audio":
        write_tokenizer(tmp_path, ())
    config, load = FAILING[family]
    wanted = needed(tmp_path, family, config)
    assert wanted
    assert not any(each.missed_late for each in wanted)
    with pytest.raises((OSError, RuntimeError)):
        load(tmp_path)
    assert {each.repository for each in wanted} <= asked


@pytest.mark.parametrize("family", LATE)
def test_what_a_load_does_not_miss_is_asked_for_later(family: str, tmp_path: Path, asked: Asked) -> None:
    config, ask = LATE[family]
    wanted = [each for each in needed(tmp_path, family, config) if each.missed_late]
    assert wanted
    with suppress(OSError):
        ask(tmp_path)
    assert {each.repository for each in wanted} <= asked


CODEC = Companion("org/codec", ("*.safetensors",))


def given(monkeypatch: pytest.MonkeyPatch, load: Callable[[Path], Any]) -> None:
    monkeypatch.setattr("mlx_audio.tts.utils.load_model", load)


def info(folder: Path, companion: Companion) -> ModelInfo:
    return ModelInfo(id="voice", kind="speech", path=str(folder), companions=(companion,))


def test_what_mlx_audio_can_load_is_loaded_though_a_companion_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: Asked
) -> None:
    given(monkeypatch, lambda _: "loaded")
    assert load_speaker(info(tmp_path, CODEC)) == "loaded"


def test_a_load_that_fails_names_the_companion_that_is_missing_and_fetches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: Asked
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)

    def load(_: Path) -> None:
        assert huggingface_hub.constants.HF_HUB_OFFLINE
        raise OSError("no codec")

    given(monkeypatch, load)
    with pytest.raises(ServerError, match="voice needs org/codec beside its own files") as caught:
        load_speaker(info(tmp_path, CODEC))
    assert caught.value.report.kind == "load_failed"
    assert not huggingface_hub.constants.HF_HUB_OFFLINE


def test_a_package_that_is_missing_is_named_before_a_companion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: Asked
) -> None:
    def load(_: Path) -> None:
        raise ImportError("No module named 'misaki'", name="misaki")

    given(monkeypatch, load)
    with pytest.raises(ServerError, match="'misaki'"):
        load_speaker(info(tmp_path, CODEC))


def test_what_a_load_would_not_miss_is_refused_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: Asked
) -> None:
    given(monkeypatch, lambda _: pytest.fail("was loaded"))
    with pytest.raises(ServerError, match="needs org/codec"):
        load_speaker(info(tmp_path, structs.replace(CODEC, missed_late=True)))
